"""A moment by which something must have happened, on a clock that goes on while the machine sleeps."""

import time
from dataclasses import dataclass

_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def _now() -> float:
    """Seconds on a clock that counts suspension where the system has one."""
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment in the near future. Local time only ever makes this process stop sooner."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment `seconds` from now."""
        return cls(_now() + seconds)

    def earlier(self, seconds: float) -> "Deadline":
        """The moment `seconds` before this one."""
        return Deadline(self.at - seconds)

    def left(self, at_most: float = float("inf")) -> float:
        """Seconds until then, but no more than `at_most`; zero once it has passed."""
        return max(0.0, min(at_most, self.at - _now()))
