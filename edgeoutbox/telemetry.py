"""Log events and counters. They name actions by id and kind, and never hold a payload, secret or address."""

import logging
import traceback
from collections import Counter
from collections.abc import Mapping

log = logging.getLogger("edgeoutbox")

CALLS = 6
"""How many calls are logged of where an exception came from, the innermost first."""


def event(level: int, name: str, **fields: object) -> None:
    """Log one event: its name and fields as the message, and each field as an attribute of the record."""
    if log.isEnabledFor(level):
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        extra = {"event": name, **{f"event_{key}": value for key, value in fields.items()}}
        log.log(level, "%s %s", name, text, extra=extra)


def uncertain(action_id: int, kind: str, stop_reason: str, reason: str) -> None:
    """Log the one line of an action that ended UNCERTAIN."""
    event(
        logging.WARNING,
        "action.ended.uncertain",
        action_id=action_id,
        action_kind=kind,
        stop_reason=stop_reason,
        reason=reason,
    )


def raised(action_id: int, kind: str, error: BaseException) -> None:
    """Log what an adapter raised, and where; its message could show what was to be sent."""
    calls = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    event(
        logging.WARNING,
        "adapter.raised",
        action_id=action_id,
        action_kind=kind,
        error=type(error).__name__,
        where=" < ".join(reversed(calls[-CALLS:])),
    )


def hook_failed(action_id: int, kind: str, error: BaseException) -> None:
    """Log that an ended hook raised; only the type: a message or traceback could show the application's rows."""
    event(
        logging.ERROR,
        "action.hook.failed",
        action_id=action_id,
        action_kind=kind,
        error=type(error).__name__,
        what="its changes were undone and it will be called again",
    )


LABELS = {
    "action.attempts": ("kind", "result", "recorded"),
    "action.ended": ("kind", "state", "reason"),
}
"""The counters, and the labels of each."""


class Metrics:
    """Counters of one executor, as `LABELS` lists them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def count(self, name: str, *values: str) -> None:
        """Add one to a counter; the values of its labels, in their order."""
        self._counts[name, values] += 1

    def snapshot(self) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], int]:
        """Every counter as it stands: (name, labels) -> count."""
        return {
            (name, tuple(zip(LABELS[name], values, strict=True))): count
            for (name, values), count in self._counts.items()
        }

    def total(self, name: str, **labels: str) -> int:
        """The sum of a counter over all series that have these labels."""
        wanted = set(labels.items())
        return sum(count for (key, series), count in self.snapshot().items() if key == name and wanted <= set(series))
