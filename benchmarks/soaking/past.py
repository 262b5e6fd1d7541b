"""The past: what ended a day ago, one moment after the other, so that its retention passes while the soak runs.

Retention is at least a day and time is the database's clock, so a run of minutes would sweep nothing of its own. A
database that has worked for longer sweeps, each second, what ended one retention before that second. So the database
begins with what the same work would have left a day ago: enqueued, carried out and ended by the product itself, on a
clock that stands a day back. During the run every process goes by the machine's clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.soaking.kinds import payload_of
from benchmarks.workload import DRIVERS
from edgeoutbox import ActionRequest, Attempt, Delivery, Done, Evidence, Executor, Outbox
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.testing import MovableClock, ScriptedAdapter

PREFIX = "past-"
DAY = 86_400
STEP = 1.0
_EVIDENCE: Evidence = {"stage": "dot", "code": 250, "extended": "2.0.0", "offers": ["size", "8bitmime"]}
_DELIVERIES = {
    "email": Delivery.AT_MOST_ONCE,
    "post": Delivery.READS_BACK,
    "call": Delivery.REPEATABLE,
    "draft": Delivery.WRITES_NOTHING,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """How many actions ended at a moment, in milliseconds since 1970."""

    ended_at: int
    count: int


class _Past(ScriptedAdapter):
    """Ends everything as DONE, with what a provider's answer leaves in the dispatch log."""

    async def execute(self, attempt: Attempt[Any]) -> Done:
        """Fence, and be done."""
        await super().execute(attempt)
        self.calls.clear()
        self.writes.clear()
        return Done("<0000000000000000@soak.example>", evidence=_EVIDENCE)


async def live(path: Path, driver: str, rate: float, seconds: float, say: Callable[[str], None]) -> list[Moment]:
    """Carry out `rate` actions a second for so many seconds, a day ago, starting with what is a day old now."""
    clock = MovableClock(time.time() - DAY)
    adapters = [_Past(kind, delivery=delivery, retention_days=1) for kind, delivery in _DELIVERIES.items()]
    storage = SqliteStorage(path, DRIVERS[driver](), on_connect=clock.register)
    moments: list[Moment] = []
    kinds = list(_DELIVERIES)
    made = 0
    async with Outbox(storage, adapters) as outbox, Executor(outbox, clock=clock, concurrency=64) as executor:
        while len(moments) * STEP < seconds:
            clock.advance(STEP)
            until = round((len(moments) + 1) * STEP * rate)
            await outbox.enqueue_many(_request(kinds[n % len(kinds)], n) for n in range(made, until))
            await executor.until_idle()
            moments.append(Moment(clock.milliseconds, until - made))
            made = until
            if len(moments) % 60 == 0:
                say(f"{made} actions of a day ago")
    return moments


def _request(kind: str, number: int) -> ActionRequest:
    key = f"{PREFIX}{kind}-{number}"
    lane = f"lane-{number % 200}" if number % 3 else None
    return ActionRequest(kind=kind, idempotency_key=key, payload=payload_of(kind, key), lane_key=lane)
