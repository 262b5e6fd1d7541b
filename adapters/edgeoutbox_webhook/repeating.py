"""For how long a call whose outcome is unknown may be sent again with the same id."""

import math
import re
from dataclasses import dataclass

from edgeoutbox import ConfigurationError

_DURATION = re.compile(r"([0-9]{1,9})\s*(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHARE_FOR_CLOCKS = 0.01
_AT_LEAST_FOR_CLOCKS = 60.0


@dataclass(frozen=True, slots=True)
class Repeating:
    """The endpoints' promise: an id that they took is taken once within `deduplicates_for` seconds.

    We count from our first unproven write, which is no later than the moment from which they count. A call may still
    arrive at the end of its `write_window`, and their clock need not run like the database's: so we stop one window,
    and a hundredth of the time (at least a minute), earlier.
    """

    deduplicates_for: float
    write_window: float

    @property
    def seconds(self) -> float:
        """For how long after the first write a call may begin."""
        clocks = max(_AT_LEAST_FOR_CLOCKS, self.deduplicates_for * _SHARE_FOR_CLOCKS)
        return self.deduplicates_for - self.write_window - clocks

    def left(self, first_write_at: int, now: int) -> float:
        """Seconds in which the call may be sent again, from `now`; zero when it may not.

        Both are milliseconds on the database's clock. A clock that was set back past the first write tells nothing.
        """
        age = (now - first_write_at) / 1000
        return max(0.0, self.seconds - age) if age >= 0 else 0.0


def duration(text: str | float) -> float:
    """Seconds, from a number of them or a text such as `24h`, `30m`, `7d`. Raises `ConfigurationError`."""
    if isinstance(text, int | float) and math.isfinite(text):
        return float(text)
    found = _DURATION.fullmatch(str(text).strip())
    if found is None:
        raise ConfigurationError('deduplicates_for: write a number with s, m, h or d, such as "24h"')
    return float(int(found[1]) * _UNITS[found[2]])
