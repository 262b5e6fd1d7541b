"""An adapter that does what a test tells it, and a provider that remembers what reached it."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from edgeoutbox.adapter import Adapter, Attempt, EndedAction, Transaction
from edgeoutbox.kinds import Delivery, Kind
from edgeoutbox.results import Done, Result
from edgeoutbox.variants import Variants, one

Answer: TypeAlias = Result | BaseException | Callable[[Attempt[Any]], Awaitable[Result]]


class ScriptedPayload(BaseModel):
    """Any object: what a scripted adapter does is in its script."""

    model_config = ConfigDict(extra="allow")


@dataclass
class Step:
    """What one attempt does: fence (unless `fence` is false), reach the provider, wait for `gate`, then answer.

    `answer` is a result to return, an exception to raise, or a coroutine function of the attempt. Without a fence the
    provider is not reached.
    """

    answer: Answer = field(default_factory=Done)
    fence: bool = True
    gate: asyncio.Event | None = None
    hangs: bool = False


@dataclass(frozen=True)
class Call:
    """One attempt as the adapter saw it."""

    action_id: int
    key: str
    epoch: int
    attempt: int
    inherited: bool


class ScriptedAdapter(Adapter[ScriptedPayload]):
    """Runs the steps that a test wrote for a key, in order; what has no script is `Done`.

    `calls` holds every attempt that began, `writes` every key that reached the provider behind its fence.
    """

    def __init__(
        self,
        kind: str = "scripted",
        *,
        delivery: Delivery | str = Delivery.AT_MOST_ONCE,
        variants: Variants[Any] | None = None,
        **limits: Any,
    ) -> None:
        self.kind = Kind(kind, variants=variants or one(ScriptedPayload), delivery=delivery, **limits)
        self.calls: list[Call] = []
        self.writes: list[str] = []
        self._scripts: dict[str, deque[Step]] = defaultdict(deque)
        self._changed = asyncio.Condition()

    def on(self, key: str, *steps: Step | Answer) -> None:
        """Write the script of a key: one step, or just its answer, for each attempt."""
        self._scripts[key].extend(step if isinstance(step, Step) else Step(step) for step in steps)

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Run the next step of the action's key."""
        action = attempt.action
        key = action.idempotency_key
        step = self._scripts[key].popleft() if self._scripts[key] else Step()
        await self._note(
            self.calls, Call(action.id, key, action.epoch, action.attempt, attempt.inherited_write_at is not None)
        )
        if step.fence and self.kind.delivery is not Delivery.WRITES_NOTHING:
            await attempt.begin_write()
            await self._note(self.writes, key)
        if step.gate is not None:
            await step.gate.wait()
        if step.hangs:
            await asyncio.Event().wait()
        if isinstance(step.answer, BaseException):
            raise step.answer
        return await step.answer(attempt) if callable(step.answer) else step.answer

    async def _note(self, where: list[Any], what: Any) -> None:
        async with self._changed:
            where.append(what)
            self._changed.notify_all()

    async def wait_for_calls(self, key: str, count: int = 1, timeout: float = 10.0) -> None:
        """Wait until a key's attempts have begun this often."""
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(lambda: sum(call.key == key for call in self.calls) >= count)

    async def wait_for_writes(self, key: str, count: int = 1, timeout: float = 10.0) -> None:
        """Wait until a key has reached the provider this often."""
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(lambda: self.writes.count(key) >= count)


class HookedAdapter(ScriptedAdapter):
    """A scripted adapter with an ended hook: a coroutine function that a test gives."""

    def __init__(self, hook: Callable[[EndedAction, Transaction], Awaitable[None]], **options: Any) -> None:
        super().__init__(**options)
        self.heard: list[EndedAction] = []
        self._hook = hook

    async def ended(self, action: EndedAction, tx: Transaction) -> None:
        """Note the action and run the test's hook."""
        self.heard.append(action)
        await self._hook(action, tx)
