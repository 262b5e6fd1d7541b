"""Text that is not UTF-8, as a program with another encoding stores it."""

import pytest

from edgeoutbox import Executor
from edgeoutbox.testing import ScriptedAdapter
from tests.executor.world import World, request, sqlite_only


@sqlite_only("Postgres stores no text that is not in the encoding of its database")
@pytest.mark.parametrize("where", ["payload", "lane_key", "idempotency_key"])
async def test_a_row_that_is_not_utf8_stalls_nobody_else(world: World, where: str) -> None:
    """SQLite stores any bytes as text; such a row must not keep other actions from being claimed."""
    outbox = await world.outbox(ScriptedAdapter())
    columns = {"payload": "'{}'", "lane_key": "'lane'", "idempotency_key": "'bad'"}
    columns[where] = "CAST(x'7b2261223a22e4227d' AS TEXT)"
    names, values = ", ".join(columns), ", ".join(columns.values())
    world.sql(f"INSERT INTO agent_action (kind, {names}) VALUES ('scripted', {values})")  # noqa: S608 - our own words
    beside = await outbox.enqueue(request("beside"))
    served = Executor(outbox, clock=world.clock).served("scripted", 10)
    claims = await outbox.storage.claim([served], 10, "owner")
    assert beside.id in [claim.id for claim in claims]
