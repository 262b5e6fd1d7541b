"""An event loop in which waiting takes no time, and processes that can be killed between any two of its steps."""

import asyncio
import contextvars
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, cast

from edgeoutbox.testing.clock import MovableClock

Ts = TypeVarTuple("Ts")
H = TypeVar("H", bound=asyncio.Handle)


@dataclass(eq=False)
class Process:
    """What dies together. Everything that the loop runs for it belongs to it, by context."""

    name: str
    alive: bool = True
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def __post_init__(self) -> None:
        self.context.run(_PROCESS.set, self)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)

NOWHERE = contextvars.Context()
"""The context of what no process can take along when it dies: the provider, the network, time."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of their times. When nothing is ready, its clock jumps to whatever comes next.

    Its time is the clock's `awake`: like a real loop's, it stands still while the machine is suspended. `idle_until` is
    asked before each jump for how many seconds nothing can happen but polls that find nothing; it may jump over those.
    """

    if TYPE_CHECKING:
        _ready: list[asyncio.Handle]
        _scheduled: list[asyncio.TimerHandle]

    def __init__(self, clock: MovableClock, idle_until: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._idle_until = idle_until
        self._selector = self  # what asyncio asks for events
        self._clock_resolution = 0.0005  # half of what the clock counts
        self._dead: list[asyncio.Task[Any]] = []
        self.raised: list[BaseException] = []
        """What callbacks raised: errors of the simulation itself."""
        self.set_exception_handler(_raised)

    def time(self) -> float:
        """Seconds."""
        return self._clock.awake()

    def select(self, timeout: float | None) -> list[Any]:
        """Let time pass instead of waiting for events: whole milliseconds, as the database counts them."""
        if timeout is None:
            raise RuntimeError("the simulation stands still: nothing is ready and no timer runs")
        if timeout > 0:
            self._clock.advance(max(1, math.ceil(max(timeout, self._idle_until()) * 1000 - 1e-6)) / 1000)
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody else could wake this loop."""

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback soon, unless its process is dead."""
        return _unless_dead(super().call_soon(callback, *args, context=context))

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """There is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a time, unless its process is dead by then."""
        return _unless_dead(super().call_at(when, callback, *args, context=context))

    def kill(self, process: Process) -> None:
        """Let nothing of the process run any more: no handler, no `finally`, no callback."""
        process.alive = False
        # Collected as garbage, their coroutines would be closed, and clean up.
        self._dead.extend(asyncio.all_tasks(self))
        for handle in [*self._ready, *self._scheduled]:
            _unless_dead(handle)

    def bury(self) -> None:
        """Close, after the loop has ended, what was left unfinished."""
        self._dead.extend(asyncio.all_tasks(self))
        for task in self._dead:
            if not task.done():
                _close(task.get_coro())
        self._dead.clear()


@contextmanager
def simulated_loop(clock: MovableClock, idle_until: Callable[[], float]) -> Generator[SimulatedLoop]:
    """A loop, and its end."""
    loop = SimulatedLoop(clock, idle_until)
    try:
        yield loop
    finally:
        loop.bury()
        loop.close()


def _raised(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if "handle" in context:  # a callback raised, which nobody awaits; the rest is about tasks of dead processes
        cast("SimulatedLoop", loop).raised.append(context["exception"])
        loop.stop()


def _unless_dead(handle: H) -> H:
    process = cast("Any", handle)._context.get(_PROCESS)  # noqa: SLF001 - asyncio has no other way to ask
    if process is not None and not process.alive:
        handle.cancel()
    return handle


def _close(coroutine: Any) -> None:
    for _ in range(20):  # each may refuse to end at one more await
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001, S112 - what a dead process thinks of its end concerns nobody
            continue
        return
