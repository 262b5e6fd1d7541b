"""Claim and run: the loop that takes due actions, runs their attempts side by side, and settles them."""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from edgeoutbox import telemetry
from edgeoutbox.adapter import Adapter
from edgeoutbox.clock import Clock, SystemClock
from edgeoutbox.errors import ConfigurationError, NotClaimable
from edgeoutbox.executor.drift import Drift
from edgeoutbox.executor.reports import Reports
from edgeoutbox.executor.running import Running
from edgeoutbox.executor.upkeep import Upkeep
from edgeoutbox.model import Action
from edgeoutbox.outbox import Outbox, by_kind
from edgeoutbox.storage.protocol import Claim, KindPolicy, Served
from edgeoutbox.telemetry import Metrics

T = TypeVar("T")

SLOWEST_POLL = 1.0
SHORTEST_REST = 0.05
LONGEST_REST = 60.0


class Executor:
    """Carries out the actions of its adapters' kinds, in the background of this process.

    `async with Executor(outbox):` runs it until the block ends; `await executor.run()` until it is stopped or
    cancelled. `concurrency` bounds the attempts that run at once, beside each kind's own bound. On the way out it stops
    claiming, lets attempts finish for `grace` seconds, then cancels them and records what that means. It installs no
    signal handlers.
    """

    def __init__(
        self,
        outbox: Outbox,
        adapters: Iterable[Adapter[Any]] | None = None,
        *,
        concurrency: int = 64,
        owner: str | None = None,
        grace: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self.outbox = outbox
        self.adapters = dict(outbox.adapters) if adapters is None else by_kind(adapters)
        if not self.adapters:
            raise ConfigurationError("adapters: an executor needs at least one")
        if concurrency < 1:
            raise ConfigurationError("concurrency: must be at least 1")
        # A crashed process's leases must be nobody's: so no two executors ever have the same owner.
        self.owner = f"{owner or socket.gethostname()}:{secrets.token_hex(4)}"
        self._reports = Reports()
        self._storage = outbox.storage
        self._concurrency = concurrency
        self._grace = grace
        self._clock = clock or SystemClock()
        self._drift = Drift(self._clock, max(adapter.kind.lease for adapter in self.adapters.values()))
        self._policies: dict[str, KindPolicy] = {}
        self.claiming = asyncio.Lock()
        """Held by each claim of the loop; who holds it can move a clock that nothing is measured by."""
        self._taking: set[asyncio.Task[Any]] = set()
        self._wake = asyncio.Event()
        self._listen = asyncio.Event()
        self._idle = asyncio.Event()
        self._stopping = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._body: asyncio.Task[None] | None = None
        self._running = Running(self.adapters, self._storage, self._clock, self._reports, self._wake.set)
        self._upkeep = Upkeep(self._storage, self.adapters, self.owner, self._running, self._reports, self._drift)

    @property
    def metrics(self) -> Metrics:
        """What this executor has counted."""
        return self._reports.metrics

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Declare the kinds and begin to claim. Raises `RuntimeError` the second time: an executor lives once."""
        if self._body is not None:
            raise RuntimeError("this executor has been started already; make a new one")
        await self._declare()
        await self._upkeep.arrive()
        if self._stopping.is_set():  # in the meantime
            await self._upkeep.leave()
            return
        stop_listening = self.outbox.on_change(self._wake.set)
        self._body = asyncio.create_task(self._live(), name="edgeoutbox-executor")
        self._body.add_done_callback(lambda _: stop_listening())
        self._body.add_done_callback(_say_if_it_died)

    async def _declare(self) -> None:
        if not self._policies:
            self._policies = dict(await self.outbox.declare(self.adapters.values(), carries_out=True))

    async def stop(self) -> None:
        """Stop claiming, let attempts finish for the grace period, cancel and settle the rest.

        Whoever calls it waits until all that is done.
        """
        self._stopping.set()
        self._wake.set()
        body = self._body
        if body is None or body.cancelled():
            return
        try:
            await asyncio.shield(body)
        except asyncio.CancelledError:
            if not body.done():
                self._grace = 0.0
                body.cancel()
                await asyncio.wait([body])
            raise

    async def run(self, *, until_idle: bool = False) -> None:
        """Run until `stop` is called or this task is cancelled; with `until_idle`, until nothing is due."""
        await self.start()
        body = self._body
        try:
            if body is None:
                return
            if until_idle:
                await self.until_idle()
            else:
                await asyncio.shield(body)
        finally:
            await self.stop()

    async def until_idle(self) -> None:
        """Wait until nothing is due, nothing runs, and no hook is owed that could be run now.

        What was kept long enough is swept once by then, also for programs that never live for longer.
        Raises `RuntimeError` when the executor does not run.
        """
        if self._body is None or self._body.done():
            raise RuntimeError("the executor does not run; use 'async with Executor(outbox) as executor:'")
        while True:
            await self._upkeep.once()
            self._idle.clear()
            self._wake.set()
            await self._idle.wait()
            if self._stopping.is_set() or not await self._upkeep.once():
                break
        await self._upkeep.kept.wait()

    async def run_now(self, action_id: int) -> Action:
        """Carry out one admitted head now, whatever its `due_at`, and return it after its attempt.

        It runs beside what `concurrency` allows: whoever calls this waits for it.
        Raises `NotClaimable` with the reason, and `NoSuchAction`.
        """
        if self._stopping.is_set():
            raise NotClaimable(f"this executor stops, and begins nothing more; action {action_id} stays as it is")
        await self._declare()
        action = await self.outbox.get(action_id)
        served = self.served(action.kind) if action is not None and action.kind in self.adapters else None
        taken = None if served is None else await asyncio.shield(self._taken(self._take_one(served, action_id)))
        if taken is None:
            raise NotClaimable(await self.outbox.why(action_id))
        attempt, claimed = taken
        await asyncio.shield(attempt)
        return await self.outbox.get(action_id) or claimed

    @property
    def busy(self) -> bool:
        """Whether an attempt runs."""
        return len(self._running) > 0

    def served(self, kind: str, limit: int = 1) -> Served:
        """A kind as this executor carries it out."""
        return self._upkeep.served(kind, limit)

    async def _live(self) -> None:
        upkeep = asyncio.create_task(self._upkeep.run(), name="edgeoutbox-upkeep")
        watch = asyncio.create_task(self._watch(), name="edgeoutbox-watch")
        try:
            await self._claim_until_stopped()
        finally:
            upkeep.cancel()
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # the grace may end already here
                await asyncio.gather(upkeep, watch, return_exceptions=True)
            if self._timer is not None:
                self._timer.cancel()
            while self._taking:
                with contextlib.suppress(asyncio.CancelledError):  # what is claimed must be known, to be given back
                    await asyncio.wait(set(self._taking))
            await self._running.finish(self._grace)
            await self._close_adapters()
            await self._upkeep.leave()
            self._idle.set()

    async def _close_adapters(self) -> None:
        for name, adapter in self.adapters.items():
            try:
                await adapter.aclose()
            except Exception as error:  # noqa: BLE001 - the others are closed too
                telemetry.event(logging.ERROR, "adapter.close.failed", action_kind=name, error=type(error).__name__)

    async def _claim_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self._mark = self._storage.mark()
            claims, more = await self._claim()
            # An attempt that ended while we asked may have made way for the next of its lane.
            if not (claims or self._running or self._wake.is_set()) and self._reports.storage_works:
                self._idle.set()
            if not more:
                await self._rest()

    async def _claim(self) -> tuple[list[Claim], bool]:
        """Claim for the free slots and begin; true when more may be due."""
        free = self._concurrency - self._running.executing
        served = [
            self.served(name, min(free, adapter.kind.concurrency - self._running.of_kind(name)))
            for name, adapter in self.adapters.items()
            if adapter.kind.concurrency > self._running.of_kind(name)
        ]
        if free <= 0 or not served:
            return [], False
        try:
            claims = await asyncio.shield(self._taken(self._take(served, free)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the executor looks again in a moment
            self._reports.storage(error)
            return [], False
        if claims:  # a claim that found nothing wrote nothing, and says nothing about the disk
            self._reports.storage(None)
        taken = Counter(claim.action.kind for claim in claims)
        full = any(taken[kind.kind] == kind.limit for kind in served) or len(claims) == free
        return claims, full and self._running.executing < self._concurrency

    async def _take(self, served: list[Served], limit: int) -> list[Claim]:
        async with self.claiming:
            before = self._clock.boot()
            claims = await self._storage.claim(served, limit, self.owner, reclaim=not self._drift.suspicious())
            for claim in claims:
                self._begin(claim, before)
            return claims

    async def _take_one(self, served: Served, action_id: int) -> tuple[asyncio.Task[None], Action] | None:
        before = self._clock.boot()
        claim = await self._storage.claim_one(served, action_id, self.owner)
        return None if claim is None else (self._begin(claim, before), claim.action)

    def _taken(self, claiming: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Claim in a task of its own: a claim whose answer nobody awaits would be held, and never be run."""
        task = asyncio.create_task(claiming, name="edgeoutbox-claim")
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)
        return task

    async def _rest(self) -> None:
        """Wait for a finished attempt, a commit of anybody, or the next moment at which something is due."""
        if self._wake.is_set() or self._stopping.is_set():
            return
        if self._running.executing < self._concurrency:
            if self._reports.storage_works:  # what cannot be read seems to change all the time
                self._listen.set()
            await self._set_timer()
        await self._wake.wait()
        self._listen.clear()

    async def _set_timer(self) -> None:
        """Wake when something will be due. While attempts run, a poll is cheaper than to ask for the moment."""
        wait = SLOWEST_POLL
        if not self._running and self._reports.storage_works:
            try:
                due = await self._storage.next_due([self.served(kind) for kind in self.adapters], self.owner)
            except Exception as error:  # noqa: BLE001 - the poll below looks again
                self._reports.storage(error)
            else:
                wait = LONGEST_REST if due is None else min(LONGEST_REST, max(SHORTEST_REST, due / 1000))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait, self._wake.set)

    async def _watch(self) -> None:
        while True:
            await self._listen.wait()
            if await self._storage.changed(self._mark, 60.0):
                self._listen.clear()
                self._wake.set()

    def _begin(self, claim: Claim, claimed: float) -> asyncio.Task[None]:
        self._idle.clear()
        return self._running.begin(claim, self._policies[claim.action.kind].delivery, claimed)


def _say_if_it_died(body: asyncio.Task[None]) -> None:
    error = None if body.cancelled() else body.exception()
    if error is not None:
        telemetry.event(logging.CRITICAL, "executor.died", error=type(error).__name__)
