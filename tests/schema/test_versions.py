"""The schema as a file: applied by hand, applied twice, migrated, and refused when it is newer."""

import hashlib
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeoutbox import Outbox, SchemaTooNew
from edgeoutbox.storage.sqlite import schema
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import Driver
from edgeoutbox.storage.sqlite.schema import Migration
from edgeoutbox.storage.sqlite.spelling import Connection
from tests.schema.conftest import OpenPlain
from tests.schema.database import SCHEMA, Database

pytestmark = pytest.mark.sqlite_alone("a file of SQLite; tests/postgres has its own")


def names(db: Database) -> list[tuple[str, str]]:
    return [(name, sql) for name, sql in db("SELECT name, sql FROM sqlite_master ORDER BY name")]


def test_the_schema_applied_twice_is_harmless(db: Database) -> None:
    """A second application changes nothing: no table, no trigger, no row."""
    action = db.insert("lane")
    before, rows = names(db), db.everything()
    db.script(SCHEMA)
    assert names(db) == before
    assert db.everything() == rows
    assert db("SELECT version, readable_from FROM agent_action_schema") == [(1, 1)]
    assert db.heads("lane") == [action]


def test_the_sqlite_shell_applies_the_schema(tmp_path: Path) -> None:
    """`sqlite3 app.db < schema.sql` makes a database that takes the documented INSERT."""
    shell = shutil.which("sqlite3")
    if shell is None:
        pytest.skip("the sqlite3 command is not installed; test_lifecycle applies the same text through two libraries")
    path = tmp_path / "app.db"
    insert = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', '{}');"
    for script in (SCHEMA, insert):
        done = subprocess.run([shell, "-bail", str(path)], input=script, text=True, capture_output=True, check=False)  # noqa: S603 - our own script
        assert (done.returncode, done.stderr) == (0, "")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT state FROM agent_action").fetchall() == [("ADMITTED",)]
    connection.close()


def test_the_loader_splits_the_schema_into_what_the_script_makes(
    open_plain: OpenPlain, tmp_path: Path, driver: Driver
) -> None:
    """Applied statement by statement by the package, the schema is the same as applied by hand."""
    connection = driver.open(str(tmp_path / "loaded.db"), 1000, None)
    schema.migrate(connection)
    loaded = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name")
    connection.close()
    assert [tuple(row) for row in loaded] == names(open_plain(":memory:"))


async def test_a_database_made_by_hand_is_opened(open_plain: OpenPlain, database: Path, driver: Driver) -> None:
    """Whoever applied schema.sql first, the library goes on with it."""
    made = open_plain(str(database))
    made.insert(idempotency_key="by hand")
    made.raw.close()
    async with Outbox(SqliteStorage(database, driver)) as outbox:
        action = await outbox.get(key="by hand")
    assert action is not None


ADD_COLUMN = Migration(2, 1, lambda connection: _run(connection, "ALTER TABLE agent_action ADD COLUMN colour TEXT"))
REBUILD = Migration(3, 3, lambda connection: _run(connection, "CREATE TABLE agent_action_extra (one INTEGER)"))


def _run(connection: Connection, sql: str) -> None:
    connection.execute(sql)


@pytest.fixture
def connection(database: Path, driver: Driver) -> Iterator[Connection]:
    """A connection of the package to a database of schema 1, with one action in it."""
    opened = driver.open(str(database), 1000, None)
    schema.migrate(opened)
    opened.execute("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', '{}')")
    yield opened
    opened.close()


VERSION = "SELECT version, readable_from FROM agent_action_schema"


def test_an_older_schema_migrates_step_by_step(connection: Connection) -> None:
    """Each step runs once, and the version tells how far it came."""
    schema.migrate(connection, [ADD_COLUMN], build=2)
    assert connection.execute(VERSION) == [(2, 1)]
    schema.migrate(connection, [ADD_COLUMN, REBUILD], build=3)
    assert connection.execute(VERSION) == [(3, 3)]
    schema.migrate(connection, [ADD_COLUMN, REBUILD], build=3)
    assert connection.execute("SELECT idempotency_key, colour FROM agent_action") == [("k", None)]


def test_a_migration_that_crashes_half_way_leaves_the_old_schema(connection: Connection) -> None:
    """All steps are one transaction: a failure in the last undoes the first."""

    def crash(running: Connection) -> None:
        running.execute("CREATE TABLE agent_action_half (one INTEGER)")
        raise RuntimeError("the process dies here")

    before = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name")
    with pytest.raises(RuntimeError, match="dies here"):
        schema.migrate(connection, [ADD_COLUMN, Migration(3, 3, crash)], build=3)
    assert not connection.in_transaction
    assert connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name") == before
    assert connection.execute(VERSION) == [(1, 1)]


def test_an_additive_migration_lets_older_builds_go_on(connection: Connection) -> None:
    """A build of schema 1 opens what an additive step made of its database, and changes nothing."""
    schema.migrate(connection, [ADD_COLUMN], build=2)
    schema.migrate(connection, [], build=1)
    assert connection.execute(VERSION) == [(2, 1)]


def test_an_additive_migration_does_not_reopen_the_door_to_older_builds(connection: Connection) -> None:
    """Once a step has shut out older builds, a later additive one does not let them in again."""
    schema.migrate(connection, [Migration(2, 2, ADD_COLUMN.apply)], build=2)
    schema.migrate(connection, [Migration(2, 2, ADD_COLUMN.apply), Migration(3, 1, REBUILD.apply)], build=3)
    assert connection.execute(VERSION) == [(3, 2)]


async def test_a_newer_schema_that_is_readable_is_opened_and_left(
    connection: Connection, database: Path, driver: Driver
) -> None:
    """readable_from decides, not the version."""
    connection.execute("UPDATE agent_action_schema SET version = 9, readable_from = 1")
    async with Outbox(SqliteStorage(database, driver)) as outbox:
        assert await outbox.get(key="k") is not None
    assert connection.execute(VERSION) == [(9, 1)]


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
async def test_a_newer_schema_that_is_not_readable_is_refused_untouched(
    open_plain: OpenPlain, database: Path, driver: Driver, mode: str
) -> None:
    """Both versions are named, and no byte of the file changes, in whichever journal mode it is."""
    newer = open_plain(str(database))
    newer.insert()
    newer("UPDATE agent_action_schema SET version = 9, readable_from = 8")
    newer(f"PRAGMA journal_mode = {mode}")
    newer.raw.close()
    before = hashlib.sha256(database.read_bytes()).digest()
    outbox = Outbox(SqliteStorage(database, driver))
    with pytest.raises(SchemaTooNew, match=r"schema 9, readable by builds of schema 8 .* this build has schema 1"):
        await outbox.open()
    assert hashlib.sha256(database.read_bytes()).digest() == before
    assert sorted(path.name for path in database.parent.iterdir()) == ["app.db"]
