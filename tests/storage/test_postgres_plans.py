"""P15 on Postgres: what is read does not grow with the tables, also when the planner believes them to be small."""

import asyncio

import pytest

from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.protocol import Fence, Supersede
from edgeoutbox.testing.conformance.story import DONE, WINDOW, a_request, served
from edgeoutbox.testing.postgres import PostgresServer, as_url
from edgeoutbox.variants import ALWAYS

SUPERSEDE = Supersede(decodable={"email": ALWAYS})
MANY = 20_000
WARM = 30
TURNS = 10
AT_ONCE = 20
MOST = 40
"""How many rows and index entries may be read for each action, from its insert to its end."""

# As if they had been inserted one by one; their triggers would take half a minute.
GROW = f"""
ALTER TABLE agent_action DISABLE TRIGGER USER;
INSERT INTO agent_action (id, kind, idempotency_key, payload, lane_key, due_at, admitted_at)
SELECT nextval('agent_action_id_seq'), 'email', 'many:' || i, '{{"notice": "sent"}}', 'many:' || i, 1, 1
FROM generate_series(1, {MANY}) AS i;
INSERT INTO agent_action_attempt (action_id, epoch, attempt, owner, started_at, lease_expires_at)
SELECT -i, 1, 1, 'gone', 1, 1 FROM generate_series(1, {MANY}) AS i;
ALTER TABLE agent_action ENABLE TRIGGER USER;
"""

TABLES = ("agent_action", "agent_action_attempt")

READ = """
SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = current_schema())
     + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = current_schema())
"""


@pytest.mark.parametrize("small", [0, 20, 500])
async def test_p15_plans_that_were_made_for_small_tables_serve_large_ones(
    postgres_server: PostgresServer, conninfo: str, small: int
) -> None:
    """A storage whose statements were planned for a few rows reads as little for each action when there are many."""
    storage = PostgresStorage(as_url(conninfo), connections=2)
    await storage.open()
    try:
        with postgres_server.connect(conninfo) as other:
            for table in TABLES:
                other.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            await storage.enqueue([a_request(f"before:{n}") for n in range(small)])
            for _ in range(small // AT_ONCE):
                await _carry_out(storage, AT_ONCE)
            for table in TABLES:
                other.execute(f"VACUUM (ANALYZE) {table}")
            for n in range(WARM):  # until each statement has a plan that is kept
                await storage.enqueue([a_request(f"warm:{n}", "warm")], supersede=SUPERSEDE)
                await _carry_out(storage, 1)
            other.execute(GROW)
        for n in range(TURNS):
            await _carry_out(storage, AT_ONCE)
            await storage.enqueue([a_request(f"instead:{n}", f"many:{MANY - n}")], supersede=SUPERSEDE)
    finally:
        await storage.close()  # which hands in what it counted
    assert _read(postgres_server, conninfo) / (small + WARM + TURNS * AT_ONCE) < MOST


async def _carry_out(storage: PostgresStorage, count: int) -> None:
    claims = await storage.claim([served()], count, "one")
    assert len(claims) == count
    fences = await asyncio.gather(*(storage.begin_write(one.id, one.epoch, one.owner, WINDOW) for one in claims))
    assert all(isinstance(fence, Fence) for fence in fences)
    assert all(await asyncio.gather(*(storage.settle(one, DONE) for one in claims)))


def _read(server: PostgresServer, conninfo: str) -> int:
    """Rows and index entries that have been read until now."""
    with server.connect(conninfo) as connection:
        return int(connection.execute(READ).fetchall()[0][0])


NOTE_JIT = """
CREATE TABLE planned (jit text);
CREATE FUNCTION note_jit() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN INSERT INTO planned VALUES (current_setting(''jit'')); RETURN NULL; END';
CREATE TRIGGER note_jit AFTER INSERT OR UPDATE ON agent_action FOR EACH ROW EXECUTE FUNCTION note_jit();
"""


async def test_p15_no_statement_of_ours_is_compiled(postgres_server: PostgresServer, conninfo: str) -> None:
    """A server before 18 takes a plan that may only use indexes for a dear one, and compiles it: a second each time."""
    storage = PostgresStorage(as_url(conninfo))
    await storage.open()
    try:
        with postgres_server.connect(conninfo) as other:
            other.execute(NOTE_JIT)
            await storage.enqueue([a_request("k")])
            await _carry_out(storage, 1)
            assert other.execute("SELECT DISTINCT jit FROM planned").fetchall() == [("off",)]
    finally:
        await storage.close()
