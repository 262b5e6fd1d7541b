"""Until when something may still begin, on a clock that a suspended machine does not stop."""

import time
from dataclasses import dataclass

_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def _now() -> float:
    """Seconds since the machine started; without such a clock, of the monotonic one."""
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment after which this process does not begin anything more. It can only make it stop sooner."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """`seconds` from now."""
        return cls(_now() + seconds)

    def left(self, at_most: float = float("inf")) -> float:
        """Seconds that are left, never below zero and never above `at_most`."""
        return max(0.0, min(at_most, self.at - _now()))

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return self.left() <= 0
