"""The clocks of this machine. They only ever make a process stop sooner; every stored time is the database's."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """What an executor asks of the machine, in seconds."""

    def boot(self) -> float:
        """A monotonic clock that also runs while the machine is suspended, where the system has one."""

    def awake(self) -> float:
        """A monotonic clock that stands still while the machine is suspended, where the system has one."""

    def wall(self) -> float:
        """The time since 1970 as the machine believes it."""


class SystemClock:
    """The machine's own clocks."""

    def boot(self) -> float:
        """`CLOCK_BOOTTIME` on Linux; elsewhere the monotonic clock, which may stand still during a suspend."""
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)

    def awake(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """The wall clock."""
        return time.time()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment in the near future, after which this process begins nothing more; a suspended machine reaches it too."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment `seconds` from now."""
        return cls(SystemClock().boot() + seconds)

    def earlier(self, seconds: float) -> "Deadline":
        """The moment `seconds` before this one."""
        return Deadline(self.at - seconds)

    def left(self, at_most: float = float("inf")) -> float:
        """Seconds until then, but no more than `at_most`; zero once it has passed."""
        return max(0.0, min(at_most, self.at - SystemClock().boot()))

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return self.left() <= 0


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
