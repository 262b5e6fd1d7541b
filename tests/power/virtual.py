"""An event loop whose time passes only when there is nothing to do: a wait costs nothing, and every run is the same."""

import asyncio
import math
import selectors
from typing import Any

from edgeoutbox.testing import MovableClock


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is the movable clock's, which it moves to the next timer instead of sleeping."""

    def __init__(self, clock: MovableClock) -> None:
        super().__init__(NeverSleeps(clock))
        self._clock = clock

    def time(self) -> float:
        """Seconds on the machine's clock."""
        return self._clock.boot()


class NeverSleeps(selectors.DefaultSelector):
    """A selector that moves the clock when a loop would sleep."""

    def __init__(self, clock: MovableClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; else let the time pass. Whole milliseconds, which is what the database counts in."""
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        if not ready and timeout:
            self._clock.advance(max(1, math.ceil(timeout * 1000)) / 1000)
        return ready


def run(main: Any, clock: MovableClock) -> Any:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)


async def end_everything() -> None:
    """End every other task as a loss of power does: answers that are under way arrive, and nothing else is waited for.

    Each task is cancelled until it ends, whatever it would like to do first.
    """
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # nobody is left to be told
    for _ in range(20):
        await asyncio.sleep(0)
    for _ in range(1000):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=0)
    raise RuntimeError(f"these tasks do not end: {asyncio.all_tasks()}")
