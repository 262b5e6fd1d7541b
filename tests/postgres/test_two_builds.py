"""P11 on Postgres: two builds of a program, each a process of its own, over one database."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from edgeoutbox import ActionRequest, Outbox
from edgeoutbox.states import State
from edgeoutbox.testing.postgres import as_url
from tests.postgres.chaos import program
from tests.postgres.database import PostgresDatabase
from tests.postgres.hosts import NOVEL
from tests.postgres.provider import Provider

PATIENCE = 20.0
ALWAYS_TAKES = 7
"""A seed with which the provider takes each of this test's actions at once."""


class Builds:
    """Starts hosts of either build."""

    def __init__(self, conninfo: str, folder: Path) -> None:
        self._url = as_url(conninfo)
        self._folder = folder
        self.provider = Provider(ALWAYS_TAKES)
        self.stack = AsyncExitStack()

    async def start(self, build: int) -> None:
        """Start one, which is killed at the end of the test."""
        process = await program(
            "hosts", self._folder / "stderr", self._url, f"build{build}", self._folder / "provider", build
        )
        self.stack.push_async_callback(process.wait)
        self.stack.callback(process.kill)


@pytest.fixture
async def builds(conninfo: str) -> AsyncIterator[Builds]:
    """The test's hosts, and their provider."""
    folder = Path(tempfile.mkdtemp(prefix="edgeoutbox-builds-"))  # a socket's path must be short
    opened = Builds(conninfo, folder)
    async with opened.stack as stack:
        stack.callback(shutil.rmtree, folder)
        listening = await asyncio.start_unix_server(opened.provider.connected, folder / "provider")
        stack.callback(listening.close)
        yield opened


def a_request(key: str, what: str, kind: str = "once", lane: str | None = None) -> ActionRequest:
    return ActionRequest(
        kind=kind, idempotency_key=key, lane_key=lane or key, payload={"what": what, "text": "to whom it concerns"}
    )


async def test_p11_what_a_build_does_not_know_waits_for_one_that_does(
    db: PostgresDatabase, conninfo: str, builds: Builds
) -> None:
    """The older build leaves it alone, also with a lost lease; it holds its lane; the newer build carries it out."""
    async with Outbox(as_url(conninfo)) as outbox:
        ids = [
            (await outbox.enqueue(request)).id
            for request in (
                a_request("memo", "memo"),
                a_request("novel", "note", NOVEL),
                a_request("lost memo", "memo"),
                a_request("lost note", "note"),
                a_request("head", "memo", lane="lane"),
                a_request("behind", "note", lane="lane"),
                a_request("note", "note"),
            )
        ]
        memo, novel, lost_memo, lost_note, head, behind, note = ids
        for lost in (lost_memo, lost_note):
            db(
                "UPDATE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'gone', "
                "lease_expires_at = edgeoutbox_now() WHERE id = ?",
                lost,
            )
        await builds.start(1)
        for known in (note, lost_note):
            assert (await outbox.wait(known, PATIENCE)).state is State.DONE
        left = {row[0]: row[1:] for row in db("SELECT id, state, epoch, lease_owner FROM agent_action")}
        assert [left[one] for one in (memo, novel, head, behind)] == [("ADMITTED", 0, None)] * 4
        assert left[lost_memo] == ("EXECUTING", 1, "gone")
        assert "no running executor knows its variant" in await outbox.why(memo)
        assert "no running executor serves its kind" in await outbox.why(novel)
        assert str(head) in await outbox.why(behind)
        await builds.start(2)
        for one in ids:
            assert (await outbox.wait(one, PATIENCE)).state is State.DONE
    owners = dict(db("SELECT action_id, owner FROM agent_action_attempt ORDER BY epoch"))
    new = {one for one in ids if owners[one].startswith("build2:")}
    assert {memo, novel, lost_memo, head} <= new
    assert [call.key for call in builds.provider.calls if call.lane == "lane"] == ["head", "behind"]
