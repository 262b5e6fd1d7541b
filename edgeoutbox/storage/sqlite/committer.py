"""Group commit: one writer, one transaction for every operation that waits.

The price of a durable commit is shared by all operations that are in flight. An operation is a function of the
writer's connection; it runs inside `BEGIN IMMEDIATE` ... `COMMIT`, together with others, and is answered after the
commit. When one fails in a way that could leave something half done, the whole batch is rolled back and each
operation runs again, in a transaction of its own; so an operation may run twice and must do nothing but SQL.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from edgeoutbox import telemetry
from edgeoutbox.errors import DatabaseBusy, StorageError
from edgeoutbox.storage.sqlite.drivers import storage_error
from edgeoutbox.storage.sqlite.spelling import Connection, run
from edgeoutbox.storage.statements.steps import Steps

Item = TypeVar("Item")
T = TypeVar("T")

BATCH = 128
"""How many operations one transaction takes at most."""

TURNS = 3
"""How many turns of the event loop are collected, so that a settlement and the claim it makes way for go together."""


Many: TypeAlias = Callable[[Sequence[Any]], Steps[Sequence[Any]]]
"""A state change that one call makes for many operations at once: an item in, an answer out, for each."""


@dataclass(eq=False, slots=True)
class Operation(Generic[T]):
    """One state change: either `run`, or `many` for an `item`. `single`: one statement, which undoes itself on failure.

    The items of all operations of a batch that have the same `many` are handed to it together. A claim is `last`: it
    finds what the others enqueued and the lanes that they opened.
    """

    waiter: "asyncio.Future[T]"
    run: Callable[[Connection], T] | None = None
    single: bool = False
    many: Many | None = None
    item: Any = None
    last: bool = False
    value: Any = None
    error: Exception | None = None

    def carry_out(self, connection: Connection) -> Any:
        """Run it for itself, and return its answer."""
        if self.run is not None:
            return self.run(connection)
        [answer] = run(connection, cast("Many", self.many)([self.item]))
        return answer


Work: TypeAlias = Callable[[Sequence[Operation[Any]]], None]
"""Runs a batch, and answers it no later than during the next one; an empty batch only answers."""


class Runner(Protocol):
    """Where batches run: a thread in production, inline under a simulated event loop."""

    def start(self, open_writer: Callable[[], Work], close_writer: Callable[[], None]) -> None:
        """Call `open_writer` where the batches will run; its errors rise here."""

    def put(self, operations: Sequence[Operation[Any]]) -> None:
        """Hand over operations; those that wait are taken together."""

    async def stop(self) -> None:
        """Run what was handed over, call `close_writer`, and end."""


class ThreadRunner:
    """A daemon thread: it never keeps a process alive, and SQLite survives being killed in the middle."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Sequence[Operation[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, open_writer: Callable[[], Work], close_writer: Callable[[], None]) -> None:
        """Start the thread and wait until its connection is open."""
        opened: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def body() -> None:
            try:
                work = open_writer()
            except BaseException as error:  # noqa: BLE001 - handed to the caller of start
                opened.put(error)
                return
            opened.put(None)
            try:
                self._loop(work)
            finally:
                close_writer()

        self._thread = threading.Thread(target=body, name="edgeoutbox-writer", daemon=True)
        self._thread.start()
        error = opened.get()
        if error is not None:
            raise error

    def _loop(self, work: Work) -> None:
        while (taken := self._queue.get()) is not None:
            batch = list(taken)
            last = False
            with contextlib.suppress(queue.Empty):
                while not last and len(batch) < BATCH:
                    more = self._queue.get_nowait()
                    last = more is None
                    batch.extend(more or ())
            # While one part is committed, the event loop goes on with those that were answered before.
            for part in range(0, len(batch), BATCH):
                work(batch[part : part + BATCH])
            if last:
                break
            if self._queue.empty():
                work(())
        work(())

    def put(self, operations: Sequence[Operation[Any]]) -> None:
        """Hand over operations."""
        self._queue.put(operations)

    async def stop(self) -> None:
        """Let the thread finish what it was given."""
        self._queue.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)


class InlineRunner:
    """Runs batches where they are handed over; for a simulated event loop in one thread."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._close: Callable[[], None] | None = None

    def start(self, open_writer: Callable[[], Work], close_writer: Callable[[], None]) -> None:
        """Open the writer here."""
        self._work = open_writer()
        self._close = close_writer

    def put(self, operations: Sequence[Operation[Any]]) -> None:
        """Run the batch now."""
        if self._work is not None:
            self._work(operations)
            self._work(())

    async def stop(self) -> None:
        """Close the writer."""
        if self._close is not None:
            self._close()


class Upkeep(Protocol):
    """What the writer does for its file between batches."""

    def due(self) -> bool:
        """Whether there is something to do."""

    def run(self, connection: Connection) -> None:
        """Do it, outside of a transaction."""


class Committer:
    """The only writer of a process: it collects operations and commits them together.

    It waits at most `busy_timeout` milliseconds for the write lock, once for each batch.
    """

    def __init__(
        self, open_connection: Callable[[], Connection], upkeep: Upkeep, runner: Runner, *, busy_timeout: int
    ) -> None:
        self._open_connection = open_connection
        self._upkeep = upkeep
        self._runner = runner
        self._busy_timeout = busy_timeout
        self._connection: Connection | None = None
        self._collected: list[Operation[Any]] = []
        self._unanswered: Sequence[Operation[Any]] = ()
        self._started = False

    def start(self) -> None:
        """Open the writer's connection."""
        self._runner.start(self._open, self._close)
        self._started = True

    async def stop(self) -> None:
        """Commit what was submitted, then close."""
        if self._started:
            self._started = False
            self._hand_over()
            await self._runner.stop()

    def submit(self, run: Callable[[Connection], T], *, single: bool = False) -> "asyncio.Future[T]":
        """Run an operation in a transaction; what is returned has its value once that is committed.

        Cancelling it drops the answer, not the operation.
        """
        return self._collect(Operation(self._waiter(), run, single))

    def submit_to(
        self, many: Callable[[Sequence[Item]], Steps[Sequence[T]]], item: Item, *, last: bool = False
    ) -> "asyncio.Future[T]":
        """Like `submit`, for a change that is made for everybody who wants it at once; `last`: after the others."""
        return self._collect(Operation(self._waiter(), many=many, item=item, last=last))

    def _waiter(self) -> "asyncio.Future[Any]":
        if not self._started:
            raise StorageError("the outbox is closed; open it with 'async with Outbox(...)'")
        return asyncio.get_running_loop().create_future()

    def _collect(self, operation: Operation[T]) -> "asyncio.Future[T]":
        if not self._collected:
            loop = operation.waiter.get_loop()
            loop.call_soon(self._hand_over_in, TURNS, loop)
        self._collected.append(operation)
        return operation.waiter

    def _hand_over_in(self, turns: int, loop: asyncio.AbstractEventLoop) -> None:
        if turns > 1:
            loop.call_soon(self._hand_over_in, turns - 1, loop)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._collected:
            operations, self._collected = self._collected, []
            self._runner.put(operations)

    def _open(self) -> Work:
        self._connection = self._open_connection()
        self._connection.execute("PRAGMA busy_timeout = 0")
        return self._work

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _work(self, batch: Sequence[Operation[Any]]) -> None:
        connection = cast("Connection", self._connection)
        if batch and not self._together(connection, batch):
            self._answer()
            for operation in batch:
                self._alone(connection, operation)
        self._answer()
        self._unanswered = batch
        if self._upkeep.due():
            self._answer()
            try:
                self._upkeep.run(connection)
            except Exception as error:  # noqa: BLE001 - the writer lives on, whatever upkeep of the file fails
                telemetry.event(logging.ERROR, "storage.upkeep.failed", error=type(error).__name__)

    def _together(self, connection: Connection, batch: Sequence[Operation[Any]]) -> bool:
        """Run a batch in one transaction; false when each operation has to run alone."""
        shared: defaultdict[Many, list[Operation[Any]]] = defaultdict(list)
        last: defaultdict[Many, list[Operation[Any]]] = defaultdict(list)
        others = []
        for operation in batch:
            if operation.many is None:
                others.append(operation)
            else:
                (last if operation.last else shared)[operation.many].append(operation)
        try:
            self._begin(connection)
        except Exception as error:  # noqa: BLE001 - every operation gets the error
            for operation in batch:
                operation.error = error
            return True
        try:
            _run_shared(connection, shared)
            for operation in others:
                self._answer()
                _one_of_many(connection, operation)
            _run_shared(connection, last)
            self._answer()
            connection.execute("COMMIT")
        except Exception:  # noqa: BLE001 - each runs again alone and gets its own error
            _roll_back(connection)
            return False
        return True

    def _alone(self, connection: Connection, operation: Operation[Any]) -> None:
        operation.error = None
        try:
            self._begin(connection)
            operation.value = operation.carry_out(connection)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the operation's caller gets it
            operation.error = error
            _roll_back(connection)

    def _begin(self, connection: Connection) -> None:
        """Begin a transaction. Who waits for another process answers first what is committed already."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except Exception as error:
            if not isinstance(storage_error(error), DatabaseBusy):
                raise
            self._answer()
            connection.execute(f"PRAGMA busy_timeout = {self._busy_timeout}")
            try:
                connection.execute("BEGIN IMMEDIATE")
            finally:
                connection.execute("PRAGMA busy_timeout = 0")

    def _answer(self) -> None:
        """One call into the event loop for the whole batch."""
        batch, self._unanswered = self._unanswered, ()
        if batch:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                batch[0].waiter.get_loop().call_soon_threadsafe(_resolve, batch)


def _run_shared(connection: Connection, shared: Mapping[Many, Sequence[Operation[Any]]]) -> None:
    """Run what one call can make together."""
    for many, operations in shared.items():
        answers = run(connection, many([operation.item for operation in operations]))
        for operation, answer in zip(operations, answers, strict=True):
            operation.value = answer


def _one_of_many(connection: Connection, operation: Operation[Any]) -> None:
    """Run one operation among others; raises when it may have left something half done."""
    try:
        operation.value = operation.carry_out(connection)
    except Exception as error:
        # Disk full, I/O errors and the like end the whole transaction behind our back.
        if not (operation.single and connection.in_transaction):
            raise
        operation.error = error


def _roll_back(connection: Connection) -> None:
    if connection.in_transaction:
        # Without this the transaction would stay open; an error here leaves SQLite to roll back by itself.
        with contextlib.suppress(Exception):
            connection.execute("ROLLBACK")


def _resolve(batch: Sequence[Operation[Any]]) -> None:
    for operation in batch:
        if operation.waiter.done():
            continue
        if operation.error is None:
            operation.waiter.set_result(operation.value)
        else:
            translated = storage_error(operation.error)
            if translated is None:
                operation.waiter.set_exception(operation.error)
            else:
                translated.__cause__ = operation.error
                operation.waiter.set_exception(translated)
