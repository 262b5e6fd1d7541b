"""The simulated application's adapter, and the provider that it calls: both do what the plan's turns say."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field

from edgeoutbox.adapter import Adapter, Attempt, EndedAction, Transaction
from edgeoutbox.kinds import Delivery, Kind
from edgeoutbox.results import Abandoned, Cancelled, Defer, Done, Failed, Reread, Result, Retry, Uncertain
from edgeoutbox.states import StopReason
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.simulation.loop import NOWHERE
from edgeoutbox.testing.simulation.model import SECRET, Model
from edgeoutbox.testing.simulation.plan import OLD, KindPlan, Plan, Turn
from edgeoutbox.testing.simulation.seen import Call
from edgeoutbox.variants import Variants, one, tagged

HEARD = "INSERT INTO simulation_told (action_id) VALUES (?) ON CONFLICT (action_id) DO UPDATE SET times = times + 1"


class Plain(BaseModel):
    """A notice that every build knows."""

    notice: Literal["plain"] = "plain"
    secret: str


class Fancy(BaseModel):
    """A notice of the newer build."""

    notice: Literal["fancy"] = "fancy"
    secret: str


@cache
def variants_of(build: int) -> Variants[Any]:
    """The notices that a build decodes."""
    return one(Plain) if build == OLD else tagged(Annotated[Plain | Fancy, Field(discriminator="notice")])


@dataclass
class Provider:
    """Everything outside: it outlives every process, and knows what truly happened."""

    plan: Plan
    clock: MovableClock
    model: Model
    note: Callable[[str], None]
    judge: Callable[[Callable[[], None]], None]
    turns: Mapping[str, tuple[Turn, ...]]
    taken: Counter[str] = field(default_factory=Counter)
    travelling: set[Call] = field(default_factory=set)

    def turn(self, key: str) -> Turn:
        """What the next attempt of a key comes to."""
        turns = self.turns.get(key, ())
        self.taken[key] += 1
        return turns[self.taken[key] - 1] if self.taken[key] <= len(turns) else Turn(takes=0.1)

    def begin(self, attempt: Attempt[Any], executor: str, *, in_transaction: bool) -> Call:
        """A call is on its way, and nothing calls it back."""
        action = attempt.action
        began = self.clock.boot()
        call = Call(action.id, action.epoch, action.lane_key, executor, began, began + self.plan.window)
        self.note(f"{executor} calls for #{action.id} e{action.epoch}")
        now = self.clock.milliseconds
        self.judge(lambda: self.model.call_begins(call, now, in_transaction=in_transaction))
        self.travelling.add(call)
        return call

    def arrives(self, call: Call, seconds: float, came_to: Literal["open", "effect", "absent"]) -> None:
        """Let a call arrive some time later, whatever becomes of its caller. `open`: nobody will ever know."""

        def arrive() -> None:
            self.travelling.discard(call)
            call.came_to = came_to
            self.note(f"provider: #{call.id} e{call.epoch} {'is lost' if came_to == 'open' else came_to}")

        if seconds:
            asyncio.get_running_loop().call_later(seconds, arrive, context=NOWHERE)
        else:
            arrive()

    def look_up(self, action_id: int) -> bool | None:
        """Whether an effect is there; `None` while that cannot be told. What is found absent stays absent."""
        calls = self.model.calls.get(action_id, [])
        if any(call.came_to == "effect" for call in calls):
            return True
        if any(call in self.travelling for call in calls):
            return None
        for call in calls:
            call.came_to = "absent"
        return False


class SimulatedAdapter(Adapter[Any]):
    """Carries out one kind as its turns say. It keeps its contract: what it reports, it knows."""

    def __init__(self, kind: KindPlan, build: int, plan: Plan, provider: Provider, executor: "Executing") -> None:
        self.kind = Kind(
            kind.name,
            variants=variants_of(build),
            delivery=kind.delivery,
            lease=plan.lease,
            write_window=plan.window,
            max_attempts=plan.max_attempts,
            requires_approval=kind.requires_approval,
            concurrency=3,
        )
        self._provider = provider
        self._executor = executor

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Run one turn, and let the model know what was returned."""
        action = attempt.action
        turn = self._provider.turn(action.idempotency_key)
        self._provider.note(f"{self._executor.name} attempts #{action.id} e{action.epoch}: {turn.does}")
        result = await self._turn(attempt, turn)
        if isinstance(result, Result) and not isinstance(result, Abandoned):
            self._provider.note(
                f"{self._executor.name} returns {type(result).__name__} for #{action.id} e{action.epoch}"
            )
            if turn.does != "delivers, ignores its end":  # which may have been settled without it
                self._provider.model.returned[action.id, action.epoch] = type(result).__name__
        return result

    async def _turn(self, attempt: Attempt[Any], turn: Turn) -> Result:
        if turn.think:
            await asyncio.sleep(turn.think)
        inherited = attempt.inherited_write_at is not None
        early = (EARLY_AGAIN if inherited else EARLY).get(turn.does)
        if early is not None:
            result: Result = await early(turn)
            return result
        if self.kind.delivery is Delivery.WRITES_NOTHING:
            await asyncio.sleep(turn.takes)
            return Done()
        if inherited and self.kind.delivery is Delivery.READS_BACK:
            there = self._provider.look_up(attempt.action.id)
            if there is None:
                return Reread("cannot tell yet", wait=turn.wait)
            if there:
                return Done(read_back=True)
        await attempt.begin_write()
        return await self._call(attempt, turn)

    async def _call(self, attempt: Attempt[Any], turn: Turn) -> Result:
        await self._executor.crash_at("calling")
        call = self._provider.begin(attempt, self._executor.name, in_transaction=self._executor.in_transaction)
        self._executor.calls.append(call)
        try:
            await self._executor.crash_at("called")
            return await self._answer(attempt, call, turn)
        finally:
            call.over = True

    async def _answer(self, attempt: Attempt[Any], call: Call, turn: Turn) -> Result:
        send, late = self._provider.arrives, self.kind.write_window + turn.wait
        match turn.does:
            case "delivers":
                send(call, turn.takes / 2, "effect")
                await asyncio.sleep(turn.takes)
                return Done(readback_ref=f"ref:{call.id}")
            case "refuses" | "is busy" | "limits":
                send(call, 0, "absent")
                await asyncio.sleep(turn.takes)
                return self._proven(attempt, turn)
            case "delivers, answer lost" | "loses it":
                send(call, turn.takes / 2, "effect" if turn.does.startswith("delivers") else "open")
                await asyncio.sleep(turn.takes)
                return self._doubt(turn)
            case "delivers, no answer" | "hangs":
                send(call, turn.takes, "effect" if turn.does.startswith("delivers") else "open")
                await asyncio.Event().wait()
            case "delivers late":
                send(call, late, "effect")
                await asyncio.sleep(late + 1.0)
            case "delivers, cancelled":
                send(call, turn.takes / 2, "effect")
                await asyncio.sleep(turn.takes)
                raise asyncio.CancelledError
            case "delivers, doubts":
                send(call, turn.takes / 2, "effect")
                await asyncio.sleep(turn.takes)
                return Uncertain("no confirmation")
            case "delivers, ignores its end":
                send(call, late, "effect")
                await _whatever_happens(late + 1.0)
                return Done()
            case "delivers, babbles":
                send(call, turn.takes / 2, "effect")
                await asyncio.sleep(turn.takes)
                return cast("Result", "sent!")
        raise NotImplementedError(turn.does)

    def _proven(self, attempt: Attempt[Any], turn: Turn) -> Result:
        """This call came to nothing. That proves nothing about an earlier one, unless that was looked up."""
        if attempt.inherited_write_at is not None and self.kind.delivery is not Delivery.READS_BACK:
            return Reread("an earlier call may have been taken", wait=turn.wait)
        match turn.does:
            case "refuses":
                return Failed(StopReason.REJECTED, "refused")
            case "limits" if attempt.inherited_write_at is None:
                return Defer("rate limit", wait=turn.wait, scope="kind")
            case _:
                return Retry("busy", wait=turn.wait if turn.raises else None)

    def _doubt(self, turn: Turn) -> Result:
        if turn.raises:
            raise ConnectionError(f"reset while sending {SECRET}")
        return (Uncertain if self.kind.delivery is Delivery.AT_MOST_ONCE else Reread)("the answer was lost")


class HookedAdapter(SimulatedAdapter):
    """An adapter whose kind tells the application of each end. `fails` says how often still, by key."""

    async def ended(self, action: EndedAction, tx: Transaction) -> None:
        """Write that the end was heard of, then fail if it is to fail."""
        await tx.execute(HEARD, (action.id,))
        if self._executor.hook_fails[action.idempotency_key] > 0:
            self._executor.hook_fails[action.idempotency_key] -= 1
            raise ValueError(SECRET)


@dataclass
class Executing:
    """What an adapter knows of its process."""

    name: str
    in_transaction_now: Callable[[], bool]
    crash_at: Callable[[str], Awaitable[None]]
    hook_fails: Counter[str]
    calls: list[Call] = field(default_factory=list)

    @property
    def in_transaction(self) -> bool:
        """Whether the process has a transaction open."""
        return self.in_transaction_now()


async def _fails(_: Turn) -> Result:
    raise ValueError(f"no {SECRET} here")


async def _hangs(_: Turn) -> Result:
    await asyncio.Event().wait()
    raise NotImplementedError


async def _is_cancelled(_: Turn) -> Result:
    raise asyncio.CancelledError


def _returning(make: Callable[[Turn], Result]) -> Callable[[Turn], Any]:
    async def early(turn: Turn) -> Result:
        return make(turn)

    return early


EARLY: Mapping[str, Callable[[Turn], Any]] = {
    "fails early": _fails,
    "hangs early": _hangs,
    "is cancelled early": _is_cancelled,
    "rests": _returning(lambda turn: Retry("not yet", wait=turn.wait)),
    "defers": _returning(lambda _: Defer("later")),
    "cools": _returning(lambda turn: Defer("rate limit", wait=turn.wait, scope="kind")),
    "is down": _returning(lambda _: Defer("cannot connect", scope="kind")),
    "skips": _returning(lambda _: Cancelled(StopReason.NOT_NEEDED)),
    "gives up": _returning(lambda _: Abandoned()),
}
"""What ends an attempt before its fence."""

EARLY_AGAIN = {does: early for does, early in EARLY.items() if does not in {"rests", "skips"}}
"""The same under the fence of an earlier attempt, when only a look at the provider gives an action back."""


async def _whatever_happens(seconds: float) -> None:
    """Sleep, and swallow every cancellation."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        try:
            await asyncio.sleep(until - loop.time())
        except asyncio.CancelledError:
            continue
