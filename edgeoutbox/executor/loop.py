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
from edgeoutbox.adapter import Adapter, has_ended_hook
from edgeoutbox.clock import Clock, SystemClock
from edgeoutbox.errors import ConfigurationError, DatabaseBusy, DatabaseUnavailable, NotClaimable, StorageError
from edgeoutbox.executor.attempt import RunningAttempt
from edgeoutbox.executor.drift import Drift
from edgeoutbox.executor.upkeep import Upkeep
from edgeoutbox.model import Action
from edgeoutbox.outbox import Outbox, by_kind
from edgeoutbox.settlements import Interrupted, Interruption, Outcome, Verdict, settle
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Claim, Hook, KindPolicy, Served, Settlement
from edgeoutbox.telemetry import Metrics

T = TypeVar("T")

OVERRUN = 5.0
"""Seconds past its deadline after which an attempt is settled although its adapter still runs."""

SLOWEST_POLL = 1.0
SHORTEST_REST = 0.05
LONGEST_REST = 60.0
SETTLE_AGAIN_FIRST = 0.05
SETTLE_AGAIN_LAST = 2.0


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
        self.metrics = Metrics()
        self._storage = outbox.storage
        self._concurrency = concurrency
        self._grace = grace
        self._clock = clock or SystemClock()
        self._drift = Drift(self._clock, max(adapter.kind.lease for adapter in self.adapters.values()))
        self._policies: dict[str, KindPolicy] = {}
        self._running: dict[asyncio.Task[None], RunningAttempt] = {}
        self._busy: Counter[str] = Counter()
        self._taking: set[asyncio.Task[Any]] = set()
        self._wake = asyncio.Event()
        self._listen = asyncio.Event()
        self._idle = asyncio.Event()
        self._stopping = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._body: asyncio.Task[None] | None = None
        self._unavailable = False
        self._upkeep = Upkeep(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Declare the kinds and begin to claim."""
        await self._declare()
        await self._storage.heartbeat(self.owner, self._upkeep.version, self._upkeep.conditions)
        self._stop_listening = self.outbox.on_change(self._wake.set)
        self._body = asyncio.create_task(self._live(), name="edgeoutbox-executor")
        self._body.add_done_callback(_say_if_it_died)

    async def _declare(self) -> None:
        if not self._policies:
            self._policies = dict(await self.outbox.declare(self.adapters.values()))

    async def stop(self) -> None:
        """Stop claiming, let attempts finish for the grace period, cancel and settle the rest."""
        body, self._body = self._body, None
        if body is None:
            return
        self._stopping.set()
        self._wake.set()
        try:
            await asyncio.shield(body)
        except asyncio.CancelledError:
            if not body.done():
                self._grace = 0.0
                body.cancel()
                await asyncio.wait([body])
            raise
        finally:
            self._stop_listening()

    async def run(self, *, until_idle: bool = False) -> None:
        """Run until `stop` is called or this task is cancelled; with `until_idle`, until nothing is due."""
        await self.start()
        body = self._body
        try:
            if until_idle:
                await self.until_idle()
            elif body is not None:
                await asyncio.shield(body)
        finally:
            await self.stop()

    async def until_idle(self) -> None:
        """Wait until nothing is due, nothing runs, and no hook is owed that could be run now."""
        while True:
            await self._upkeep.once()
            self._idle.clear()
            self._wake.set()
            await self._idle.wait()
            if self._stopping.is_set() or not await self._upkeep.once():
                return

    async def run_now(self, action_id: int) -> Action:
        """Carry out one admitted head now, whatever its `due_at`, and return it after its attempt.

        Raises `NotClaimable` with the reason, and `NoSuchAction`.
        """
        await self._declare()
        action = await self.outbox.get(action_id)
        served = self.served(action.kind) if action is not None and action.kind in self.adapters else None
        taken = None if served is None else await asyncio.shield(self._taken(self._take_one(served, action_id)))
        if taken is None:
            raise NotClaimable(await self.outbox.why(action_id))
        attempt, claimed = taken
        await asyncio.shield(attempt)
        return await self.outbox.get(action_id) or claimed

    def served(self, kind: str, limit: int = 1) -> Served:
        """A kind as this executor carries it out."""
        declared = self.adapters[kind].kind
        condition = declared.variants.condition
        return Served(kind, condition, round(declared.lease * 1000), declared.max_attempts, limit)

    def hook(self, kind: str) -> Hook | None:
        """The ended hook of a kind, if its adapter has one."""
        adapter = self.adapters[kind]
        return adapter.ended if has_ended_hook(adapter) else None

    def leases_are_sure(self) -> bool:
        """Whether leases of others may be taken: no clock was set, and the machine did not sleep, one lease long."""
        return not self._drift.suspicious()

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
            await self._finish()
            await self._upkeep.leave()
            self._idle.set()

    async def _claim_until_stopped(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self._mark = self._storage.mark()
            claims, more = await self._claim()
            # An attempt that ended while we asked may have made way for the next of its lane.
            if not (claims or self._running or self._unavailable or self._wake.is_set()):
                self._idle.set()
            if not more:
                await self._rest()

    async def _claim(self) -> tuple[list[Claim], bool]:
        """Claim for the free slots and begin; true when more may be due."""
        free = self._concurrency - len(self._running)
        served = [
            self.served(name, min(free, adapter.kind.concurrency - self._busy[name]))
            for name, adapter in self.adapters.items()
            if adapter.kind.concurrency > self._busy[name]
        ]
        if free <= 0 or not served:
            return [], False
        try:
            claims = await asyncio.shield(self._taken(self._take(served, free)))
        except StorageError as error:
            self.storage_failed(error)
            return [], False
        self.storage_works()
        taken = Counter(claim.action.kind for claim in claims)
        full = any(taken[kind.kind] == kind.limit for kind in served) or len(claims) == free
        return claims, full and len(self._running) < self._concurrency

    async def _take(self, served: list[Served], limit: int) -> list[Claim]:
        before = self._clock.boot()
        claims = await self._storage.claim(served, limit, self.owner, reclaim=self.leases_are_sure())
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
        if len(self._running) < self._concurrency:
            if not self._unavailable:  # what cannot be read seems to change all the time
                self._listen.set()
            await self._set_timer()
        await self._wake.wait()
        self._listen.clear()

    async def _set_timer(self) -> None:
        """Wake when something will be due. While attempts run, a poll is cheaper than to ask for the moment."""
        wait = SLOWEST_POLL
        if not self._running and not self._unavailable:
            try:
                due = await self._storage.next_due([self.served(kind) for kind in self.adapters], self.owner)
            except StorageError as error:
                self.storage_failed(error)
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
        name = claim.action.kind
        attempt = RunningAttempt(
            claim, self.adapters[name], self._policies[name].delivery, self._storage, self._clock, claimed
        )
        task = asyncio.create_task(self._attempt(attempt))
        self._running[task] = attempt
        self._busy[name] += 1
        self._idle.clear()
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        attempt = self._running.pop(task, None)
        if attempt is not None:
            self._busy[attempt.action.kind] -= 1
        self._wake.set()

    async def _attempt(self, attempt: RunningAttempt) -> None:
        outcome = await attempt.run()
        if not attempt.settled:
            await self.settle(attempt, outcome)

    async def settle(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Record what became of an attempt, however long the database takes to accept it."""
        attempt.settled = True
        try:
            verdict = settle(outcome, attempt.facts())
        except Exception as error:  # noqa: BLE001 - a result of nonsense must not leave the action to nobody
            verdict = settle(Interrupted(Interruption.ERROR, type(error).__name__), attempt.facts())
        self._report_misuse(attempt, verdict)
        settlement = verdict.settlement
        if settlement is None:
            self.metrics.count("action.attempts", kind=attempt.action.kind, result="Abandoned", recorded="false")
            return
        hook = self.hook(attempt.action.kind) if settlement.state.ended else None
        wait = SETTLE_AGAIN_FIRST
        while True:
            try:
                recorded = await self._storage.settle(attempt.claim, settlement, hook)
            except (DatabaseBusy, DatabaseUnavailable) as error:
                self.storage_failed(error)
                await asyncio.sleep(wait)
                wait = min(SETTLE_AGAIN_LAST, wait * 2)
            except Exception as error:  # noqa: BLE001 - a hook can break more than itself; the result comes first
                telemetry.event(
                    logging.ERROR,
                    "action.settle.refused" if hook is None else "action.hook.failed",
                    action_id=attempt.action.id,
                    action_kind=attempt.action.kind,
                    result=settlement.result,
                    what=str(error) if isinstance(error, StorageError) else type(error).__name__,
                )
                if hook is None:
                    return
                hook = None  # it stays owed
            else:
                self.storage_works()
                break
        self._report(attempt, settlement, recorded=recorded)

    def _report_misuse(self, attempt: RunningAttempt, verdict: Verdict) -> None:
        if verdict.misuse is not None:
            telemetry.event(
                logging.ERROR,
                "adapter.misuse",
                action_id=attempt.action.id,
                action_kind=attempt.action.kind,
                what=verdict.misuse,
            )

    def _report(self, attempt: RunningAttempt, settlement: Settlement, *, recorded: bool) -> None:
        kind = attempt.action.kind
        result = settlement.result
        self.metrics.count("action.attempts", kind=kind, result=result, recorded=str(recorded).lower())
        if recorded and settlement.state.ended:
            self.report_end(attempt.action.id, kind, settlement.state, str(settlement.stop_reason), settlement.reason)
        if settlement.cools != "no":
            telemetry.event(logging.WARNING, "kind.cooling", action_kind=kind, reason=settlement.reason)

    def report_end(self, action_id: int, kind: str, state: State, stop_reason: str, reason: str | None) -> None:
        """Count an end, and log one line for an UNCERTAIN one."""
        self.metrics.count("action.ended", kind=kind, state=state.value, reason=stop_reason)
        if state is State.UNCERTAIN:
            telemetry.event(
                logging.WARNING,
                "action.ended.uncertain",
                action_id=action_id,
                action_kind=kind,
                stop_reason=stop_reason,
                reason=reason or "",
            )

    def storage_failed(self, error: StorageError) -> None:
        """Say once that the database does not work; the executor waits and goes on by itself."""
        if not self._unavailable:
            self._unavailable = True
            telemetry.event(logging.ERROR, "storage.unavailable", error=type(error).__name__, what=str(error))

    def storage_works(self) -> None:
        """Say that it works again."""
        if self._unavailable:
            self._unavailable = False
            telemetry.event(logging.WARNING, "storage.available")

    async def watch_over(self) -> None:
        """Fit the time limits to the boot clock, and settle attempts whose adapters ignore their cancellation."""
        for task, attempt in list(self._running.items()):
            attempt.enforce()
            if attempt.overrun() > OVERRUN and not attempt.settled:
                telemetry.event(
                    logging.ERROR,
                    "adapter.overran",
                    action_id=attempt.action.id,
                    action_kind=attempt.action.kind,
                    what="it did not end when it was cancelled; the attempt is settled without it",
                )
                await self.settle(attempt, attempt.overdue())
                self._ended(task)

    async def _finish(self) -> None:
        """Let attempts end for the grace period, then cancel them; each still settles."""
        while self._taking:
            with contextlib.suppress(asyncio.CancelledError):  # what is claimed must be known, to be given back
                await asyncio.wait(set(self._taking))
        if self._running:
            with contextlib.suppress(asyncio.CancelledError):  # whoever stops us was cancelled: the grace is over
                await asyncio.wait(list(self._running), timeout=self._grace)
        for task, attempt in self._running.items():
            if not attempt.settled:
                attempt.shutting_down = True
                task.cancel()
        if self._running:
            # Also those whose settlement the database does not take: their leases decide.
            _, left = await asyncio.wait(list(self._running), timeout=OVERRUN)
            stubborn = [attempt for task, attempt in self._running.items() if task in left and not attempt.settled]
            left |= {asyncio.create_task(self.settle(one, Interrupted(Interruption.SHUTDOWN))) for one in stubborn}
            if stubborn:
                await asyncio.wait(left, timeout=OVERRUN, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
        for adapter in self.adapters.values():
            await adapter.aclose()


def _say_if_it_died(body: asyncio.Task[None]) -> None:
    error = None if body.cancelled() else body.exception()
    if error is not None:
        telemetry.event(logging.CRITICAL, "executor.died", error=type(error).__name__)
