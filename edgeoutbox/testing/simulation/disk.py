"""The database of a simulation: one file, every connection in one thread, a disk that can be slow, full or locked."""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import apsw

from edgeoutbox.errors import StorageError
from edgeoutbox.storage.sqlite import copies, schema
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.committer import BATCH, Operation, Work
from edgeoutbox.storage.sqlite.drivers import ApswDriver, Driver, DriverConnection, OnConnect, Reader, StdlibDriver
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.steps import Row
from edgeoutbox.testing.clock import MovableClock

DRIVERS: dict[str, Callable[[], Driver]] = {"stdlib": StdlibDriver, "apsw": ApswDriver}

_FULL = 13

_TOUCHES = (
    ("agent_action", "INSERT", "NEW.id"),
    ("agent_action", "UPDATE", "NEW.id"),
    ("agent_action", "DELETE", "OLD.id"),
    ("agent_action_attempt", "INSERT", "NEW.action_id"),
    ("agent_action_attempt", "UPDATE", "NEW.action_id"),
    ("agent_action_attempt", "DELETE", "OLD.action_id"),
    ("agent_action_ended", "INSERT", "NEW.action_id"),
    ("agent_action_ended", "DELETE", "OLD.action_id"),
    ("agent_action_kind", "UPDATE", "NULL"),
    ("simulation_told", "INSERT", "NEW.action_id"),
    ("simulation_told", "UPDATE", "NEW.action_id"),
)

# The application's own tables: which actions a transaction touched, and which ends its hooks have heard of.
TABLES = (
    "CREATE TABLE simulation_touched (seq INTEGER PRIMARY KEY, action_id INTEGER)",
    "CREATE TABLE simulation_told (action_id INTEGER PRIMARY KEY, times INTEGER NOT NULL DEFAULT 1)",
    *(
        f"CREATE TRIGGER simulation_{table}_{event} AFTER {event} ON {table} BEGIN {touch}; END"
        for table, event, touched in _TOUCHES
        for touch in (f"INSERT INTO simulation_touched (action_id) VALUES ({touched})",)  # noqa: S608 - from the table above
    ),
    # Only so that one file can serve for many simulations.
    "DROP TRIGGER guard_agent_action_kind_kept",
)

BEGIN_ANEW = (
    "BEGIN IMMEDIATE",
    "DELETE FROM agent_action",
    "DELETE FROM agent_action_kind",
    "DELETE FROM agent_action_executor",
    "DELETE FROM simulation_told",
    "DELETE FROM simulation_touched",
    "UPDATE agent_action_insertion SET key_taken = 0",
    "UPDATE sqlite_sequence SET seq = 0",
    "COMMIT",
    "PRAGMA wal_checkpoint(TRUNCATE)",
)


class Machine:
    """The files of simulations that run one after the other. Leave it with `with`."""

    def __init__(self) -> None:
        memory = "/dev/shm"  # noqa: S108 - a folder in memory, where there is one; made private below
        self._folder = tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None)  # noqa: PTH112
        self._files: dict[str, File] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._folder.cleanup()

    def disk(self, driver: str, clock: MovableClock) -> "Disk":
        """An empty database, on the simulation's clock."""
        file = self._files.get(driver)
        if file is None:
            file = self._files[driver] = File(Path(self._folder.name) / f"{driver}.db", driver)
        file.begin_anew(clock)
        return Disk(file, clock)


class File:
    """A database file, and connections that are used again: to compile a statement takes longer than to run it."""

    def __init__(self, path: Path, driver: str) -> None:
        self.path = path
        self.driver = driver
        self._clock = _SharedClock()
        self._free: list[Connection] = []
        connection = self.take()
        schema.migrate(connection)
        for statement in TABLES:
            connection.execute(statement)
        self.give(connection)

    def begin_anew(self, clock: MovableClock) -> None:
        """Empty the database."""
        self._clock.of = clock
        connection = self.take()
        for statement in BEGIN_ANEW:
            connection.execute(statement)
        self.give(connection)

    def take(self) -> Connection:
        """A connection as a new one would be, but for the statements that it has compiled."""
        if self._free:
            return self._free.pop()
        return DRIVERS[self.driver]().open(str(self.path), 0, self._clock.register)

    def give(self, connection: Connection) -> None:
        """Close a connection: what it had open is rolled back."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._free.append(connection)

    def close(self) -> None:
        """Close all of them."""
        for connection in self._free:
            connection.close()
        self._free.clear()


class _SharedClock(MovableClock):
    """The clock of whichever simulation uses the file now."""

    def __init__(self) -> None:
        super().__init__()
        self.of: MovableClock = self

    def _julianday(self, *moment: object) -> float:
        return super()._julianday(*moment) if self.of is self else self.of._julianday(*moment)  # noqa: SLF001 - one of us


@dataclass
class Disk:
    """What all processes share: the file, its clock, and how the disk does. `latency` is seconds for each commit."""

    file: File
    clock: MovableClock
    latency: float = 0.0
    full: bool = False
    waiters: list["asyncio.Future[None]"] = field(default_factory=list)

    def open(self) -> "SimulatedConnection":
        """Open a connection."""
        return SimulatedConnection(self.file.take(), self)

    def written(self) -> None:
        """Tell those who watch the file."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class SimulatedEvents:
    """What inotify is to the machine. Its slow poll is left to the other timers, of which there are enough."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def wait(self, timeout: float) -> bool:
        """Wait for a commit of anybody."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._disk.waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Nothing is open."""


class SimulatedConnection:
    """A connection whose commits fail while the disk is full."""

    def __init__(self, connection: Connection, disk: Disk) -> None:
        self._connection: Connection | None = connection
        self._disk = disk

    @property
    def raw(self) -> Any:
        """The library's own connection."""
        return cast("DriverConnection", self._opened).raw

    @property
    def _opened(self) -> Connection:
        if self._connection is None:
            raise StorageError("the connection is closed")
        return self._connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement to its end."""
        if self._disk.full and sql == "COMMIT":
            raise _full(self._disk.file.driver)
        return self._opened.execute(sql, parameters)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection is not None and self._connection.in_transaction

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._disk.file.give(self._connection)
            self._connection = None


def _full(driver: str) -> Exception:
    if driver == "apsw":
        full: Any = apsw.FullError("database or disk is full")
        full.result = _FULL
        return full  # type: ignore[no-any-return]
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = _FULL
    error.sqlite_errorname = "SQLITE_FULL"
    return error


class SimulatedDriver:
    """A driver whose connections all live in the loop's thread, and that knows them, to close them in a crash."""

    def __init__(self, disk: Disk) -> None:
        self._driver = DRIVERS[disk.file.driver]()
        self._disk = disk
        self.copy = self._driver.copy
        self.connections: list[SimulatedConnection] = []

    def version(self) -> tuple[int, ...]:
        """The version of this copy."""
        return self._driver.version()

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:  # noqa: ARG002 - a driver's
        """Open a connection."""
        connection = self._disk.open()
        self.connections.append(connection)
        return connection

    async def reader(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Reader:
        """Open a connection that reads."""
        return InlineReader(self.open(path, busy_timeout, on_connect))


class InlineReader:
    """Reads in the loop's thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one query and return its rows, a turn of the loop later."""
        await asyncio.sleep(0)
        return self._connection.execute(sql, parameters)

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SimulatedRunner:
    """The writer thread's place: a batch takes the disk's time to commit, and again until it is answered.

    `before` is asked before each batch whether it will be committed, `after` what follows from it.
    """

    def __init__(self, disk: Disk, before: Callable[[], bool], after: Callable[[], bool]) -> None:
        self._disk = disk
        self._before = before
        self._after = after
        self._waiting: list[Operation[Any]] = []
        self._work: Work | None = None
        self._close: Callable[[], None] | None = None
        self.busy = False

    def start(self, open_writer: Callable[[], Work], close_writer: Callable[[], None]) -> None:
        """Open the writer."""
        self._work = open_writer()
        self._close = close_writer

    def put(self, operations: Sequence[Operation[Any]]) -> None:
        """Hand over operations."""
        self._waiting.extend(operations)
        if not self.busy:
            self.busy = True
            self._in_a_while(self._commit)

    def _commit(self) -> None:
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if self._work is None or not self._before():
            return
        self._work(batch)
        if self._after():
            self._in_a_while(self._answer)

    def _answer(self) -> None:
        if self._work is not None:
            self._work(())
        self.busy = bool(self._waiting)
        if self.busy:
            self._in_a_while(self._commit)

    def _in_a_while(self, step: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._disk.latency:
            loop.call_later(self._disk.latency, step)
        else:
            loop.call_soon(step)

    async def stop(self) -> None:
        """Finish what was handed over, and close."""
        while self.busy:  # noqa: ASYNC110 - the loop's time costs nothing
            await asyncio.sleep(0.01)
        self.abort()

    def abort(self) -> None:
        """Close the writer, whatever was handed over."""
        self.busy, self._waiting = False, []
        if self._close is not None:
            self._close()
            self._close = None


class SimulatedStorage(SqliteStorage):
    """A storage of one process of the simulation."""

    def __init__(self, disk: Disk, before: Callable[[], bool], after: Callable[[], bool]) -> None:
        self.simulated = SimulatedDriver(disk)
        self.runner = SimulatedRunner(disk, before, after)
        super().__init__(
            disk.file.path,
            self.simulated,
            busy_timeout=0,
            runner=lambda: self.runner,
            open_events=lambda _path: SimulatedEvents(disk),
        )

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction of this process is open."""
        return any(connection.in_transaction for connection in self.simulated.connections)

    def die(self) -> None:
        """Close every connection as the system does for a dead process."""
        self.runner.abort()
        for connection in self.simulated.connections:
            connection.close()
        self.simulated.connections.clear()
        if self._noted is not None:
            copies.closed(self._noted)
            self._noted = None
