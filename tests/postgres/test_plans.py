"""P15: what the triggers read for a program that works by plain SQL does not grow with the tables."""

from edgeoutbox.states import State
from tests.postgres.database import Connect, PostgresDatabase
from tests.schema.database import FAR, LONG_AGO, TABLES

TURNS = 10
MANY = 1000
MOST = 400
"""How many rows and index entries may be read for each life of two actions."""

READ = """
SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = current_schema())
     + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = current_schema())
"""


def test_p15_triggers_that_were_planned_for_small_tables_serve_large_ones(connect: Connect) -> None:
    """A session keeps the plans of its triggers until the next ANALYZE, however many rows come until then."""
    program, other = connect(), connect()
    program.raw.prepare_threshold = None  # its own statements are planned each time
    for table in TABLES:
        other(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    other("INSERT INTO agent_action_kind (kind) VALUES ('email')")
    other.claim(other.insert(kind="other", idempotency_key="one"), FAR)
    for table in TABLES:
        other(f"VACUUM (ANALYZE) {table}")
    _live(program)
    other(
        "INSERT INTO agent_action (kind, idempotency_key, payload) "
        "SELECT 'other', 'many:' || n, '{}' FROM generate_series(1, ?) AS n",
        MANY,
    )
    other(
        "INSERT INTO agent_action_attempt (action_id, epoch, attempt, owner, started_at, lease_expires_at) "
        "SELECT -n, 1, 1, 'gone', 1, 1 FROM generate_series(1, ?) AS n",
        MANY,
    )
    _live(program)
    for session in (program, other):
        session.close()  # which hands in what it counted
    assert connect().one(READ) / (2 * TURNS) < MOST


def _live(program: PostgresDatabase) -> None:
    for _ in range(TURNS):
        for delivery in ("at_most_once", "repeatable"):
            program("UPDATE agent_action_kind SET delivery = ?", delivery)
        actions = [program.insert("lane") for _ in range(2)]
        for action in actions:
            program.claim(action, LONG_AGO)
            program.claim(action)
            program.fence(action)
            program.end(action, State.UNCERTAIN)
        for action in actions:
            program("DELETE FROM agent_action WHERE id = ?", action)
