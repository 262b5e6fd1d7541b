"""The schema as a file, and what of it only Postgres has: roles, search_path, isolation, types and the clock."""

# ruff: noqa: S608 - statements of the test's own making

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from edgeoutbox.states import State
from edgeoutbox.storage.postgres.schema import grants
from edgeoutbox.testing.postgres import PostgresServer
from tests.postgres.database import POSTGRES_SCHEMA, Connect, PostgresDatabase
from tests.postgres.sessions import meanwhile
from tests.schema.database import FAR, LONG_AGO, TABLES, Database, SqliteDatabase

PLAIN = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', ?, '{}')"


def made(db: PostgresDatabase) -> list[tuple[Any, ...]]:
    """Everything that the script makes, as the catalogue describes it."""
    return db(
        """
        SELECT 'class', relname::text, relkind::text, '' FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace
        UNION ALL
        SELECT 'trigger', tgname::text, pg_get_triggerdef(t.oid), '' FROM pg_trigger AS t
        JOIN pg_class AS c ON c.oid = tgrelid WHERE relnamespace = current_schema()::regnamespace
        UNION ALL
        SELECT 'constraint', conname::text, pg_get_constraintdef(oid), '' FROM pg_constraint
        WHERE connamespace = current_schema()::regnamespace
        UNION ALL
        SELECT 'function', proname::text, prosrc, proconfig::text FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace
        ORDER BY 1, 2, 3
        """
    )


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_schema_applied_twice_is_harmless(db: PostgresDatabase) -> None:
    """A second application changes nothing: no table, no trigger, no row."""
    action = db.insert("lane")
    before, rows = made(db), db.everything()
    db.script(POSTGRES_SCHEMA)
    assert made(db) == before
    assert db.everything() == rows
    assert db("SELECT version, readable_from FROM agent_action_schema") == [(1, 1)]
    assert db.heads("lane") == [action]


def test_the_schema_applied_by_two_sessions_at_once_is_made_once(postgres_server: PostgresServer) -> None:
    """The second waits for the first, and finds everything there."""
    conninfo = postgres_server.fresh_schema()
    with PostgresDatabase(conninfo) as one, PostgresDatabase(conninfo) as two:
        one.script(POSTGRES_SCHEMA.removesuffix("COMMIT;\n"))
        with meanwhile(two, POSTGRES_SCHEMA) as migrating:
            one("COMMIT")
        assert migrating.exception() is None
        assert two("SELECT version FROM agent_action_schema") == [(1,)]
        two.insert("lane")


def test_the_schema_applied_after_its_schema_was_renamed_works_under_the_new_name(db: PostgresDatabase) -> None:
    """The functions look where the tables are now."""
    old = db.schema
    db(f"ALTER SCHEMA {old} RENAME TO {old}_renamed")
    db(f"SET search_path = {old}_renamed")
    db.script(POSTGRES_SCHEMA)
    db.end(db.insert("lane"), State.CANCELLED)
    db(f"ALTER SCHEMA {old}_renamed RENAME TO {old}")


def test_a_newer_schema_is_left_as_it_is(db: PostgresDatabase) -> None:
    """An older file does not put its functions in the place of newer ones."""
    db("UPDATE agent_action_schema SET version = 2")
    db("CREATE OR REPLACE FUNCTION edgeoutbox_now() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 7::bigint'")
    with pytest.raises(psycopg.errors.RaiseException, match="this database has schema 2, and this file is schema 1"):
        db.script(POSTGRES_SCHEMA)
    db("ROLLBACK")
    assert db.now() == 7


def test_a_search_path_without_a_schema_is_named_as_such(postgres_server: PostgresServer) -> None:
    """Tables that would land nowhere are refused before the first of them."""
    with PostgresDatabase(postgres_server.conninfo) as db:
        db("SET search_path = nowhere")
        with pytest.raises(psycopg.errors.RaiseException, match="search_path names no schema"):
            db.script(POSTGRES_SCHEMA)


def test_psql_applies_the_schema(postgres_server: PostgresServer) -> None:
    """`psql -f postgres.sql` makes a schema that takes the documented INSERT, and says nothing alarming."""
    shell = shutil.which("psql")
    if shell is None:
        pytest.skip("psql is not installed; every other test applies the same text through psycopg")
    conninfo = postgres_server.fresh_schema()
    insert = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', '{}');"
    for script in (POSTGRES_SCHEMA, POSTGRES_SCHEMA, insert):
        done = subprocess.run(  # noqa: S603 - our own script
            [shell, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", conninfo, "-f", "-"],
            input=script,
            text=True,
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
    with PostgresDatabase(conninfo) as db:
        assert db("SELECT state FROM agent_action") == [("ADMITTED",)]


def test_the_tables_have_the_columns_that_they_have_in_sqlite(db: PostgresDatabase, sqlite: SqliteDatabase) -> None:
    """Same names in the same order, so that statements fit both and rows can be copied."""
    tables = [*TABLES, "agent_action_executor", "agent_action_schema", "agent_action_transition"]
    for table in [*tables, "agent_action_stop_reason"]:
        assert db.columns(table) == sqlite.columns(table)


def test_the_indexes_are_those_of_sqlite_and_one_more(db: PostgresDatabase, sqlite: SqliteDatabase) -> None:
    """Same names for the same purposes; the unique head is Postgres's own."""
    names = {name for (name,) in db("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()")}
    theirs = {name for (name,) in sqlite("SELECT name FROM sqlite_master WHERE type = 'index'")}
    ours = {"ix_", "ux_"}
    assert {name for name in names if name[:3] in ours} == {
        *(name for name in theirs if name[:3] in ours),
        "ux_agent_action_lane_head",
    }


# --- who may, and from where -----------------------------------------------------------------------------------------


@pytest.fixture
def runtime(db: PostgresDatabase, connect: Connect) -> PostgresDatabase:
    """A session of a role that has what `migrate` names, and nothing else."""
    role = sql.Identifier(f"{db.schema}_runtime")
    db.raw.execute(sql.SQL("CREATE ROLE {role}").format(role=role))
    db.script(grants(db.schema, role.as_string()))
    session = connect()
    session.raw.execute(sql.SQL("SET ROLE {role}").format(role=role))
    return session


def test_a_role_with_dml_alone_enqueues_runs_and_sweeps(runtime: PostgresDatabase) -> None:
    """The whole life of an action needs no more than rights on rows and on the sequence of ids."""
    runtime("INSERT INTO agent_action_kind (kind, delivery, has_ended_hook) VALUES ('email', 'reads_back', 1)")
    runtime("UPDATE agent_action_kind SET delivery = 'repeatable'")
    head, behind = runtime.insert("lane"), runtime.insert("lane")
    runtime.claim(head, LONG_AGO)
    runtime.fence(head)
    runtime.claim(head)
    runtime("UPDATE agent_action_attempt SET settled_at = 9, recorded = 1 WHERE epoch = 2")
    runtime.end(head)
    assert runtime.heads("lane") == [behind]
    assert runtime("SELECT action_id FROM agent_action_ended") == [(head,)]
    runtime("DELETE FROM agent_action")
    assert runtime("SELECT COUNT(*) FROM agent_action_attempt") == [(0,)]


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE agent_action",
        "ALTER TABLE agent_action DISABLE TRIGGER ALL",
        "DROP TRIGGER guard_agent_action ON agent_action",
        "CREATE OR REPLACE FUNCTION edgeoutbox_now() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 7::bigint'",
        "INSERT INTO agent_action_transition VALUES ('PROPOSED', 'EXECUTING')",
        "UPDATE agent_action_transition SET from_state = 'DONE'",
        "INSERT INTO agent_action_stop_reason VALUES ('DONE', 'WITHDRAWN')",
        "DELETE FROM agent_action_stop_reason",
        "UPDATE agent_action_schema SET readable_from = 9",
    ],
)
def test_a_role_with_dml_alone_cannot_remove_the_guard(runtime: PostgresDatabase, statement: str) -> None:
    """What guards the tables belongs to their owner."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        runtime(statement)


def test_a_session_with_another_search_path_enqueues_by_the_qualified_name(db: PostgresDatabase) -> None:
    """The triggers find their tables, and give up nothing of the guard."""
    schema = db.schema
    db("SET search_path = pg_catalog")
    db(f"INSERT INTO {schema}.agent_action_kind (kind, requires_approval, has_ended_hook) VALUES ('asked', 1, 1)")
    insert = f"INSERT INTO {schema}.agent_action (kind, idempotency_key, payload, lane_key, state) VALUES "
    db(insert + "('asked', 'a', '{}', 'lane', 'PROPOSED'), ('email', 'b', '{}', 'lane', 'ADMITTED')")
    with pytest.raises(psycopg.errors.CheckViolation, match="this kind requires approval"):
        db(insert + "('asked', 'c', '{}', 'lane', 'ADMITTED')")
    db(
        f"UPDATE {schema}.agent_action SET state = 'CANCELLED', stop_reason = 'REFUSED', payload = NULL "
        "WHERE idempotency_key = 'a'"
    )
    db(
        f"UPDATE {schema}.agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'me', "
        f"lease_expires_at = {FAR} WHERE idempotency_key = 'b' AND is_head = 1"
    )
    db(f"UPDATE {schema}.agent_action SET write_started_at = 5 WHERE idempotency_key = 'b'")
    with pytest.raises(psycopg.errors.CheckViolation, match="loosen it when none of its actions is fenced"):
        db(f"INSERT INTO {schema}.agent_action_kind (kind, delivery) VALUES ('email', 'repeatable')")
    assert db(f"SELECT owner, write_started_at > 5 FROM {schema}.agent_action_attempt") == [("me", True)]
    assert db(f"SELECT kind FROM {schema}.agent_action_ended") == [("asked",)]
    with pytest.raises(psycopg.errors.CheckViolation, match="deleted with their action"):
        db(f"DELETE FROM {schema}.agent_action_attempt")


def test_p3_a_temporary_table_does_not_stand_in_for_the_rules(db: PostgresDatabase) -> None:
    """A session's own table of the same name is not what the guard looks steps up in."""
    action = db.insert()
    db("CREATE TEMPORARY TABLE agent_action_transition (from_state text, to_state text)")
    db("INSERT INTO pg_temp.agent_action_transition VALUES ('ADMITTED', 'PROPOSED')")
    db.refuses("the lifecycle has no such step", "UPDATE agent_action SET state = 'PROPOSED' WHERE id = ?", action)


def test_two_installations_in_one_database_do_not_meet(postgres_server: PostgresServer) -> None:
    """Each schema has its own ids, lanes and locks."""
    first = PostgresDatabase(postgres_server.fresh_schema(POSTGRES_SCHEMA))
    second = PostgresDatabase(postgres_server.fresh_schema(POSTGRES_SCHEMA))
    with first, second:
        second("SET lock_timeout = '100ms'")
        first("BEGIN")
        assert first.insert("lane") == second.insert("lane") == 1
        first("COMMIT")


# --- what is refused here alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["agent_action", "agent_action_attempt", "agent_action_kind"])
def test_p3_truncate_is_refused(db: PostgresDatabase, table: str) -> None:
    """It fires no row triggers, so it would forget fences and policies without a word."""
    db("INSERT INTO agent_action_kind (kind) VALUES ('email')")
    db.bring_to(State.EXECUTING)
    db.refuses(f"{table}: TRUNCATE would pass by the guard", f"TRUNCATE {table}")


def test_what_the_guard_refuses_is_a_check_violation(db: PostgresDatabase) -> None:
    """Every driver raises its integrity error, and the error names the table and shows no row."""
    action = db.insert(payload='{"secret": 1}')
    with pytest.raises(psycopg.errors.CheckViolation) as refusal:
        db("UPDATE agent_action SET state = 'DONE' WHERE id = ?", action)
    diagnosis = refusal.value.diag
    assert (diagnosis.sqlstate, diagnosis.schema_name, diagnosis.table_name) == ("23514", db.schema, "agent_action")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "payload",
    [r'{"a": "\u0000"}', r'{"a": "\ud800"}', r'{"a\u0000": 1}', '{"a": 1e999999}', "[" * 100_000],
    ids=["NUL", "half a pair", "NUL in a name", "number too large", "too deep"],
)
def test_p11_a_payload_that_would_break_every_claim_of_its_kind_is_refused(db: PostgresDatabase, payload: str) -> None:
    """JSON whose text cannot be read field by field does not come in."""
    before = db.everything()
    with pytest.raises((psycopg.DataError, psycopg.OperationalError)):
        db("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', ?)", payload)
    assert db.everything() == before


def test_a_payload_is_kept_as_it_was_given(db: PostgresDatabase) -> None:
    """Spaces, order and repeated names stay: a digest of the text holds."""
    payload = '{ "b" : 1.0, "a":"\\u00e9",  "b": 2 }'
    db.insert(payload=payload)
    assert db.one("SELECT payload FROM agent_action") == payload


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    "loosen",
    [
        "UPDATE agent_action_kind SET delivery = 'repeatable'",
        "UPDATE agent_action_kind SET requires_approval = 0",
        "INSERT INTO agent_action_kind (kind, delivery) VALUES ('other', 'repeatable')",
    ],
)
def test_p8_an_old_snapshot_loosens_no_kind(db: PostgresDatabase, level: str, loosen: str) -> None:
    """It could not see a fence that was set since."""
    db("INSERT INTO agent_action_kind (kind, requires_approval) VALUES ('email', 1)")
    db(f"BEGIN ISOLATION LEVEL {level}")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="use READ COMMITTED"):
        db(loosen)
    db("ROLLBACK")


def test_p8_a_kind_is_not_loosened_while_a_fence_is_being_committed(connect: Connect) -> None:
    """The loosening waits for the fence that it cannot see yet, and is refused then."""
    one, two = connect(), connect()
    one("INSERT INTO agent_action_kind (kind) VALUES ('email')")
    action = one.bring_to(State.EXECUTING)
    one("BEGIN")
    one.fence(action)
    with meanwhile(two, "UPDATE agent_action_kind SET delivery = 'repeatable'") as loosening:
        one("COMMIT")
    assert "loosen it when none of its actions is fenced" in str(loosening.exception())
    assert one("SELECT delivery FROM agent_action_kind") == [("at_most_once",)]


def test_p8_fences_of_one_kind_do_not_wait_for_each_other(connect: Connect) -> None:
    """The lock against loosening is shared."""
    one, two = connect(), connect()
    first, second = one.bring_to(State.EXECUTING), one.insert(idempotency_key="second")
    two.claim(second)
    one("BEGIN")
    one.fence(first)
    two("SET lock_timeout = '100ms'")
    two.fence(second)
    one("COMMIT")


def test_a_kind_is_declared_by_two_at_once_with_on_conflict(connect: Connect) -> None:
    """Whoever is second updates what the first declared."""
    one, two = connect(), connect()
    declare = (
        "INSERT INTO agent_action_kind (kind, retention_days) VALUES ('email', ?) "
        "ON CONFLICT (kind) DO UPDATE SET retention_days = EXCLUDED.retention_days"
    )
    one("BEGIN")
    one(declare, 5)
    with meanwhile(two, declare, 6):
        one("COMMIT")
    assert one("SELECT retention_days FROM agent_action_kind") == [(6,)]


# --- the clock -------------------------------------------------------------------------------------------------------


@pytest.fixture
def set_clock(db: PostgresDatabase) -> Callable[[int], None]:
    """Replaces the clock by one that stands at this time, in milliseconds."""

    def setter(milliseconds: int) -> None:
        db(
            "CREATE OR REPLACE FUNCTION edgeoutbox_now() RETURNS bigint LANGUAGE sql STABLE "
            f"AS 'SELECT {milliseconds}::bigint'"
        )

    return setter


def test_time_is_read_only_through_its_function(db: PostgresDatabase, set_clock: Callable[[int], None]) -> None:
    """Defaults, the guard, the log, the ends and the hooks all follow a clock that was replaced, then moved."""
    db("INSERT INTO agent_action_kind (kind, delivery, has_ended_hook) VALUES ('email', 'reads_back', 1)")
    set_clock(1000)
    action = db.insert(expires_at=2001)
    assert db("SELECT created_at, due_at, admitted_at FROM agent_action") == [(1000, 1000, 1000)]
    set_clock(2000)
    db.claim(action, 3000)
    db.fence(action)
    db.refuses("the lease has not ended", f"UPDATE agent_action SET epoch = 2, attempt = 2 WHERE id = {action}")
    set_clock(3000)
    db.claim(action)
    assert db("SELECT started_at, write_started_at FROM agent_action_attempt ORDER BY epoch") == [
        (2000, 2000),
        (3000, None),
    ]
    db.end(action)
    assert db("SELECT ended_at FROM agent_action") == [(3000,)]
    assert db("SELECT due_at FROM agent_action_ended") == [(3000,)]
    late = db.insert(expires_at=3000, idempotency_key="late")
    db.refuses(
        "the action has expired",
        "UPDATE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'me', lease_expires_at = 9 "
        f"WHERE id = {late}",
    )


def test_the_clock_counts_milliseconds_since_1970(db: Database) -> None:
    """Whole ones, of the time at which the statement began, never of a time to come."""
    [(now, exact)] = db("SELECT edgeoutbox_now(), extract(epoch FROM statement_timestamp()) * 1000")
    assert 0 <= exact - now < 1
