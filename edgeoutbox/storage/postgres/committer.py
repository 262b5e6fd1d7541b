"""Group commit: the operations that wait while a connection is busy go together, in one transaction.

The price of a durable commit, and of its round trips, is shared by all operations that are in flight; a few
transactions may be under way at once, each on a connection of its own. An operation is answered after the commit. When
one fails, the whole batch is rolled back and each operation runs again, in a transaction of its own; so an operation
may run twice and must do nothing but SQL.

A commit whose answer was lost is looked up: the server knows what became of the transaction, unless it has crashed
since.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from edgeoutbox.errors import DatabaseBusy, DatabaseUnavailable, StorageError
from edgeoutbox.storage.postgres.errors import storage_error
from edgeoutbox.storage.postgres.running import Run, run
from edgeoutbox.storage.postgres.sessions import LIFE, Session, Sessions
from edgeoutbox.storage.statements.steps import Statement, Steps

Item = TypeVar("Item")
T = TypeVar("T")

BATCH = 128
"""How many operations one transaction takes at most."""

AT_ONCE = 2
"""How many batches are under way at once."""

APART = 3
"""How many transactions that run no batch are under way at once."""

TURNS = 3
"""How many turns of the event loop are collected, so that a settlement and the claim it makes way for go together."""

YIELDING = 400
"""Milliseconds that a batch waits for a lock: less than deadlock_timeout, so that of an application's transaction and
ours that wait for each other it is ours that gives way."""

PATIENT = 5000
"""Milliseconds that an operation by itself waits for a lock."""

TRIES = 4
"""How often an operation by itself is run before its caller hears that somebody is in the way."""

CONFLICTS = frozenset({"40001", "40P01", "23505"})
"""SQLSTATEs of who was in another's way and need only try again: an old snapshot, a deadlock, an insert of the same."""

FATE_WITHIN = 10.0
"""Seconds for which the server is asked what became of a transaction."""

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

BY_INDEX = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "enable_sort", "jit")
"""What the planner is asked not to do for our own statements.

An index serves each of them. A plan that was made while the tables were small would read them from end to end, and is
kept until their next ANALYZE, however many rows come until then. Servers before 18 reckon a plan so bent as dear, and
would compile it (`jit`) for a second, each time.
"""

AT_LEAST_ON = "'on', 'remote_apply'"
"""The values of synchronous_commit that wait for every disk that 'on' waits for."""

# A fence that was answered must survive a loss of power, whatever the server, the database or the role prefers. What is
# stronger than 'on' stays.
SETTINGS = f"""
SELECT set_config('lock_timeout', CAST(CAST(? AS bigint) AS text), true), set_config('statement_timeout', '30s', true),
       set_config('idle_in_transaction_session_timeout', '30s', true),
       CASE WHEN current_setting('synchronous_commit') NOT IN ({AT_LEAST_ON})
            THEN set_config('synchronous_commit', 'on', true) END,
       {", ".join(f"set_config('{name}', 'off', true)" for name in BY_INDEX)}
"""

# A transaction that has written nothing has no id, and its commit nothing to lose.
WROTE = "SELECT CAST(pg_current_xact_id_if_assigned() AS text)"

# In which of its lives the server says so belongs into one statement: through a pooler it may crash between two.
FATE = f"SELECT pg_xact_status(CAST(CAST(? AS text) AS xid8)), ({LIFE})"

Many: TypeAlias = Callable[[Sequence[Any]], Steps[Sequence[Any]]]
"""A state change that is made for many operations at once: an item in, an answer out, for each."""

Wrote: TypeAlias = Callable[[], None]


class OutcomeUnknown(DatabaseUnavailable):
    """The connection was lost during the commit, and the server cannot be asked what became of it."""


class Operation:
    """One state change, and who waits for it. `many` and `item` say how it is made together with others."""

    def __init__(
        self, waiter: "asyncio.Future[Any]", steps: Callable[[], Steps[Any]], many: Many | None = None, item: Any = None
    ) -> None:
        self.waiter = waiter
        self.steps = steps
        self.many = many
        self.item = item

    def answer(self, value: Any) -> None:
        """Tell the caller, unless nobody waits any more."""
        if not self.waiter.done():
            self.waiter.set_result(value)

    def fail(self, error: Exception) -> None:
        """Tell the caller why not."""
        if self.waiter.done():
            return
        # Without its cause: Postgres's own text may show a row.
        self.waiter.set_exception(storage_error(error) or error)


class Committer:
    """Collects operations and commits them together. `wrote` is called after each commit that changed something."""

    def __init__(self, sessions: Sessions, wrote: Wrote) -> None:
        self._sessions = sessions
        self._wrote = wrote
        self._collected: list[Operation] = []
        self._apart = asyncio.Semaphore(APART)
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._collecting = False
        self._started = False

    def start(self) -> None:
        """Take operations."""
        self._started = True

    async def stop(self) -> None:
        """Take no more, and let what was submitted finish."""
        self._started = False
        self._hand_over()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def submit(self, steps: Callable[[], Steps[T]]) -> T:
        """Run steps in a transaction, with others, and return what they return once that is committed.

        Cancelling the caller drops the answer, not the operation.
        """
        value: T = await self._submit(Operation(self._waiter(), steps))
        return value

    async def submit_to(self, many: Callable[[Sequence[Item]], Steps[Sequence[T]]], item: Item) -> T:
        """Like `submit`, for a state change that is made for everybody who wants it at once."""
        operation = Operation(self._waiter(), lambda: _one(many, item), many, item)
        value: T = await self._submit(operation)
        return value

    async def submit_apart(self, steps: Callable[[], Steps[T]]) -> T:
        """Run steps in a transaction of their own: what they do may take long, or holds locks of an application's."""
        operation = Operation(self._waiter(), steps)
        self._spawn(self._run_apart(operation))
        value: T = await operation.waiter
        return value

    def _waiter(self) -> "asyncio.Future[Any]":
        if not self._started:
            raise StorageError("the outbox is closed; open it with 'async with Outbox(...)'")
        return asyncio.get_running_loop().create_future()

    async def _submit(self, operation: Operation) -> Any:
        self._collected.append(operation)
        self._collect()
        return await operation.waiter

    def _collect(self) -> None:
        if not self._collecting and self._under_way < AT_ONCE:
            self._collecting = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._turn, TURNS, loop)

    def _turn(self, turns: int, loop: asyncio.AbstractEventLoop) -> None:
        if turns > 1:
            loop.call_soon(self._turn, turns - 1, loop)
        else:
            self._collecting = False
            self._hand_over()

    def _hand_over(self) -> None:
        while self._collected and self._under_way < AT_ONCE:
            batch, self._collected = self._collected[:BATCH], self._collected[BATCH:]
            self._under_way += 1
            self._spawn(self._run_batch(batch))

    def _spawn(self, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(body, name="edgeoutbox-commit")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_batch(self, batch: Sequence[Operation]) -> None:
        try:
            await self._together(batch)
        finally:
            self._under_way -= 1
            if self._collected:
                self._hand_over()

    async def _together(self, batch: Sequence[Operation]) -> None:
        for again in (True, False):
            try:
                answers = await self._transaction(lambda session: _lockstep(session, batch), YIELDING)
            except OutcomeUnknown as error:
                return _fail(batch, error)
            except Exception as error:  # noqa: BLE001 - each runs again alone and gets its own error
                translated = storage_error(error)
                if isinstance(translated, DatabaseUnavailable):
                    # A connection may have died while nobody used it: the next is a new one. But a batch must not wait
                    # for the server once for each of its operations.
                    if again:
                        continue
                    return _fail(batch, error)
                if len(batch) == 1 and translated is None:
                    return _fail(batch, error)
                break
            else:
                for operation, answer in zip(batch, answers, strict=True):
                    operation.answer(answer)
                return None
        return await (self._run_apart(batch[0]) if len(batch) == 1 else self._one_by_one(batch))

    async def _one_by_one(self, batch: Sequence[Operation]) -> None:
        """Each operation in a transaction of its own; those that somebody is in the way of come last."""
        late = []
        unavailable: Exception | None = None
        for operation in _in_order(batch):
            if unavailable is not None:
                operation.fail(unavailable)
                continue
            try:
                operation.answer(await self._alone(operation, YIELDING, 1))
            except Exception as error:  # noqa: BLE001 - the operation's caller gets it
                if isinstance(error, DatabaseBusy):
                    late.append(operation)
                    continue
                operation.fail(error)
                unavailable = error if isinstance(error, DatabaseUnavailable) else None
        await asyncio.gather(*(self._run_apart(operation) for operation in late))

    async def _run_apart(self, operation: Operation) -> None:
        async with self._apart:
            try:
                operation.answer(await self._alone(operation, PATIENT, TRIES))
            except Exception as error:  # noqa: BLE001 - the operation's caller gets it
                operation.fail(error)

    async def _alone(self, operation: Operation, lock_timeout: int, tries: int) -> Any:
        lost = False
        while True:
            try:
                return await self._transaction(lambda session: _alone(session, operation), lock_timeout)
            except OutcomeUnknown:
                raise
            except Exception as error:  # noqa: BLE001 - what it was decides whether to try again
                tries -= 1
                translated = storage_error(error)
                if isinstance(translated, DatabaseUnavailable) and not lost:
                    lost = True  # once more, on a new connection
                elif tries <= 0 or getattr(error, "sqlstate", None) not in CONFLICTS:
                    raise (translated or error) from None

    async def _transaction(self, work: "Callable[[_Transaction], Awaitable[T]]", lock_timeout: int) -> T:
        """Begin, work, commit, and return what the work came to.

        Whatever is raised, nothing was changed, but for `OutcomeUnknown`.
        """
        async with self._sessions.session() as session:
            begin: list[Statement] = [(BEGIN, ()), (SETTINGS, (lock_timeout,))]
            transaction = _Transaction(session, begin)
            try:
                value = await work(transaction)
            except BaseException:
                await _roll_back(session)
                raise
            if transaction.begun:
                await self._commit(transaction)
            return value

    async def _commit(self, session: "_Transaction") -> None:
        xid = session.xid
        try:
            await session.commit()
        except Exception:
            if not session.lost:
                await _roll_back(session)
                raise
            if xid is not None and not await self._committed(xid, session.life):
                raise DatabaseUnavailable("the connection was lost before the commit; nothing was changed") from None
        if xid is not None:
            self._wrote()

    async def _committed(self, xid: str, life: str | None) -> bool:
        """What became of a transaction whose connection was lost while it committed. Raises `OutcomeUnknown`.

        What a crash took away before it was on the disk is forgotten, its id too: after a crash, what bears that id and
        is committed may be another transaction.
        """
        pause = 0.02
        try:
            async with asyncio.timeout(FATE_WITHIN):
                while True:
                    try:
                        session = await self._sessions.connect()
                        try:
                            [(fate, said_in)] = await session.execute(FATE, (xid,))
                            if fate == "committed" and said_in != life:
                                fate = None
                        finally:
                            await session.close()
                    except (psycopg.Error, StorageError):
                        fate = "in progress"  # the server is away, or starts
                    if fate in {"committed", "aborted"}:
                        return bool(fate == "committed")
                    if fate is None:
                        break
                    await asyncio.sleep(pause)
                    pause = min(1.0, pause * 2)
        except TimeoutError:
            pass
        raise OutcomeUnknown(
            "the connection was lost during the commit, and the server does not say what became of it; look again"
        )


class _Transaction(Session):
    """A session inside a transaction: it begins with the first statement, and asks with each round trip for its id."""

    def __init__(self, session: Session, begin: list[Statement]) -> None:
        super().__init__(session.raw, session.schema, prepares=session.prepares, life=session.life)
        self._begin = begin
        self.begun = False
        self.xid: str | None = None
        self.pending: list[Statement] = []

    async def together(self, statements: Sequence[Statement]) -> list[list[Any]]:
        first = [] if self.begun else self._begin
        self.begun = True
        pending, self.pending = self.pending, []
        rows = await super().together([*first, *pending, *statements, (WROTE, ())])
        self.xid = rows[-1][0][0]
        return rows[len(first) + len(pending) : -1]

    async def commit(self) -> None:
        """Run what nobody waits for, and commit."""
        await super().together([*self.pending, ("COMMIT", ())])


async def _lockstep(session: "_Transaction", batch: Sequence[Operation]) -> list[Any]:
    """Run a batch: first what is made for many at once, so that a claim finds the lanes that were opened.

    Of several operations each takes a step, and the steps go in one round trip.
    """
    answers: dict[Operation, Any] = {}
    shared: dict[Many, list[Operation]] = {}
    others: dict[Operation, Run[Any]] = {}
    for operation in batch:
        if operation.many is not None:
            shared.setdefault(operation.many, []).append(operation)
    groups = {many: Run(many([each.item for each in operations])) for many, operations in shared.items()}
    try:
        await _all(session, list(groups.values()))
        for many, operations in shared.items():
            answers.update(zip(operations, groups[many].value, strict=True))
        others.update((operation, Run(operation.steps())) for operation in batch if operation.many is None)
        await _all(session, list(others.values()))
        answers.update((operation, run_.value) for operation, run_ in others.items())
    finally:
        for run_ in (*groups.values(), *others.values()):
            run_.close()
    return [answers[operation] for operation in batch]


async def _all(session: "_Transaction", runs: Sequence[Run[Any]]) -> None:
    while True:
        wanting = [run_ for run_ in runs if not run_.done]
        if not wanting:
            break
        statements = [statement for run_ in wanting for statement in run_.wanted]
        rows = iter(await session.together(statements))
        for run_ in wanting:
            answer = [next(rows) for _ in run_.wanted]
            run_.answer(answer[-1])
            if run_.done:
                session.pending += run_.wanted


async def _alone(session: Session, operation: Operation) -> Any:
    return await run(session, operation.steps())


def _one(many: Callable[[Sequence[Item]], Steps[Sequence[T]]], item: Item) -> Steps[T]:
    [answer] = yield from many([item])
    return answer


def _in_order(batch: Sequence[Operation]) -> list[Operation]:
    return sorted(batch, key=lambda operation: operation.many is None)


def _fail(batch: Sequence[Operation], error: Exception) -> None:
    for operation in batch:
        operation.fail(error)


async def _roll_back(session: Session) -> None:
    if session.lost or session.raw.info.transaction_status == TransactionStatus.IDLE:
        return
    try:
        await session.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - a connection that cannot even roll back is given up, and the server rolls back
        await session.close()
