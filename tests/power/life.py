"""One life of an executor on a disk that fails, from the first enqueue to the last end, and what must be true of it."""

import asyncio
import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import apsw

from edgeoutbox import ActionRequest, Adapter, Executor, Outbox, enqueue_sync, prepare
from edgeoutbox.errors import StorageError
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Enqueued
from edgeoutbox.storage.protocol import Claim, Fence, Hook, Refusal, Served, Settlement, Supersede
from edgeoutbox.storage.sqlite import checkpoints
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.committer import InlineRunner
from edgeoutbox.storage.sqlite.drivers import OnConnect, Reader
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.disk import Disk, DiskConnection, DiskDriver
from tests.power.provider import HookedProviderAdapter, Provider, ProviderAdapter
from tests.power.virtual import end_everything, run

ENOUGH = 4 * 3600.0
"""Seconds of virtual time in which a life must have come to its end: a fence that took too long is a backoff more."""
SOON = 60.0
"""Seconds in which nearly all have, and are looked at often."""


class LifeDriver(DiskDriver):
    """Reads where it is asked to, so that all that happens happens in one order. `afterwards` tampers, on purpose."""

    afterwards: Sequence[str] = ()

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
        """Open a connection, and tamper with it."""
        connection = super().open(path, busy_timeout, on_connect)
        for statement in self.afterwards:
            connection.execute(statement)
        return connection

    async def reader(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Reader:
        """Open a connection that reads in the event loop."""
        return InlineReader(self.open(path, busy_timeout, on_connect))


class InlineReader:
    """Reads in the event loop's thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one query."""
        return self._connection.execute(sql, parameters)

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass
class Answers:
    """What the storage answered as done."""

    enqueued: dict[str, set[int]] = field(default_factory=dict)
    claimed: set[tuple[int, int]] = field(default_factory=set)
    fenced: set[tuple[int, int]] = field(default_factory=set)
    settled: dict[tuple[int, int], Settlement] = field(default_factory=dict)


class WitnessedStorage(SqliteStorage):
    """Notes what is answered."""

    answers: Answers

    async def enqueue(
        self, requests: Sequence[ActionRequest], *, proposed: bool = False, supersede: Supersede | None = None
    ) -> list[Enqueued]:
        """Enqueue, and note the ids."""
        answers = await super().enqueue(requests, proposed=proposed, supersede=supersede)
        for request, answer in zip(requests, answers, strict=True):
            self.answers.enqueued.setdefault(request.idempotency_key, set()).add(answer.id)
        return answers

    async def claim(self, served: Sequence[Served], limit: int, owner: str, *, reclaim: bool = True) -> list[Claim]:
        """Claim, and note the epochs."""
        claims = await super().claim(served, limit, owner, reclaim=reclaim)
        self.answers.claimed |= {(claim.id, claim.epoch) for claim in claims}
        return claims

    async def begin_write(self, action_id: int, epoch: int, owner: str, window: int) -> Fence | Refusal:
        """Fence, and note it."""
        answer = await super().begin_write(action_id, epoch, owner, window)
        if isinstance(answer, Fence):
            self.answers.fenced.add((action_id, epoch))
        return answer

    async def settle(self, claim: Claim, settlement: Settlement, hook: Hook | None = None) -> bool:
        """Settle, and note what was recorded."""
        recorded = await super().settle(claim, settlement, hook)
        if recorded:
            self.answers.settled[claim.id, claim.epoch] = settlement
        return recorded


class Life:
    """A database, a provider and a producer, through as many sessions as there are cuts, and one more.

    `broken` names every promise that did not hold, with what was seen.
    """

    def __init__(self, folder: Path, seed: int, *, tamper: Sequence[str] = (), sector: int | None = None) -> None:
        self._draw = random.Random(f"life:{seed}")  # noqa: S311 - reproducible, not secret
        self.seed = seed
        self.clock = MovableClock(1_800_000_000.0)
        self.provider = Provider(seed)
        self.answers = Answers()
        self.broken: list[str] = []
        self.folder = folder / "disk"
        self.folder.mkdir(parents=True)
        self._copy = folder / "copy"
        self.path = self.folder / "app.db"
        self._power = asyncio.Event()
        self.disk = Disk(
            self.folder,
            seed=seed,
            sector=sector or self._draw.choice((512, 512, 4096)),
            slow=self.clock.advance,
            on_cut=lambda: self._power.set(),  # noqa: PLW0108 - each session has an event of its own
        )
        self._tamper = tamper
        self._orders = [f"order:{n}" for n in range(self._draw.randint(1, 3))]
        self._keys = [f"key:{n}" for n in range(self._draw.randint(4, 8))]
        self._checkpoint_at = self._draw.choice((20_000, 100_000, checkpoints.CHECKPOINT_AT))
        self._down_for = self._draw.choice((0.0, 3.0, 60.0))
        self.lives = False
        """Whether an executor has begun its life in this session: from then on it has to come through by itself."""
        self.refusals: Counter[str] = Counter()
        """How often somebody was told that the database could not be used, by who it was."""

    def session(self) -> bool:
        """Run until everything has ended, or the power goes; whether everything has ended."""
        state = random.getstate()
        random.seed(self.seed)
        try:
            with mock.patch.object(checkpoints, "CHECKPOINT_AT", self._checkpoint_at):
                ended: bool = run(self._session(), self.clock)
        finally:
            random.setstate(state)
        return ended

    async def _session(self) -> bool:
        self._power = asyncio.Event()
        self.lives = False
        storage = self.storage()
        work = asyncio.create_task(self._work(storage))
        power = asyncio.create_task(self._power.wait())
        await asyncio.wait({work, power}, return_when=asyncio.FIRST_COMPLETED)
        if self._power.is_set():
            await end_everything()
            await storage.close()
            return False
        power.cancel()
        try:
            return await work
        except (StorageError, apsw.Error) as error:
            self.refusals["start"] += 1
            if self.lives:
                self.broken.append(f"P9: a living executor's program ended with {error!r}")
            return False

    def storage(self) -> WitnessedStorage:
        """A storage of this database, as a new process has it."""
        driver = LifeDriver(vfs=self.disk.vfs)
        driver.afterwards = self._tamper
        storage = WitnessedStorage(self.path, driver, on_connect=self.clock.register, runner=InlineRunner)
        storage.answers = self.answers
        return storage

    def adapters(self) -> list[Adapter[Any]]:
        """What carries out the two kinds."""
        return [
            ProviderAdapter(self.provider, "mail", Delivery.AT_MOST_ONCE),
            HookedProviderAdapter(self.provider, "post", Delivery.READS_BACK),
        ]

    async def _work(self, storage: WitnessedStorage) -> bool:
        async with Outbox(storage, self.adapters()) as outbox:
            await self._patiently("table", self._make_tables)
            async with Executor(outbox, clock=self.clock, grace=1.0):
                self.lives = True
                await self._produce(outbox)
                return await self._everything_has_ended(storage)

    async def _produce(self, outbox: Outbox) -> None:
        """Enqueue everything, each key again in every session, as a producer does that was not answered."""
        half = len(self._keys) // 2
        many = [self._request(key) for key in self._keys[:half]]
        await self._patiently("enqueue_many", lambda: outbox.enqueue_many(many))
        for order in self._orders:
            await self._patiently("order", partial(self._order, order))
            await asyncio.sleep(0.02)
        for key in self._keys[half:]:
            await self._patiently("enqueue", partial(outbox.enqueue, self._request(key)))
            await asyncio.sleep(0.02)

    async def _patiently(self, who: str, ask: Callable[[], Awaitable[Any]]) -> None:
        """Ask until it is done. Whoever is refused asks again in a moment."""
        while True:
            try:
                await ask()
            except (StorageError, apsw.Error):
                if not self.disk.powered:
                    raise
                self.refusals[who] += 1
                await asyncio.sleep(0.2)
            else:
                return

    def _request(self, key: str) -> ActionRequest:
        draw = random.Random(f"{self.seed}:{key}")  # noqa: S311 - reproducible, not secret
        return ActionRequest(
            kind=draw.choice(("mail", "post")),
            idempotency_key=key,
            lane_key=draw.choice(("a", "b", "c", None)),
            payload={"text": "x" * draw.choice((10, 300, 3000))},
        )

    async def _order(self, order: str) -> None:
        """The application's own transaction: an order and its action, on a connection of its own."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR IGNORE INTO orders VALUES (?)", (order,))
            answer = enqueue_sync(self._request(order), connection)
            connection.execute("COMMIT")
        self.answers.enqueued.setdefault(order, set()).add(answer.id)

    async def _make_tables(self) -> None:
        with self._connection() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (key TEXT PRIMARY KEY)")
            connection.execute("CREATE TABLE IF NOT EXISTS heard (key TEXT)")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[apsw.Connection]:
        connection = apsw.Connection(str(self.path), vfs=self.disk.vfs)
        try:
            self.clock.register(connection)
            prepare(connection)
            for statement in self._tamper:
                connection.execute(statement)
            yield connection
        finally:
            DiskConnection(connection).close()

    async def _everything_has_ended(self, storage: SqliteStorage) -> bool:
        began = self.clock.boot()
        while (passed := self.clock.boot() - began) < ENOUGH:
            with contextlib.suppress(StorageError):
                if not sum(kind.admitted + kind.executing for kind in await storage.backlog({})):
                    return True
            await asyncio.sleep(0.25 if passed < SOON else 5.0)
        self.broken.append("P10: not everything ended")
        return True

    def fence_is_certain(self, key: str) -> None:
        """Look whether the fence of a key's action is on the disk, whatever happens next."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        self.disk.write_certain(self._copy)
        with contextlib.closing(apsw.Connection(str(self._copy / "app.db"))) as connection:
            fence = "SELECT 1 FROM agent_action WHERE idempotency_key = ? AND write_started_at IS NOT NULL"
            if not connection.execute(fence, (key,)).fetchall():
                self.broken.append(f"P7: {key} reached the provider, and its fence is not certain")

    def power_returns(self) -> None:
        """Restore what survived, and look at it before anybody else does."""
        self.disk.restore()
        self.clock.advance(self._down_for)
        self.look()

    # What must be true.

    def look(self, *, at_the_end: bool = False) -> None:
        """Compare a copy of the files with what was answered, and with what the provider saw."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.folder, self._copy, ignore=shutil.ignore_patterns("*-shm"))
        try:
            with contextlib.closing(apsw.Connection(str(self._copy / "app.db"))) as connection:
                seen = Seen(connection)
        except (apsw.CorruptError, apsw.NotADBError) as error:
            self.broken.append(f"whole: {error}")
            return
        for what in (self._whole, self._kept, self._sent, *((self._ended,) if at_the_end else ())):
            self.broken += what(seen)

    def _whole(self, seen: "Seen") -> Iterator[str]:
        if seen.integrity != ["ok"]:
            yield f"whole: {seen.integrity[:3]}"
        orders = {key for key in seen.keys if key.startswith("order:")}
        if seen.orders != orders:
            yield f"P1: the orders {sorted(seen.orders)} have the actions {sorted(orders)}"

    def _kept(self, seen: "Seen") -> Iterator[str]:
        for key, ids in self.answers.enqueued.items():
            if ids != {seen.keys.get(key)}:
                yield f"P7: {key} was enqueued as {ids}, and is {seen.keys.get(key)}"
        for claim in self.answers.claimed - seen.attempts.keys():
            yield f"P7: the claim {claim} is lost"
        for claim in self.answers.fenced:
            if claim not in seen.attempts or seen.attempts[claim].fenced is None:
                yield f"P7: the fence of {claim} is lost"
        for claim, settlement in self.answers.settled.items():
            result = seen.attempts[claim].result if claim in seen.attempts else None
            if result != settlement.result:
                yield f"P9: {claim} was settled as {settlement.result}, and its attempt says {result}"
            if settlement.state.ended and seen.states.get(claim[0]) != settlement.state:
                yield f"P9: {claim} ended {settlement.state}, and is {seen.states.get(claim[0])}"

    def _sent(self, seen: "Seen") -> Iterator[str]:
        for key, count in self.provider.sent.items():
            if count > 1:
                yield f"P8: {key} was sent {count} times"
            if count and key not in seen.keys:
                yield f"P8: {key} was sent, and nobody knows of it"
        for lane, begun in self.provider.begun.items():
            if begun != sorted(begun):
                yield f"P5: in lane {lane} attempts began as {begun}"

    def _ended(self, seen: "Seen") -> Iterator[str]:
        wanted = {*self._keys, *self._orders}
        if seen.keys.keys() != wanted:
            yield f"P9: enqueued was {sorted(wanted)}, and there is {sorted(seen.keys)}"
        for key, action in seen.keys.items():
            state, sent = seen.states[action], self.provider.sent[key]
            if (state, sent) not in {("DONE", 1), ("UNCERTAIN", 0), ("UNCERTAIN", 1)}:
                yield f"P10: {key} ended {state}, and was sent {sent} times"
        posts = [key for key in seen.keys if self._request(key).kind == "post"]
        if sorted(seen.heard) != sorted(posts):
            yield f"P9: the hook heard of {sorted(seen.heard)}, and {sorted(posts)} have ended"


class Attempted(NamedTuple):
    """What the dispatch log says of one attempt."""

    fenced: int | None
    result: str | None


class Seen:
    """What is in a database."""

    def __init__(self, connection: apsw.Connection) -> None:
        def rows(sql: str) -> list[tuple[Any, ...]]:
            with contextlib.suppress(apsw.SQLError):  # the power went before there was such a table
                return connection.execute(sql).fetchall()
            return []

        self.integrity = [row[0] for row in rows("PRAGMA integrity_check")]
        actions = rows("SELECT id, idempotency_key, state FROM agent_action")
        self.keys: dict[str, int] = {key: action for action, key, _ in actions}
        self.states: dict[int, str] = {action: state for action, _, state in actions}
        log = rows("SELECT action_id, epoch, write_started_at, result FROM agent_action_attempt")
        self.attempts = {(action, epoch): Attempted(fenced, result) for action, epoch, fenced, result in log}
        self.orders = {row[0] for row in rows("SELECT key FROM orders")}
        self.heard = [row[0] for row in rows("SELECT key FROM heard")]
