"""Run everything that waits, now."""

from edgeoutbox.executor import Executor
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Query
from edgeoutbox.testing.clock import MovableClock

MOST_DEFERRALS = 10


async def drain(executor: Executor, clock: MovableClock) -> None:
    """Carry out every action that can be, moving the clock to each next due moment until none is left.

    Rows that this executor does not serve, paused kinds and proposals stay. Raises `RuntimeError` when an action defers
    for the tenth time, and when an ended hook goes on failing.
    """
    storage = executor.outbox.storage
    served = [executor.served(kind) for kind in executor.adapters]
    attempts, fruitless = -1, 0
    while True:
        await executor.until_idle()
        made = executor.metrics.total("action.attempts")
        fruitless = fruitless + 1 if made == attempts else 0
        attempts = made
        if fruitless >= MOST_DEFERRALS:
            raise RuntimeError("an ended hook fails again and again, or something is due that is never claimed")
        for state in (State.ADMITTED, State.EXECUTING):
            for action in await storage.list(Query(state=state, limit=10_000)):
                # Each claim raises the epoch, and each attempt that counts the attempt: the rest were deferrals.
                if action.epoch - action.attempt >= MOST_DEFERRALS:
                    raise RuntimeError(f"action {action.id} of kind {action.kind} deferred {MOST_DEFERRALS} times")
        wait = await storage.next_due(served, executor.owner)
        if wait is None:
            return
        async with executor.claiming:
            if not executor.busy:  # else somebody enqueued in the meantime, and its time must not be moved
                clock.advance(max(0.001, wait / 1000))
