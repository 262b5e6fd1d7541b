"""Drift: a machine that slept, a clock that was set. Whoever saw one takes nothing from others for one lease."""

from edgeoutbox.clock import Clock

TOLERANCE = 1.0
"""Seconds that the wall clock and the boot clock may move apart without anybody having set one."""


class Drift:
    """Compares the wall clock with the boot clock. `lease` is seconds."""

    def __init__(self, clock: Clock, lease: float) -> None:
        self._clock = clock
        self._lease = lease
        self._offset = clock.wall() - clock.boot()
        self._until = float("-inf")

    def suspicious(self) -> bool:
        """Whether leases of others must be left alone now, because a clock was set less than one lease ago."""
        boot = self._clock.boot()
        offset = self._clock.wall() - boot
        if abs(offset - self._offset) > TOLERANCE:
            self._offset = offset
            self._until = boot + self._lease
        return boot < self._until
