"""A provider that counts what reaches it, the adapters that call it, and what they saw."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from edgeoutbox import Adapter, Attempt, Defer, Done, EndedAction, Kind, Reread, Result, Retry, Transaction
from edgeoutbox.kinds import Delivery
from edgeoutbox.testing import ScriptedPayload
from edgeoutbox.variants import one

WAYS = ("accepts",) * 6 + ("refuses", "refuses", "loses", "defers")
"""What becomes of an attempt: mostly it is accepted; it may be refused, its answer may be lost, or it has to wait."""


class Provider:
    """Counts the calls that began and were not refused: each may be an effect. `on_call` hears of each call."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sent: Counter[str] = Counter()
        self.calls = 0
        self.begun: dict[str, list[int]] = {}
        """The actions of each lane whose attempts began, in that order."""
        self.on_call: Callable[[str], None] = lambda _: None

    def way(self, attempt: Attempt[Any]) -> tuple[str, float]:
        """What becomes of an attempt, and the seconds that each of its steps takes."""
        draw = random.Random(f"{self.seed}:{attempt.action.idempotency_key}:{attempt.action.epoch}")  # noqa: S311
        return draw.choice(WAYS), draw.choice((0.0, 0.0, 0.01, 0.1))

    def begins(self, attempt: Attempt[Any]) -> None:
        """Note that an attempt began."""
        lane = attempt.action.lane_key or f"alone:{attempt.action.id}"
        self.begun.setdefault(lane, []).append(attempt.action.id)

    def reached(self, key: str) -> None:
        """A call that may have an effect."""
        self.sent[key] += 1
        self.calls += 1
        self.on_call(key)

    def refused(self, key: str) -> None:
        """The call is answered, and proven to have no effect."""
        self.sent[key] -= 1


class ProviderAdapter(Adapter[ScriptedPayload]):
    """Carries out one kind at the provider."""

    def __init__(self, provider: Provider, kind: str, delivery: Delivery) -> None:
        self.kind = Kind(kind, variants=one(ScriptedPayload), delivery=delivery, lease=5.0, write_window=2.0)
        self.provider = provider

    async def execute(self, attempt: Attempt[ScriptedPayload]) -> Result:
        """Read back what may be there, else call the provider once."""
        key = attempt.action.idempotency_key
        way, step = self.provider.way(attempt)
        self.provider.begins(attempt)
        if attempt.inherited_write_at is not None and self.provider.sent[key]:
            return Done("found", read_back=True)
        if way == "defers":
            return Defer("the provider is busy", wait=0.3)
        await asyncio.sleep(step)
        await self.write(attempt)
        await asyncio.sleep(step)
        if way == "refuses":
            self.provider.refused(key)
            return Retry("the provider refused", wait=0.2)
        if way == "loses":
            if self.kind.delivery is Delivery.READS_BACK:
                return Reread("the answer was lost", wait=0.5)
            raise ConnectionResetError
        return Done("accepted")

    async def write(self, attempt: Attempt[ScriptedPayload]) -> None:
        """The fence, and then the call."""
        await attempt.begin_write()
        self.provider.reached(attempt.action.idempotency_key)


class HookedProviderAdapter(ProviderAdapter):
    """The same, with an ended hook that writes to the database."""

    async def ended(self, action: EndedAction, tx: Transaction) -> None:
        """Note the end in a table of the application."""
        await tx.execute("INSERT INTO heard (key) VALUES (?)", (action.idempotency_key,))
