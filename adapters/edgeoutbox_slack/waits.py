"""How long to wait, in seconds: what Slack asks for, and how often an unknown post is looked for."""

import math
import time
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

LONG = 900.0
"""For what only people or time will change."""

SHORTEST_REST = 1.0
LONGEST_REST = 3600.0
USUAL_REST = 30.0
"""When Slack says that we are too fast, and not for how long."""

LONGEST_LOOK = 15.0
"""So many times the second rest is the longest."""


def retry_after(text: str | None, now: float | None = None) -> float:
    """The rest that a `Retry-After` header asks for, within bounds, whatever stands in it.

    Seconds, whole or not, or a date (RFC 9110 section 10.2.3); `now` is the time since 1970 to compare a date with.
    """
    seconds = _seconds(text or "", time.time() if now is None else now)
    return USUAL_REST if seconds is None else max(SHORTEST_REST, min(seconds, LONGEST_REST))


def _seconds(text: str, now: float) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return _until(text, now)
    return None if math.isnan(seconds) else seconds


def _until(date: str, now: float) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Looks:
    """When a post of unknown outcome is looked for: soon, for it to become visible, and then ever more rarely."""

    first: float = 10.0
    following: float = 60.0

    def after(self, attempt: int) -> float:
        """The rest after the attempt of this number; the first one is the one that posted."""
        if attempt <= 1:
            return self.first
        return self.following * min(2.0 ** min(attempt - 2, 20), LONGEST_LOOK)
