"""The clocks of this machine. They only ever make a process stop sooner; every stored time is the database's."""

import time
from typing import Protocol


class Clock(Protocol):
    """What an executor asks of the machine, in seconds."""

    def boot(self) -> float:
        """A monotonic clock that also runs while the machine is suspended, where the system has one."""

    def wall(self) -> float:
        """The time since 1970 as the machine believes it."""


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        self._boot = getattr(time, "CLOCK_BOOTTIME", None)

    def boot(self) -> float:
        """`CLOCK_BOOTTIME` on Linux; elsewhere the monotonic clock, which may stand still during a suspend."""
        return time.monotonic() if self._boot is None else time.clock_gettime(self._boot)

    def wall(self) -> float:
        """The wall clock."""
        return time.time()
