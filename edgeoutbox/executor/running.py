"""The attempts that run now: each begins under its claim, and none is left before it is settled."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from edgeoutbox.adapter import Adapter, has_ended_hook
from edgeoutbox.clock import Clock
from edgeoutbox.errors import DatabaseBusy, DatabaseUnavailable, ForbiddenByGuard, StorageError
from edgeoutbox.executor.attempt import RunningAttempt
from edgeoutbox.executor.reports import Reports
from edgeoutbox.kinds import Delivery
from edgeoutbox.settlements import Interrupted, Interruption, Outcome, Verdict, settle
from edgeoutbox.storage.protocol import Claim, Hook, Hooks, Settlement, Storage

T = TypeVar("T")

OVERRUN = 5.0
"""Seconds past its deadline after which an attempt is settled although its adapter still runs."""

SETTLE_AGAIN_FIRST = 0.05
SETTLE_AGAIN_LAST = 2.0


class Running:
    """The running attempts of one executor. `on_end` is called whenever one has made way."""

    def __init__(
        self,
        adapters: Mapping[str, Adapter[Any]],
        storage: Storage,
        clock: Clock,
        reports: Reports,
        on_end: Callable[[], None],
    ) -> None:
        self._adapters = adapters
        self._storage = storage
        self._clock = clock
        self._reports = reports
        self._on_end = on_end
        self.hooks: Hooks = {name: adapter.ended for name, adapter in adapters.items() if has_ended_hook(adapter)}
        self._attempts: dict[RunningAttempt, asyncio.Task[None]] = {}
        self._of_kind: Counter[str] = Counter()
        self._settling = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def executing(self) -> int:
        """How many adapters run. One that has ended makes way at once: its settlement commits with the next claim."""
        return len(self._attempts) - self._settling

    def of_kind(self, kind: str) -> int:
        """How many adapters of the kind run."""
        return self._of_kind[kind]

    def begin(self, claim: Claim, delivery: Delivery, claimed: float) -> asyncio.Task[None]:
        """Run the adapter under the claim; `claimed` is a moment before it, on the boot clock."""
        kind = claim.action.kind
        attempt = RunningAttempt(
            claim, self._adapters[kind], delivery, self._storage, self._clock, claimed, self._wake_at
        )
        task = asyncio.create_task(self._run(attempt), name="edgeoutbox-attempt")
        self._attempts[attempt] = task
        self._of_kind[kind] += 1
        return task

    def _make_way(self, attempt: RunningAttempt) -> None:
        if self._attempts.pop(attempt, None) is not None:
            if attempt.settled:
                self._settling -= 1
            else:
                self._of_kind[attempt.action.kind] -= 1
        self._on_end()

    async def _run(self, attempt: RunningAttempt) -> None:
        try:
            outcome = await attempt.run()
            if not attempt.settled:
                await self._settle(attempt, outcome)
        finally:
            self._make_way(attempt)

    async def _settle(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Record what became of an attempt, however long the database takes to accept it."""
        attempt.settled = True
        self._settling += 1
        self._of_kind[attempt.action.kind] -= 1
        self._on_end()
        settlement, misuse = _verdict(outcome, attempt)
        if misuse is not None:
            self._reports.trouble("adapter.misuse", attempt, what=misuse)
        if settlement is None:
            self._reports.abandoned(attempt)
            return
        hook = self.hooks.get(attempt.action.kind) if settlement.state.ended else None
        try:
            recorded: bool | None = await self._storage.settle(attempt.claim, settlement, hook)
        except Exception as error:  # noqa: BLE001 - what it means is decided where it is asked again
            recorded = await self._store(attempt, settlement, hook, error)
        else:
            self._reports.storage(None)
        if recorded is not None:
            self._reports.attempt(attempt, settlement, recorded=recorded)

    async def _store(
        self, attempt: RunningAttempt, settlement: Settlement, hook: Hook | None, failed: Exception | None
    ) -> bool | None:
        """Record what failed at first. Whether it changed the action; `None` when the database refuses its row."""
        while True:
            try:
                ask = partial(self._storage.settle, attempt.claim, settlement, hook)
                return await self._insist(attempt, ask, failed, hooked=hook is not None)
            except Exception as error:  # noqa: BLE001 - a hook can break more than itself; the result comes first
                what = str(error) if isinstance(error, StorageError) else type(error).__name__
                if hook is None:
                    self._reports.trouble("action.settle.refused", attempt, result=settlement.result, what=what)
                    await self._let_go(attempt, settlement)
                    return None
                self._reports.trouble("action.hook.failed", attempt, result=settlement.result, what=what)
                hook, failed = None, None  # it stays owed

    async def _let_go(self, attempt: RunningAttempt, settlement: Settlement) -> None:
        try:
            await self._insist(attempt, partial(self._storage.let_go, attempt.claim, settlement))
        except StorageError as error:
            self._reports.trouble("action.settle.refused", attempt, result=settlement.result, what=str(error))

    async def _insist(
        self,
        attempt: RunningAttempt,
        ask: Callable[[], Awaitable[T]],
        failed: Exception | None = None,
        *,
        hooked: bool = False,
    ) -> T:
        """Ask the database until it answers, and raise what it says against the row itself; `failed` is what it said.

        What else it says, of a right or a table that is missing, somebody mends, and the result is recorded then. But
        of a transaction with a hook in it the hook may be the cause, which is left out then.
        """
        wait = SETTLE_AGAIN_FIRST
        said = False
        while True:
            try:
                if failed is not None:
                    raise failed
                answer = await ask()
            except (DatabaseBusy, DatabaseUnavailable) as error:
                self._reports.storage(error)
            except ForbiddenByGuard:
                raise
            except StorageError as error:
                if hooked:
                    raise
                if not said:
                    self._reports.trouble("action.settle.waits", attempt, what=str(error))
                said = True
            else:
                self._reports.storage(None)
                return answer
            failed = None
            await asyncio.sleep(wait)
            wait = min(SETTLE_AGAIN_LAST, wait * 2)

    def _wake_at(self, deadline: float) -> None:
        """One timer, for the earliest deadline of all: nearly none is ever reached."""
        if deadline < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = deadline
            self._alarm = asyncio.get_running_loop().call_later(deadline - self._clock.boot(), self._enforce)

    def _enforce(self) -> None:
        """End what is past its deadline. Anew each second: a suspended machine makes the deadlines earlier."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, math.inf
        for attempt in self._attempts:
            attempt.enforce()

    async def watch_over(self) -> None:
        """Fit the alarm to the boot clock, and settle attempts whose adapters ignore their cancellation."""
        self._enforce()
        for attempt in list(self._attempts):
            if attempt.overrun() > OVERRUN and not attempt.settled:
                what = "it did not end when it was cancelled; the attempt is settled without it"
                self._reports.trouble("adapter.overran", attempt, what=what)
                await self._settle(attempt, Interrupted(Interruption.TIMEOUT))
                self._make_way(attempt)

    async def finish(self, grace: float) -> None:
        """Let attempts end for `grace` seconds, then cancel them; each still records what that means."""
        try:
            await self._finish(grace)
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    async def _finish(self, grace: float) -> None:
        if not self._attempts:
            return
        with contextlib.suppress(asyncio.CancelledError):  # whoever stops us was cancelled: the grace is over
            await asyncio.wait(list(self._attempts.values()), timeout=grace)
        for attempt, task in self._attempts.items():
            if not attempt.settled:
                attempt.shutting_down = True
                task.cancel()
        if not self._attempts:
            return
        # Also those whose settlement the database does not take: their leases decide.
        _, left = await asyncio.wait(list(self._attempts.values()), timeout=OVERRUN)
        stubborn = [attempt for attempt, task in self._attempts.items() if task in left and not attempt.settled]
        left |= {asyncio.create_task(self._settle(one, Interrupted(Interruption.SHUTDOWN))) for one in stubborn}
        if stubborn:
            await asyncio.wait(left, timeout=OVERRUN, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()


def _verdict(outcome: Outcome, attempt: RunningAttempt) -> Verdict:
    try:
        return settle(outcome, attempt.facts())
    except Exception as error:  # noqa: BLE001 - a result of nonsense must not leave the action to nobody
        return settle(Interrupted(Interruption.ERROR, type(error).__name__), attempt.facts())
