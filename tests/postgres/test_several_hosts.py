"""Several executors on several hosts, on the worst of days: every promise that can be seen from outside."""

import os
import random

import pytest

from edgeoutbox.testing.postgres import PostgresServer, unavailable
from tests.postgres.application import plan
from tests.postgres.chaos import World
from tests.postgres.cutting import Odds
from tests.postgres.kept import broken

COUNT = int(os.environ.get("EDGEOUTBOX_TEST_HOSTS_ACTIONS", "600"))
SEED = os.environ.get("EDGEOUTBOX_TEST_HOSTS_SEED")


@pytest.mark.timeout(60 + COUNT)
async def test_several_hosts_keep_the_promises() -> None:
    """Hosts are killed, commits lose their answers, the server crashes: every promise holds, and everything ends."""
    server = PostgresServer()
    why = unavailable() if server.private else "the server is not ours to kill"
    if why is not None:
        pytest.skip(why)
    seed = random.SystemRandom().randrange(1_000_000) if SEED is None else int(SEED)
    with server:
        story = await World(seed, COUNT, server, Odds()).live()
    print(story.told())  # noqa: T201 - the figures, and the seed to run it again
    assert broken(story, list(plan(seed, COUNT))) == []
    assert story.happened["server killed"] == 2
    assert story.happened["hosts killed"] > 0
    assert story.happened["cut behind"] > 0
