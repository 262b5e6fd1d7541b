"""The storage protocol on Postgres: which steps run in transactions, and which are reads."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import psycopg

from edgeoutbox.errors import DatabaseUnavailable, StorageError, WrongDatabase
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action, ActionRequest, AttemptRecord, Backlog, Enqueued
from edgeoutbox.storage.postgres import claiming, due, hooks, schema, settling
from edgeoutbox.storage.postgres.address import address_of
from edgeoutbox.storage.postgres.committer import Committer, OutcomeUnknown
from edgeoutbox.storage.postgres.conditions import sql_of
from edgeoutbox.storage.postgres.deciding import allow, decide, declare, withdraw_run
from edgeoutbox.storage.postgres.enqueueing import enqueue_all, superseding
from edgeoutbox.storage.postgres.errors import storage_error
from edgeoutbox.storage.postgres.facts import require_readable
from edgeoutbox.storage.postgres.running import run
from edgeoutbox.storage.postgres.sessions import MOST, Sessions
from edgeoutbox.storage.postgres.watch import Watch
from edgeoutbox.storage.protocol import (
    Claim,
    ConnectionFacts,
    Decision,
    Fence,
    Hook,
    Hooks,
    KindDeclaration,
    KindPolicy,
    PostgresFacts,
    Query,
    Refusal,
    Served,
    Settlement,
    Situation,
    Supersede,
)
from edgeoutbox.storage.statements import deciding, executors, kinds, reading
from edgeoutbox.storage.statements.steps import Steps
from edgeoutbox.variants import Condition

T = TypeVar("T")

MANY = 100
"""How many requests of one caller go in a transaction of their own."""

REMEMBERED = 1024
"""How many settlements whose outcome nobody knows are remembered."""


class PostgresStorage:
    """Actions in one schema of a Postgres database. `connections` bounds how many it opens, beside one that listens."""

    def __init__(self, url: str, *, connections: int = MOST) -> None:
        self._address = address_of(url)
        self._sessions = Sessions(self._address, connections)
        self._watch = Watch(self._sessions)
        # What is enqueued goes apart from what executors do: the locks of lanes are then held for as short as can be.
        self._producing = Committer(self._sessions, self._watch.raise_mark)
        self._executing = Committer(self._sessions, self._watch.raise_mark)
        self._facts: PostgresFacts | None = None
        self._doubtful: dict[tuple[int, int], None] = {}
        self._unheard: list[Claim] = []

    @property
    def url(self) -> str:
        """Where the actions are, without the password."""
        return self._address.shown

    @property
    def schema(self) -> str | None:
        """The Postgres schema of our tables; the connection's search_path says which until the storage is open."""
        return self._sessions.schema

    async def open(self) -> None:
        """Connect and migrate."""
        if self._facts is not None:
            raise StorageError("this outbox is open already; open it once, and share it")
        self._sessions.open()
        try:
            async with self._sessions.session() as session:
                schema.require_server(session.raw.info)
                self._sessions.schema = session.schema = await schema.resolve(session)
                self._facts = await schema.migrate(session)
            self._producing.start()
            self._executing.start()
            await self._watch.open()
        except BaseException as error:
            await self.close()
            if isinstance(error, psycopg.Error):
                raise storage_error(error) or error from None
            raise

    async def close(self) -> None:
        """Finish what was submitted and release everything."""
        self._facts = None
        await self._producing.stop()
        await self._executing.stop()
        await self._watch.close()
        await self._sessions.close()

    async def migrate(self) -> None:
        """Bring the schema to this build's version."""
        try:
            async with self._sessions.session() as session:
                await schema.migrate(session)
        except psycopg.Error as error:
            raise storage_error(error) or error from None

    async def _write(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._executing.submit(steps)

    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        for again in (True, False):
            try:
                async with self._sessions.session() as session:
                    return await run(session, steps())
            except (psycopg.Error, StorageError) as error:
                # A connection may have died while nobody used it; the next is a new one.
                translated = storage_error(error)
                if not (again and isinstance(translated, DatabaseUnavailable)):
                    raise (translated or error) from None
        raise AssertionError

    async def declare_kinds(self, declarations: Sequence[KindDeclaration]) -> dict[str, KindPolicy]:
        """Store what was declared and return what holds."""
        return await self._write(lambda: declare(declarations))

    async def allow(self, kind: str, delivery: Delivery | None, requires_approval: bool | None) -> KindPolicy:
        """Set a kind's guarantee on a person's word."""
        return await self._write(lambda: allow(kind, delivery, requires_approval))

    async def enqueue(
        self, requests: Sequence[ActionRequest], *, proposed: bool = False, supersede: Supersede | None = None
    ) -> list[Enqueued]:
        """Insert every request whose key is new, all in one transaction."""
        if supersede is not None:
            return await self._producing.submit_apart(
                lambda: superseding(requests, proposed=proposed, supersede=supersede)
            )
        if len(requests) > MANY:
            return (await self._producing.submit_apart(lambda: enqueue_all([(requests, proposed)])))[0]
        return await self._producing.submit_to(enqueue_all, (requests, proposed))

    async def claim(self, served: Sequence[Served], limit: int, owner: str, *, reclaim: bool = True) -> list[Claim]:
        """Take due heads and lost leases."""
        return await self._claim(lambda: claiming.claim(served, limit, owner, reclaim=reclaim))

    async def claim_one(self, served: Served, action_id: int, owner: str) -> Claim | None:
        """Take one head, whatever its due_at."""
        claims = await self._claim(lambda: claiming.claim_one(served, action_id, owner))
        return claims[0] if claims else None

    async def _claim(self, steps: Callable[[], Steps[list[Claim]]]) -> list[Claim]:
        unheard = tuple(self._unheard)
        took: list[Claim] = []

        def taking() -> Steps[list[Claim]]:
            yield from claiming.let_go_all(unheard)
            took[:] = yield from steps()
            return list(took)

        try:
            claims = await self._write(taking)
        except OutcomeUnknown:
            # If they are held, nobody runs them; and nobody takes from an owner that lives, least of all itself.
            self._unheard += took
            raise
        self._unheard = [claim for claim in self._unheard if claim not in unheard]
        return claims

    async def begin_write(self, action_id: int, epoch: int, owner: str, window: int) -> Fence | Refusal:
        """Store the fence durably."""
        return await self._executing.submit_to(claiming.begin_writes, (action_id, epoch, owner, window))

    async def settle(self, claim: Claim, settlement: Settlement, hook: Hook | None = None) -> bool:
        """End the claim's attempt."""
        try:
            if hook is None or not settlement.state.ended:
                recorded = await self._executing.submit_to(settling.settle_many, (claim, settlement))
            else:
                recorded = await self._executing.submit_apart(lambda: settling.settle(claim, settlement, hook))
        except OutcomeUnknown:
            # Whoever asks again must not hear that somebody else ended it, if it was this.
            while len(self._doubtful) >= REMEMBERED:
                del self._doubtful[next(iter(self._doubtful))]
            self._doubtful[claim.id, claim.epoch] = None
            raise
        if not recorded and (claim.id, claim.epoch) in self._doubtful:
            recorded = await self._read(lambda: settling.was_recorded(claim, settlement))
        self._doubtful.pop((claim.id, claim.epoch), None)
        return recorded

    async def let_go(self, claim: Claim, settlement: Settlement) -> None:
        """Give up a settlement that the database refuses."""
        await self._write(lambda: settling.let_go(claim, settlement))

    async def reap(self, served: Sequence[Served], owner: str, hooks_: Hooks, limit: int = 100) -> list[Action]:
        """End what expired and what was lost."""
        return await self._executing.submit_apart(lambda: settling.reap(served, owner, hooks_, limit))

    async def sweep(self, kinds_: Sequence[str], limit: int = 500) -> int:
        """Delete what has been kept long enough."""
        return await self._executing.submit_apart(lambda: settling.sweep(kinds_, limit))

    async def decide(self, action_id: int, decision: Decision) -> Action:
        """Admit, refuse or withdraw."""
        return await self._write(lambda: decide(action_id, decision))

    async def withdraw_run(self, run_id: str, decision: Decision) -> Sequence[Action]:
        """Withdraw what of a run has not started."""
        return await self._write(lambda: withdraw_run(run_id, decision))

    async def cool_down(self, kind: str, reason: str, wait: int | None) -> int:
        """Put a kind to rest."""
        return await self._write(lambda: kinds.cool_down(kind, reason, wait))

    async def pause(self, kind: str, by: str) -> bool:
        """Stop the kind's claims."""
        return await self._write(lambda: kinds.pause(kind, by))

    async def resume(self, kind: str, *, copied: bool = False) -> bool:
        """Let the kind be claimed again."""
        return await self._write(lambda: kinds.resume(kind, copied=copied))

    async def erase(self, subject_account_id: str) -> int:
        """Delete the subject's actions."""
        return await self._executing.submit_apart(lambda: deciding.erase(subject_account_id))

    async def forget(self, idempotency_key: str) -> bool:
        """Delete an ended action now, a live one at its end."""
        return await self._write(lambda: deciding.forget(idempotency_key))

    async def get(self, *, action_id: int | None = None, key: str | None = None) -> Action | None:
        """One action by id or key."""
        return await self._read(lambda: reading.get(action_id, key))

    async def list(self, query: Query) -> Sequence[Action]:
        """Actions that fit, newest first."""
        return await self._read(lambda: reading.listing(query))

    async def lane(self, lane_key: str) -> Sequence[Action]:
        """The open actions of a lane."""
        return await self._read(lambda: reading.lane(lane_key))

    async def attempts(self, action_id: int) -> Sequence[AttemptRecord]:
        """The dispatch log of an action."""
        return await self._read(lambda: reading.attempts(action_id))

    async def situation(self, action_id: int) -> Situation | None:
        """What decides what the action waits for."""
        return await self._read(lambda: reading.situation(action_id))

    async def backlog(self, served: Mapping[str, Condition]) -> Sequence[Backlog]:
        """What waits, by kind."""
        return await self._read(lambda: reading.backlog(served, sql_of))

    async def kinds(self) -> Mapping[str, KindPolicy]:
        """Every declared kind."""
        return await self._read(kinds.policies)

    async def next_due(self, served: Sequence[Served], owner: str) -> int | None:
        """Milliseconds until something can be done."""
        return await self._read(lambda: due.next_due(served, owner))

    async def owed_hooks(self, hooks_: Hooks, limit: int = 20) -> int:
        """Run hooks that are owed and due, each in a transaction of its own."""
        ran = 0
        for kind, hook in hooks_.items():
            while ran < limit and await self._executing.submit_apart(partial(hooks.run_owed, kind, hook)):
                ran += 1
        return ran

    async def heartbeat(self, owner: str, version: str, kinds_: Mapping[str, Condition]) -> None:
        """Say that the executor is there."""
        await self._write(lambda: executors.heartbeat(owner, version, kinds_))

    async def leave(self, owner: str) -> None:
        """Say that the executor is gone."""
        await self._write(lambda: executors.leave(owner))

    def mark(self) -> int:
        """Where the database stands now."""
        self._require_open()
        return self._watch.mark()

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until a commit after the mark."""
        self._require_open()
        return await self._watch.changed(since, timeout)

    def _require_open(self) -> PostgresFacts:
        if self._facts is None:
            raise StorageError("the outbox is closed; open it with 'async with Outbox(...)'")
        return self._facts

    async def now(self) -> int:
        """The database's clock."""
        return await self._read(reading.clock)

    def require_connection(self, facts: ConnectionFacts) -> None:
        """Refuse a caller's connection of another database or schema."""
        ours = self._require_open()
        if not isinstance(facts, PostgresFacts) or facts.database != ours.database:
            raise WrongDatabase(
                f"the connection is to {'another' if isinstance(facts, PostgresFacts) else 'an SQLite'} database and "
                f"the outbox keeps its actions in {self.url}; the action would not commit with your change"
            )
        if facts.schema != ours.schema:
            raise WrongDatabase(
                f"the connection finds edgeoutbox tables in the schema {facts.schema}, and the outbox keeps its "
                f"actions in {ours.schema}; set its search_path"
            )
        require_readable(facts)
