"""How long to leave an endpoint alone. Seconds, except where milliseconds are named."""

import random
import re
import time
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime

SHORTEST = 1.0
LONGEST = 4 * 3600.0
LONG = 15 * 60.0
"""The first wait for an endpoint that cannot be reached."""
UNASKED = 60.0
"""The first wait after a 429 that does not say how long."""

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_SPREAD = 0.1
_DOUBLINGS = 10


def clamped(seconds: float) -> float:
    """A wait that is neither nothing nor for ever."""
    return max(SHORTEST, min(seconds, LONGEST))


def doubling(first: float, times: int) -> float:
    """A wait that was doubled so often, up to the longest."""
    return min(first * 2.0 ** min(times, _DOUBLINGS), LONGEST)


def retry_after(text: str | None, date: str | None = None) -> float | None:
    """What a `Retry-After` asks for, clamped: seconds or an HTTP date (RFC 9110 section 10.2.3); else `None`.

    A date counts from the answer's own `Date`, so that a clock which differs from ours does not matter.
    """
    text = (text or "").strip()
    if _NUMBER.fullmatch(text):
        return clamped(float(text))
    until = _moment(text)
    if until is None:
        return None
    now = _moment(date or "")
    return clamped(until - (time.time() if now is None else now))


def _moment(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


@dataclass(slots=True)
class _Rest:
    until: int
    failures: int


@dataclass(slots=True)
class Rests:
    """Which endpoints are left alone by this process, and until when (milliseconds on the database's clock).

    Without it, each action for a dead endpoint would wait for its own time-out and hold up those for the others.
    """

    _rests: dict[str, _Rest] = field(default_factory=dict)

    def left(self, endpoint: str, now: int) -> float:
        """Seconds that it still rests; zero when it does not."""
        rest = self._rests.get(endpoint)
        left = 0.0 if rest is None else (rest.until - now) / 1000
        return left if 0 < left <= LONGEST else 0.0  # longer: the clock was set back

    def unreachable(self, endpoint: str, now: int) -> float:
        """Note that it could not be reached, and return how long it rests: a long wait that doubles each time."""
        left = self.left(endpoint, now)
        if left:  # another attempt of the same moment has noted it
            return left
        rest = self._rests.setdefault(endpoint, _Rest(now, 0))
        wait = doubling(LONG, rest.failures)
        rest.failures += 1
        rest.until = now + round(wait * 1000)
        return wait

    def asked(self, endpoint: str, now: int, wait: float) -> float:
        """Note that it asked to be left alone for so long, and return the wait."""
        longer = max(wait, self.left(endpoint, now))
        self._rests[endpoint] = _Rest(now + round(longer * 1000), 0)
        return wait

    def reached(self, endpoint: str) -> None:
        """Note that it can be reached."""
        self._rests.pop(endpoint, None)


def spread(wait: float) -> float:
    """The wait and up to a tenth more, so that not everything comes back at the same moment."""
    return wait * (1.0 + random.uniform(0.0, _SPREAD))  # noqa: S311 - no secret
