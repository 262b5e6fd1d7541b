"""The two copies of SQLite that Python programs have: the standard library's and apsw's own."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol, TypeAlias

import aiosqlite
import apsw

from edgeoutbox.errors import (
    DatabaseBusy,
    DatabaseUnavailable,
    ForbiddenByGuard,
    NoSchema,
    StorageError,
    UnsupportedSqlite,
)
from edgeoutbox.storage.sqlite import schema
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.steps import Row

Copy: TypeAlias = Literal["stdlib", "apsw"]

MINIMUM = (3, 37, 2)

OnConnect: TypeAlias = Callable[[Any], None]
"""Called with each connection that is opened, in its thread; a test registers its own clock here."""

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA recursive_triggers = ON",
    "PRAGMA wal_autocheckpoint = 0",
    # A guard may abort a statement, so SQLite keeps what that changes; past 64 KiB it would open a file, each time.
    "PRAGMA temp_store = MEMORY",
)
"""For every connection of ours, after its busy timeout: another process may hold the lock that WAL mode needs."""


class Reader(Protocol):
    """A connection that only reads, off the event loop."""

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one query and return its rows."""

    async def close(self) -> None:
        """Close the connection and end its thread."""


class Driver(Protocol):
    """How one copy of SQLite is opened."""

    copy: Copy

    def version(self) -> tuple[int, ...]:
        """The version of this copy."""

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
        """Open a connection for the calling thread."""

    async def reader(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Reader:
        """Open a connection that reads."""


class DriverConnection:
    """A connection of either copy, in autocommit mode: transactions are statements."""

    def __init__(self, raw: sqlite3.Connection | apsw.Connection) -> None:
        self.raw = raw

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement to its end."""
        return self.raw.execute(sql, parameters).fetchall()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.raw.in_transaction

    def close(self) -> None:
        """Close the connection."""
        self.raw.close()


class StdlibDriver:
    """`sqlite://`: the copy that the application's own connections use. Reads go through aiosqlite."""

    copy: Copy = "stdlib"

    def version(self) -> tuple[int, ...]:
        """The version of the standard library's copy."""
        return sqlite3.sqlite_version_info

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
        """Open a connection for the calling thread."""
        raw = sqlite3.connect(path, isolation_level=None)
        return _prepared(DriverConnection(raw), busy_timeout, on_connect)

    async def reader(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Reader:
        """Open an aiosqlite connection that reads."""

        def connect() -> sqlite3.Connection:
            raw = sqlite3.connect(path, isolation_level=None)
            _prepared(DriverConnection(raw), busy_timeout, on_connect)
            raw.execute("PRAGMA query_only = ON")
            return raw

        return AiosqliteReader(await aiosqlite.Connection(connect, iter_chunk_size=64))


class Unshown(tuple[Any, ...]):
    """Parameters that no log shows: at DEBUG, aiosqlite writes down whatever it executes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(...)"


class AiosqliteReader:
    """Reads through aiosqlite."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._closed = threading.Event()
        threading.Thread(target=self._stop_with_main_thread, name="edgeoutbox-reader-stop", daemon=True).start()

    def _stop_with_main_thread(self) -> None:
        # aiosqlite's thread is no daemon: a program that forgets to close its outbox would never end.
        while not self._closed.wait(1.0):
            if not threading.main_thread().is_alive():
                self._connection.stop()
                return

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one query and return its rows."""
        return [tuple(row) for row in await self._connection.execute_fetchall(sql, Unshown(parameters))]

    async def close(self) -> None:
        """Close the connection and end its thread."""
        self._closed.set()
        await self._connection.close()


class ApswDriver:
    """`sqlite+apsw://`: apsw's own, newer copy, for processes of our own and applications that use apsw.

    `vfs` is the name of an apsw VFS that stands in for the operating system's, such as a test's.
    """

    copy: Copy = "apsw"

    def __init__(self, vfs: str | None = None) -> None:
        self._vfs = vfs

    def version(self) -> tuple[int, ...]:
        """The version of apsw's copy."""
        return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
        """Open a connection for the calling thread."""
        raw = apsw.Connection(path, vfs=self._vfs)
        # Else the planner looks at bound values and compiles a claim anew each time: 110 microseconds instead of 12.
        raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return _prepared(DriverConnection(raw), busy_timeout, on_connect)

    async def reader(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Reader:
        """Open a connection that reads, in a thread of its own."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="edgeoutbox-reader")

        def connect() -> Connection:
            connection = self.open(path, busy_timeout, on_connect)
            connection.execute("PRAGMA query_only = ON")
            return connection

        connection = await asyncio.get_running_loop().run_in_executor(pool, connect)
        return ApswReader(connection, pool)


class ApswReader:
    """Reads through apsw."""

    def __init__(self, connection: Connection, pool: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._pool = pool

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one query and return its rows."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._connection.execute, sql, parameters)

    async def close(self) -> None:
        """Close the connection and end its thread."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self._connection.close)
        self._pool.shutdown(wait=False)


def _prepared(connection: DriverConnection, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
    if on_connect is not None:
        on_connect(connection.raw)
    try:
        connection.execute(f"PRAGMA busy_timeout = {busy_timeout}")
        # First of all: WAL mode would already change the file of a newer build.
        schema.refuse_newer(connection)
        for pragma in PRAGMAS:
            connection.execute(pragma)
    except BaseException:
        connection.close()
        raise
    return connection


def require_version(driver: Driver) -> None:
    """Refuse a copy of SQLite that the schema cannot live in."""
    if driver.version() < MINIMUM:
        found, needed = (".".join(map(str, version)) for version in (driver.version(), MINIMUM))
        raise UnsupportedSqlite(f"SQLite {found} ({driver.copy}) is too old: {needed} or later is needed")


def has_wal_reset_defect(version: tuple[int, ...]) -> bool:
    """Whether a checkpoint of another connection can lose committed rows: SQLite before 3.51.3, unless backported."""
    backported = [(3, 44, 6), (3, 50, 7)]
    fixed = any(version[:2] == release[:2] and version >= release for release in backported)
    return version < (3, 51, 3) and not fixed


_BUSY = {5, 6}
_UNAVAILABLE = {7, 8, 10, 11, 13, 14, 15, 26}
_CONSTRAINT = 19
_NO_DATABASE = 26
_MISSING = re.compile(r"no such table: (main\.)?agent_action")


def storage_error(error: Exception) -> StorageError | None:
    """A driver's error as one of ours, or `None` when it is not a driver's. The texts hold no values."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        name = getattr(error, "sqlite_errorname", type(error).__name__)
    elif isinstance(error, apsw.Error):
        code = getattr(error, "result", 0) & 0xFF
        name = type(error).__name__
    elif isinstance(error, MemoryError):
        code, name = 7, "SQLITE_NOMEM"
    else:
        return None
    if code in _BUSY:
        return DatabaseBusy(
            "the database is locked by another connection; if your own transaction is open, give it as connection="
        )
    if code in _UNAVAILABLE:
        mend = (
            "it is not an SQLite database; name another" if code == _NO_DATABASE else "check its disk and permissions"
        )
        return DatabaseUnavailable(f"the database cannot be used now ({name}); {mend}")
    if code == _CONSTRAINT:
        return ForbiddenByGuard(str(error).removeprefix("CHECK constraint failed: "))
    if _MISSING.search(str(error)):
        return NoSchema("the database has no edgeoutbox tables; open it with Outbox once, or apply schema.sql")
    return StorageError(f"the database refused a statement ({name})")
