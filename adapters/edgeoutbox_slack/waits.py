"""How long to wait: what Slack asks for, and how often an unknown post is looked for. Seconds."""

import math
import time
from datetime import UTC
from email.utils import parsedate_to_datetime

LONG = 900.0
"""For what only people or time will change."""

SHORTEST_REST = 1.0
LONGEST_REST = 3600.0
USUAL_REST = 30.0
"""When Slack says that we are too fast, and not for how long."""

FIRST_LOOK = 10.0
"""After a post whose answer was lost: time for it to become visible."""

NEXT_LOOK = 60.0
LONGEST_LOOK = 900.0


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


def until_next_look(attempt: int) -> float:
    """The rest after the attempt of this number left the post unknown: 10 s, 60 s, then twice as long up to 15 min.

    The first attempt is the one that posted; Slack may allow no more than one look a minute.
    """
    if attempt <= 1:
        return FIRST_LOOK
    return float(min(LONGEST_LOOK, NEXT_LOOK * 2.0 ** min(attempt - 2, 20)))
