"""A database that is locked, full, read-only, foreign, too old or too open: a clear error, nothing stored half."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from edgeoutbox import (
    DatabaseBusy,
    DatabaseUnavailable,
    ForbiddenByGuard,
    NoSchema,
    Outbox,
    StorageError,
    UnsupportedSqlite,
    WrongDatabase,
    enqueue_sync,
)
from edgeoutbox.errors import ConfigurationError, MixedSqliteCopies
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.protocol import Query
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, Driver, StdlibDriver, has_wal_reset_defect, storage_error
from edgeoutbox.testing.conformance.story import DONE, a_request, claim, claim_all, enqueue, everything, started
from tests.storage.tapped import TappedDriver


def plain(path: Path, driver: Driver) -> Any:
    """A connection of the same copy as the driver's, in autocommit mode."""
    return apsw.Connection(str(path)) if driver.copy == "apsw" else sqlite3.connect(path, isolation_level=None)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
async def test_p12_new_files_are_their_owners_only(database: Path, driver: Driver) -> None:
    """Database, write-ahead log and shared memory, whatever the umask."""
    before = os.umask(0)
    try:
        async with Outbox(SqliteStorage(database, driver)) as outbox:
            await outbox.enqueue(a_request())
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"app.db": 0o600, "app.db-wal": 0o600, "app.db-shm": 0o600}


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
async def test_a_file_that_exists_keeps_its_permissions(database: Path, driver: Driver) -> None:
    """The application decided about its own file."""
    database.touch(0o644)
    database.chmod(0o644)
    async with Outbox(SqliteStorage(database, driver)):
        pass
    assert stat.S_IMODE(database.stat().st_mode) == 0o644


async def test_a_folder_that_is_not_there_is_said(tmp_path: Path, driver: Driver) -> None:
    """The file is named without its path, and the reason given."""
    with pytest.raises(DatabaseUnavailable, match=r"app.db cannot be created \(No such file or directory\)"):
        await Outbox(SqliteStorage(tmp_path / "nowhere" / "app.db", driver)).open()


async def test_a_file_that_is_no_database_is_said(database: Path, driver: Driver) -> None:
    """It is refused and left as it is."""
    database.write_bytes(b"this is a diary\n" * 100)
    with pytest.raises(StorageError):
        await Outbox(SqliteStorage(database, driver)).open()
    assert database.read_bytes() == b"this is a diary\n" * 100


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write read-only files")
async def test_a_read_only_file_is_said(database: Path, driver: Driver) -> None:
    """Opening says so; nothing is changed."""
    database.touch(0o400)
    with pytest.raises(StorageError):
        await Outbox(SqliteStorage(database, driver)).open()


async def test_a_database_that_became_read_only_is_unavailable(database: Path, driver: Driver) -> None:
    """Reads go on, writes are refused as unavailable, and nothing is stored half."""
    storage = SqliteStorage(database, driver)
    await storage.open()
    await enqueue(storage, "before")
    await storage._committer.submit(lambda connection: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(DatabaseUnavailable, match="cannot be used now"):
        await storage.enqueue([a_request("during")])
    assert [action.idempotency_key for action in await storage.list(Query())] == ["before"]
    await storage.close()
    async with Outbox(SqliteStorage(database, driver)) as again:
        assert (await again.enqueue(a_request("after"))).created


@pytest.mark.parametrize(
    "url",
    [
        "mysql:///app.db",
        "app.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/app.db",
        "sqlite:///app.db?mode=ro",
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    """The answer shows how one is written."""
    with pytest.raises(ConfigurationError, match=":///path"):
        open_storage(url)


@pytest.mark.parametrize(("scheme", "copy"), [("sqlite", StdlibDriver), ("sqlite+apsw", ApswDriver)])
def test_a_url_chooses_the_driver_and_the_file(scheme: str, copy: type) -> None:
    """Three slashes are relative, four absolute, and escapes are read; the storage shows the same URL again."""
    storage = open_storage(f"{scheme}:////var/lib/my%20app.db")
    assert isinstance(storage, SqliteStorage)
    assert (storage.path, type(storage.driver)) == (Path("/var/lib/my app.db"), copy)
    relative = open_storage(f"{scheme}:///app.db")
    assert isinstance(relative, SqliteStorage)
    assert relative.path == Path.cwd() / "app.db"
    assert open_storage(relative.url).url == relative.url


# --- locked, full ----------------------------------------------------------------------------------------------------


async def test_a_locked_database_is_busy_after_the_timeout(database: Path, driver: Driver) -> None:
    """The caller waits as long as was set, gets the likely cause, and nothing is stored half."""
    storage = SqliteStorage(database, driver, busy_timeout=100)
    await storage.open()
    held = await started(storage, "executing")
    locker = plain(database, driver)
    locker.execute("BEGIN IMMEDIATE")
    before = await everything(storage)
    began = time.monotonic()
    with pytest.raises(DatabaseBusy, match="your own transaction is open, give it as connection="):
        await storage.enqueue([a_request("a"), a_request("b")])
    assert time.monotonic() - began >= 0.1
    for operation in (storage.settle(held, DONE), storage.claim([], 1, "x"), storage.begin_write(held.id, 1, "one", 0)):
        with pytest.raises(DatabaseBusy):
            await operation
    assert await everything(storage) == before
    locker.execute("ROLLBACK")
    locker.close()
    assert await storage.settle(held, DONE) is True
    await storage.close()


async def test_p9_a_full_database_takes_nothing_half_and_goes_on_when_there_is_room(
    database: Path, driver: Driver
) -> None:
    """An enqueue of many, a claim, a fence and a settle: each is refused whole, and works later."""
    storage = SqliteStorage(database, driver)
    await storage.open()
    held = await started(storage, "executing")
    await enqueue(storage, "waiting", payload={"text": "x" * 3000})

    async def limit(pages: int) -> None:
        await storage._committer.submit(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}"))

    await limit(1)  # as many as it has: not one more
    before = await everything(storage)
    with pytest.raises(DatabaseUnavailable, match="cannot be used now"):
        await storage.enqueue([a_request(f"k{n}", payload={"text": "x" * 3000}) for n in range(50)])
    assert await everything(storage) == before
    assert await storage.settle(held, DONE) is True
    await limit(100_000)
    await storage.enqueue([a_request(f"k{n}", payload={"text": "x" * 3000}) for n in range(50)])
    assert len(await claim_all(storage)) == 51
    await storage.close()


async def test_a_full_database_costs_only_the_operations_that_need_room(database: Path, driver: Driver) -> None:
    """Beside a big enqueue, which rolls the whole batch back, small changes are stored all the same."""
    storage = SqliteStorage(database, driver)
    await storage.open()
    held = await started(storage, "executing")
    await storage._committer.submit(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    big = [a_request(f"k{n}", payload={"text": "x" * 3000}) for n in range(50)]
    settled, refused = await asyncio.gather(storage.settle(held, DONE), storage.enqueue(big), return_exceptions=True)
    assert settled is True
    assert isinstance(refused, DatabaseUnavailable)
    assert [action.ended for action in await storage.list(Query())] == [True]
    await storage.close()


# --- the wrong database ----------------------------------------------------------------------------------------------


async def test_a_connection_to_another_database_is_refused(database: Path, driver: Driver, tmp_path: Path) -> None:
    """The action would not commit with the caller's change."""
    async with Outbox(SqliteStorage(database, driver)) as outbox:
        async with Outbox(SqliteStorage(tmp_path / "other.db", driver)):
            pass
        other = plain(tmp_path / "other.db", driver)
        with pytest.raises(WrongDatabase, match=r"another database open than the outbox \(app.db\)"):
            await outbox.enqueue(a_request(), connection=other)
        other.close()


async def test_a_connection_without_the_schema_is_refused(database: Path, driver: Driver, tmp_path: Path) -> None:
    """With what to do about it, also without an open outbox."""
    other = plain(tmp_path / "other.db", driver)
    with pytest.raises(NoSchema, match=r"open it with Outbox once, or apply schema\.sql"):
        enqueue_sync(a_request(), other)
    async with Outbox(SqliteStorage(database, driver)) as outbox:
        with pytest.raises(NoSchema):
            await outbox.enqueue(a_request(), connection=other)
    other.close()


@pytest.mark.parametrize("where", [":memory:", ""])
def test_a_database_without_a_file_is_refused(driver: Driver, where: str) -> None:
    """No executor could ever see its actions."""
    connection = apsw.Connection(where) if driver.copy == "apsw" else sqlite3.connect(where, isolation_level=None)
    script = (Path(__file__).parents[2] / "schema.sql").read_text(encoding="utf-8")
    if isinstance(connection, sqlite3.Connection):
        connection.executescript(script)
    else:
        connection.execute(script)
    with pytest.raises(WrongDatabase, match="has no database file open"):
        enqueue_sync(a_request(), connection)
    connection.close()


async def test_a_schema_without_its_version_is_refused(database: Path, driver: Driver) -> None:
    """A table that somebody emptied is no reason for a bare IndexError."""
    async with Outbox(SqliteStorage(database, driver)):
        pass
    connection = plain(database, driver)
    connection.execute("DELETE FROM agent_action_schema")
    with pytest.raises(NoSchema):
        enqueue_sync(a_request(), connection)
    connection.close()


# --- versions of SQLite ----------------------------------------------------------------------------------------------


async def test_an_old_sqlite_is_refused(database: Path, driver: Driver) -> None:
    """With both versions named, and before there is a file."""
    tapped = TappedDriver(driver)
    tapped.as_version = (3, 37, 1)
    with pytest.raises(
        UnsupportedSqlite, match=r"SQLite 3.37.1 \((stdlib|apsw)\) is too old: 3.37.2 or later is needed"
    ):
        await Outbox(SqliteStorage(database, tapped)).open()
    assert not database.exists()


@pytest.mark.parametrize(
    ("version", "defect"),
    [
        ((3, 37, 2), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
async def test_the_wal_reset_defect_is_warned_of(
    database: Path, driver: Driver, version: tuple[int, ...], defect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """For exactly the versions that have it, once at opening."""
    assert has_wal_reset_defect(version) is defect
    tapped = TappedDriver(driver)
    tapped.as_version = version
    async with Outbox(SqliteStorage(database, tapped)):
        pass
    assert [record.getMessage().split()[0] for record in caplog.records] == ["sqlite.affected"] * defect


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_p12_a_refusal_of_the_database_shows_no_value(storage: SqliteStorage) -> None:
    """The message is the guard's, without payload, key or address."""
    with pytest.raises(ForbiddenByGuard) as refusal:
        await storage.enqueue([a_request("alice@example.com", workspace_id=None, payload={"to": "bob@example.com"})])
    assert "example.com" not in str(refusal.value)
    assert "workspace_id" in str(refusal.value)


@pytest.mark.parametrize("path", ["stdlib", "apsw"])
def test_errors_of_others_are_not_taken_for_the_databases(path: str) -> None:
    """A mistake of ours or of the application's stays what it is."""
    assert storage_error(ValueError(path)) is None
    assert storage_error(MixedSqliteCopies(path)) is None


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
def test_a_program_that_forgets_to_close_still_ends(database: Path, scheme: str) -> None:
    """No thread of an open outbox keeps the process alive."""
    program = (
        "import asyncio, sys\n"
        "from edgeoutbox import ActionRequest, Outbox\n"
        "async def main():\n"
        "    outbox = Outbox(sys.argv[1])\n"
        "    await outbox.open()\n"
        "    await outbox.enqueue(ActionRequest(kind='email', idempotency_key='k', payload={}))\n"
        "    await outbox.get(key='k')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, f"{scheme}:///{database}"],
        check=False,
        timeout=30,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT COUNT(*) FROM agent_action").fetchone() == (1,)
    connection.close()


async def test_text_that_is_not_utf8_stalls_nobody(storage: SqliteStorage, database: Path, driver: Driver) -> None:
    """A program in another language stored Latin-1 as text: its row must not keep others from being claimed."""
    await enqueue(storage, "good")
    connection = plain(database, driver)
    connection.execute(
        "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'bad', CAST(? AS TEXT))",
        ('{"name":"Zoë"}'.encode("latin-1"),),
    )
    connection.close()
    claimed = await claim_all(storage)
    assert "good" in [held.action.idempotency_key for held in claimed]


async def test_a_claim_on_a_new_database_finds_nothing(storage: SqliteStorage) -> None:
    """An empty outbox is no error."""
    with pytest.raises(ValueError, match="not enough values"):
        await claim(storage)
