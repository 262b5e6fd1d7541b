"""The storage protocol on SQLite: which steps run in the writer's transactions, and which on the reader."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from edgeoutbox import telemetry
from edgeoutbox.errors import DatabaseUnavailable, StorageError, WrongDatabase
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action, ActionRequest, AttemptRecord, Backlog, Enqueued
from edgeoutbox.storage.protocol import (
    Claim,
    ConnectionFacts,
    Decision,
    Fence,
    Hook,
    Hooks,
    KindDeclaration,
    KindPolicy,
    Query,
    Refusal,
    Served,
    Settlement,
    Situation,
    SqliteFacts,
    Supersede,
)
from edgeoutbox.storage.sqlite import claiming, copies, due, hooks, schema, settling
from edgeoutbox.storage.sqlite.checkpoints import Checkpoints
from edgeoutbox.storage.sqlite.committer import Committer, Runner, ThreadRunner
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.drivers import (
    Driver,
    OnConnect,
    Reader,
    has_wal_reset_defect,
    require_version,
    storage_error,
)
from edgeoutbox.storage.sqlite.spelling import Connection, run, spell
from edgeoutbox.storage.sqlite.statistics import Statistics
from edgeoutbox.storage.sqlite.watch import OpenEvents, Watch, events_of_system
from edgeoutbox.storage.statements import deciding, enqueueing, executors, kinds, reading
from edgeoutbox.storage.statements.steps import Steps, take_async
from edgeoutbox.variants import Condition

T = TypeVar("T")


def create_private(path: Path) -> None:
    """Make the file, readable by its owner only, if it is not there. Raises `DatabaseUnavailable`."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise DatabaseUnavailable(
            f"the database file {path.name} cannot be created ({error.strerror}); check its folder"
        ) from None


class SqliteStorage:
    """Actions in one SQLite file. `busy_timeout` is milliseconds; the other options are for tests."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        driver: Driver,
        *,
        busy_timeout: int = 5000,
        on_connect: OnConnect | None = None,
        runner: Callable[[], Runner] = ThreadRunner,
        open_events: OpenEvents = events_of_system,
    ) -> None:
        self.path = Path(path).absolute()
        self.driver = driver
        self._busy_timeout = busy_timeout
        self._on_connect = on_connect
        self._open_events = open_events
        checkpoints = Checkpoints(self.path, driver)
        self._committer = Committer(self._open_writer, checkpoints, runner(), busy_timeout=busy_timeout)
        self._statistics = Statistics()
        self._reader: Reader | None = None
        self._reading = asyncio.Lock()
        self._watch: Watch | None = None
        self._noted: copies.Opened | None = None

    schema = None
    """SQLite has no schemas."""

    @property
    def url(self) -> str:
        """Where the actions are."""
        return f"sqlite{'+apsw' if self.driver.copy == 'apsw' else ''}:///{self.path}"

    async def open(self) -> None:
        """Connect and migrate."""
        if self._reader is not None:
            raise StorageError("this outbox is open already; open it once, and share it")
        require_version(self.driver)
        if has_wal_reset_defect(self.driver.version()):
            telemetry.event(
                logging.WARNING,
                "sqlite.affected",
                copy=self.driver.copy,
                version=".".join(map(str, self.driver.version())),
                what="this SQLite can lose rows when another connection checkpoints beside it; see that each of your "
                "own connections went through edgeoutbox.prepare() or prepare_async(), or upgrade to SQLite 3.51.3",
            )
        copies.require_same_copy(self.path, self.driver.copy)
        create_private(self.path)
        try:
            self._noted = copies.opened(self.path, self.driver.copy)
            self._committer.start()
            self._reader = await self.driver.reader(str(self.path), self._busy_timeout, self._on_connect)
            self._watch = Watch(
                self.path, lambda: self.driver.open(str(self.path), 0, self._on_connect), self._open_events
            )
        except Exception as error:
            await self.close()
            raise storage_error(error) or error from error

    def _open_writer(self) -> Connection:
        connection = self.driver.open(str(self.path), self._busy_timeout, self._on_connect)
        try:
            schema.migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Finish what was submitted and release everything."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        async with self._reading:
            if self._reader is not None:
                await self._reader.close()
                self._reader = None
        await self._committer.stop()
        if self._noted is not None:
            copies.closed(self._noted)
            self._noted = None

    async def migrate(self) -> None:
        """Bring the schema to this build's version."""
        await self._committer.submit(schema.require_schema)

    async def _write(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        return await self._committer.submit(lambda connection: run(connection, steps()), single=single)

    async def _with_hooks(self, hooks_: Hooks, operation: Callable[[Connection, Hooks], T]) -> T:
        """Run an operation that runs hooks. One that rolls everything back is left out of the next try: it is owed."""
        lost: dict[int, hooks.TransactionLost] = {}
        while True:
            spared = hooks.sparing(hooks_, lost)
            try:
                return await self._committer.submit(lambda connection: operation(connection, spared))  # noqa: B023 - awaited
            except hooks.TransactionLost as error:
                lost[error.action_id] = error

    async def _read(self, steps: Steps[T]) -> T:
        async with self._reading:
            reader = self._reader
            if reader is None:
                raise StorageError("the outbox is closed; open it with 'async with Outbox(...)'")
            try:
                return await take_async(steps, lambda statement: reader.fetch(spell(statement[0]), statement[1]))
            except Exception as error:
                raise storage_error(error) or error from error

    async def declare_kinds(self, declarations: Sequence[KindDeclaration]) -> dict[str, KindPolicy]:
        """Store what was declared and return what holds."""
        return await self._write(lambda: kinds.declare(declarations))

    async def allow(self, kind: str, delivery: Delivery | None, requires_approval: bool | None) -> KindPolicy:
        """Set a kind's guarantee on a person's word."""
        return await self._write(lambda: kinds.allow(kind, delivery, requires_approval))

    async def enqueue(
        self, requests: Sequence[ActionRequest], *, proposed: bool = False, supersede: Supersede | None = None
    ) -> list[Enqueued]:
        """Insert every request whose key is new, all in one transaction."""
        if len(requests) == 1 and supersede is None:
            request = requests[0]
            return [await self._write(lambda: enqueueing.enqueue(request, proposed=proposed), single=True)]
        every = tuple(requests)
        return await self._write(lambda: enqueueing.enqueue_many(every, proposed=proposed, supersede=supersede))

    async def claim(self, served: Sequence[Served], limit: int, owner: str, *, reclaim: bool = True) -> list[Claim]:
        """Take due heads and lost leases."""
        return await self._committer.submit_to(claiming.claim_many, (served, limit, owner, reclaim), last=True)

    async def claim_one(self, served: Served, action_id: int, owner: str) -> Claim | None:
        """Take one head, whatever its due_at."""
        return await self._write(lambda: claiming.claim_one(served, action_id, owner))

    async def begin_write(self, action_id: int, epoch: int, owner: str, window: int) -> Fence | Refusal:
        """Store the fence durably."""
        return await self._committer.submit_to(claiming.begin_writes, (action_id, epoch, owner, window))

    async def settle(self, claim: Claim, settlement: Settlement, hook: Hook | None = None) -> bool:
        """End the claim's attempt."""
        if hook is None or not settlement.state.ended:
            return await self._committer.submit_to(settling.settle_many, (claim, settlement))
        kind = claim.action.kind
        return await self._with_hooks(
            {kind: hook}, lambda connection, hooks_: settling.settle(connection, claim, settlement, hooks_[kind])
        )

    async def let_go(self, claim: Claim, settlement: Settlement) -> None:
        """Give up a settlement that the database refuses."""
        await self._write(lambda: settling.let_go(claim, settlement))

    async def reap(self, served: Sequence[Served], owner: str, hooks_: Hooks, limit: int = 100) -> list[Action]:
        """End what expired and what was lost."""
        return await self._with_hooks(
            hooks_, lambda connection, hooks_: settling.reap(connection, served, owner, hooks_, limit)
        )

    async def sweep(self, kinds_: Sequence[str], limit: int = 500) -> int:
        """Delete what has been kept long enough."""
        return await self._write(lambda: settling.sweep(kinds_, limit))

    async def decide(self, action_id: int, decision: Decision) -> Action:
        """Admit, refuse or withdraw."""
        return await self._write(lambda: deciding.decide(action_id, decision))

    async def withdraw_run(self, run_id: str, decision: Decision) -> Sequence[Action]:
        """Withdraw what of a run has not started."""
        return await self._write(lambda: deciding.withdraw_run(run_id, decision))

    async def cool_down(self, kind: str, reason: str, wait: int | None) -> int:
        """Put a kind to rest."""
        return await self._write(lambda: kinds.cool_down(kind, reason, wait))

    async def pause(self, kind: str, by: str) -> bool:
        """Stop the kind's claims."""
        return await self._write(lambda: kinds.pause(kind, by), single=True)

    async def resume(self, kind: str, *, copied: bool = False) -> bool:
        """Let the kind be claimed again."""
        return await self._write(lambda: kinds.resume(kind, copied=copied))

    async def erase(self, subject_account_id: str) -> int:
        """Delete the subject's actions."""
        return await self._write(lambda: deciding.erase(subject_account_id), single=True)

    async def forget(self, idempotency_key: str) -> bool:
        """Delete an ended action now, a live one at its end."""
        return await self._write(lambda: deciding.forget(idempotency_key))

    async def get(self, *, action_id: int | None = None, key: str | None = None) -> Action | None:
        """One action by id or key."""
        return await self._read(reading.get(action_id, key))

    async def list(self, query: Query) -> Sequence[Action]:
        """Actions that fit, newest first."""
        return await self._read(reading.listing(query))

    async def lane(self, lane_key: str) -> Sequence[Action]:
        """The open actions of a lane."""
        return await self._read(reading.lane(lane_key))

    async def attempts(self, action_id: int) -> Sequence[AttemptRecord]:
        """The dispatch log of an action."""
        return await self._read(reading.attempts(action_id))

    async def situation(self, action_id: int) -> Situation | None:
        """What decides what the action waits for."""
        return await self._read(reading.situation(action_id))

    async def backlog(self, served: Mapping[str, Condition]) -> Sequence[Backlog]:
        """What waits, by kind."""
        return await self._read(reading.backlog(served, sql_of))

    async def kinds(self) -> Mapping[str, KindPolicy]:
        """Every declared kind."""
        return await self._read(kinds.policies())

    async def next_due(self, served: Sequence[Served], owner: str) -> int | None:
        """Milliseconds until something can be done."""
        return await self._read(due.next_due(served, owner))

    async def owed_hooks(self, hooks_: Hooks, limit: int = 20) -> int:
        """Run hooks that are owed and due."""
        return await self._with_hooks(hooks_, lambda connection, hooks_: hooks.run_owed(connection, hooks_, limit))

    async def heartbeat(self, owner: str, version: str, kinds_: Mapping[str, Condition]) -> None:
        """Say that the executor is there, and see to it that its statements stay as fast as they were."""

        def beat(connection: Connection) -> None:
            self._statistics.forget(connection)
            run(connection, executors.heartbeat(owner, version, kinds_))

        await self._committer.submit(beat)

    async def leave(self, owner: str) -> None:
        """Say that the executor is gone."""
        await self._write(lambda: executors.leave(owner), single=True)

    def mark(self) -> int:
        """Where the database stands now."""
        return self._opened_watch().mark()

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until a commit after the mark."""
        return await self._opened_watch().changed(since, timeout)

    def _opened_watch(self) -> Watch:
        if self._watch is None:
            raise StorageError("the outbox is closed; open it with 'async with Outbox(...)'")
        return self._watch

    async def now(self) -> int:
        """The database's clock."""
        return await self._read(reading.clock())

    def require_connection(self, facts: ConnectionFacts) -> None:
        """Refuse a caller's connection of another database, copy of SQLite or schema."""
        if not isinstance(facts, SqliteFacts):
            raise WrongDatabase(
                f"the connection is to a Postgres database and the outbox keeps its actions in {self.path.name}; "
                "the action would not commit with your change"
            )
        copies.require_connection(self.path, self.driver.copy, facts.copy, facts.file)
        schema.require_readable(facts.version, facts.readable_from)
