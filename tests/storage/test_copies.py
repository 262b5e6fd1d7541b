"""One process, one file, one copy of SQLite: mixing is noticed in both directions and refused."""

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import aiosqlite
import apsw
import pytest

from edgeoutbox import MixedSqliteCopies, Outbox, enqueue_sync
from edgeoutbox.storage.sqlite import copies
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, Driver, StdlibDriver
from edgeoutbox.testing.conformance.story import a_request


@pytest.fixture
async def file(database: Path, driver: Driver) -> Path:
    """A database with the schema that nobody has open."""
    async with Outbox(SqliteStorage(database, driver)):
        pass
    return database


def other_than(driver: Driver) -> Driver:
    return StdlibDriver() if driver.copy == "apsw" else ApswDriver()


def open_plain(path: Path, driver: Driver) -> sqlite3.Connection | apsw.Connection:
    return apsw.Connection(str(path)) if driver.copy == "apsw" else sqlite3.connect(path)


async def test_an_outbox_is_not_opened_beside_the_applications_other_copy(file: Path, driver: Driver) -> None:
    """The application's own connection of the other library is noticed before the file is touched."""
    connection = open_plain(file, other_than(driver))
    connection.execute("SELECT * FROM agent_action").fetchall()
    outbox = Outbox(SqliteStorage(file, driver))
    with pytest.raises(
        MixedSqliteCopies, match="two copies of SQLite in one process silently lose each other's file locks"
    ):
        await outbox.open()
    connection.close()
    async with outbox:
        assert await outbox.get(key="k") is None


async def test_an_outbox_is_opened_beside_the_applications_same_copy(file: Path, driver: Driver) -> None:
    """One library for both is how it is meant."""
    connection = open_plain(file, driver)
    connection.execute("SELECT * FROM agent_action").fetchall()
    async with Outbox(SqliteStorage(file, driver)) as outbox:
        assert await outbox.get(key="k") is None
    connection.close()


async def test_two_outboxes_of_one_file_use_one_copy(file: Path, driver: Driver) -> None:
    """A second outbox through the other copy is refused while the first is open, and welcome afterwards."""
    first, second = SqliteStorage(file, driver), Outbox(SqliteStorage(file, other_than(driver)))
    async with Outbox(first):
        with pytest.raises(MixedSqliteCopies):
            await second.open()
    async with second:
        assert await second.get(key="k") is None


async def test_a_file_is_known_by_what_it_is_and_not_by_its_name(file: Path, driver: Driver) -> None:
    """A symbolic or hard link is the same file."""
    symbolic, hard = file.parent / "symbolic.db", file.parent / "hard.db"
    symbolic.symlink_to(file)
    hard.hardlink_to(file)
    async with Outbox(SqliteStorage(file, driver)):
        for link in (symbolic, hard):
            with pytest.raises(MixedSqliteCopies):
                await Outbox(SqliteStorage(link, other_than(driver))).open()


async def test_a_callers_connection_of_the_other_copy_is_refused(file: Path, driver: Driver) -> None:
    """Before anything runs on it: the enqueue would be the thing that loses the locks."""
    async with Outbox(SqliteStorage(file, driver)) as outbox:
        connection = open_plain(file, other_than(driver))
        with pytest.raises(MixedSqliteCopies):
            await outbox.enqueue(a_request(), connection=connection)
        with pytest.raises(MixedSqliteCopies):
            await outbox.get(key="k", connection=connection)
        with pytest.raises(MixedSqliteCopies):
            enqueue_sync(a_request(), connection)
        connection.close()
        assert await outbox.get(key="order:1:receipt") is None


async def test_an_aiosqlite_connection_is_refused_by_an_outbox_on_apsw(file: Path) -> None:
    """Since aiosqlite is the standard library's copy."""
    async with Outbox(SqliteStorage(file, ApswDriver())) as outbox, aiosqlite.connect(file) as connection:
        with pytest.raises(MixedSqliteCopies):
            await outbox.enqueue(a_request(), connection=connection)


async def test_enqueue_sync_needs_no_outbox_and_then_knows_of_none(file: Path, driver: Driver) -> None:
    """Without an open outbox either copy may be used: there is nothing to mix with."""
    for one in (driver, other_than(driver)):
        connection = open_plain(file, one)
        enqueue_sync(a_request(f"k:{one.copy}"), connection)
        if isinstance(connection, sqlite3.Connection):
            connection.commit()
        connection.close()
    async with Outbox(SqliteStorage(file, driver)) as outbox:
        assert [await outbox.get(key=f"k:{copy}") is not None for copy in ("stdlib", "apsw")] == [True, True]


async def test_an_outbox_that_was_closed_twice_is_counted_once(file: Path, driver: Driver) -> None:
    """Closing again does not make a later mixture invisible."""
    outbox = Outbox(SqliteStorage(file, driver))
    await outbox.open()
    await outbox.close()
    await outbox.close()
    async with Outbox(SqliteStorage(file, driver)):
        connection = open_plain(file, other_than(driver))
        with pytest.raises(MixedSqliteCopies):
            enqueue_sync(a_request(), connection)
        connection.close()


async def test_a_file_that_was_deleted_under_an_outbox_leaves_no_trace(file: Path, driver: Driver) -> None:
    """Its place on the disk may be the next file's, which has nothing to do with it."""
    before = dict(+copies._opened)
    outbox = Outbox(SqliteStorage(file, driver))
    await outbox.open()
    for path in file.parent.iterdir():
        path.unlink()
    await outbox.close()
    assert dict(+copies._opened) == before


async def test_an_outbox_that_could_not_be_opened_is_not_counted(file: Path, driver: Driver) -> None:
    """A refusal leaves nothing behind that would refuse the next one."""
    connection = open_plain(file, driver)
    with pytest.raises(MixedSqliteCopies):
        await Outbox(SqliteStorage(file, other_than(driver))).open()
    async with Outbox(SqliteStorage(file, driver)) as outbox:
        assert await outbox.get(key="k") is None
    connection.close()


PROGRAM = textwrap.dedent(
    """
    import asyncio, sqlite3, sys
    import apsw
    from edgeoutbox import ActionRequest, MixedSqliteCopies, Outbox

    scheme, path, first = sys.argv[1:]

    async def main():
        if first == "application":
            application = apsw.Connection(path) if scheme == "sqlite" else sqlite3.connect(path)
            application.execute("SELECT 1 FROM sqlite_master").fetchall()
        outbox = Outbox(f"{scheme}:///{path}")
        await outbox.open()
        application = apsw.Connection(path) if scheme == "sqlite" else sqlite3.connect(path)
        application.execute("BEGIN IMMEDIATE")
        try:
            await outbox.enqueue(ActionRequest(kind="email", idempotency_key="k", payload={}), connection=application)
        finally:
            application.close()
            await outbox.close()

    try:
        asyncio.run(main())
    except MixedSqliteCopies as error:
        print(error)
        sys.exit(3)
    """
)


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
@pytest.mark.parametrize("first", ["application", "outbox"])
def test_a_program_that_mixes_copies_is_told_so(file: Path, scheme: str, first: str) -> None:
    """A whole program, in a process of its own: whichever side comes first, nothing is enqueued and it is explained."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", PROGRAM, scheme, str(file), first],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "Open the outbox with sqlite" in done.stdout
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT COUNT(*) FROM agent_action").fetchone() == (0,)
    connection.close()


async def test_looking_for_the_other_copy_opens_no_file(
    file: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even an open and a close of the file in this process would drop its locks."""
    opened: list[str] = []
    real_open = os.open

    def noted(path: str | os.PathLike[str], *rest: Any, **named: Any) -> int:
        opened.append(str(path))
        return real_open(path, *rest, **named)

    monkeypatch.setattr(os, "open", noted)
    copies.require_same_copy(file, driver.copy)
    assert str(file) not in opened
