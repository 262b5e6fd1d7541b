"""What becomes of an action whose process was killed: one row for each failpoint, one column for each promise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TypeAlias

from edgeoutbox.kinds import Delivery
from edgeoutbox.testing.crash.failpoints import WHERE, Failpoint


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ends: `state` and `stop_reason`, the effects that the provider holds, and what the attempts said.

    `attempts` has a word for each row of the dispatch log: the result, or `lost`. Without a `state` the row is gone.
    `reached` is false where a delivery has no such step, so that nobody is killed.
    """

    state: str
    effects: int
    attempts: tuple[str, ...]
    reached: bool = True

    def __str__(self) -> str:
        if not self.reached:
            return "has no fence"
        effects = "1 effect" if self.effects == 1 else f"{self.effects or 'no'} effects"
        return f"{self.state or 'absent'}; {effects}; {folded(self.attempts) or 'no attempts'}"


def folded(words: Sequence[str]) -> str:
    """The words in a line, with those that come again in a row counted."""
    return ", ".join(word if (count := len(list(same))) == 1 else f"{count} x {word}" for word, same in groupby(words))


class Left(StrEnum):
    """How far the database has an action when the process is dead: what the next start finds."""

    ABSENT = "absent"
    WAITING = "waiting"
    CLAIMED = "claimed"
    FENCED = "fenced"
    OWED = "ended, hook owed"
    ENDED = "ended"


class Promise(StrEnum):
    """What a kind promises of a write whose outcome is unknown: its delivery, and how far one that reads back goes.

    A provider that cannot prove that a write is missing is looked at again and again, and never written to again.
    """

    AT_MOST_ONCE = "at_most_once"
    READS_BACK = "reads_back"
    ONLY_LOOKS = "reads_back, never writes again"
    REPEATABLE = "repeatable"
    WRITES_NOTHING = "writes_nothing"

    @classmethod
    def of(cls, delivery: Delivery, *, writes_again: bool) -> "Promise":
        """The promise of a kind."""
        return cls.ONLY_LOOKS if delivery is Delivery.READS_BACK and not writes_again else cls(delivery.value)


_Row: TypeAlias = tuple[Ending, Ending, Ending, Ending, Ending]


def _all_but_drafts(ending: Ending, draft: Ending) -> _Row:
    return ending, ending, ending, ending, draft


_SENT = Ending("DONE CONFIRMED", 1, ("Done",))
_SENT_BY_THE_NEXT = Ending("DONE CONFIRMED", 1, ("lost", "Done"))
_FOUND_BY_THE_NEXT = Ending("DONE READ_BACK", 1, ("lost", "Done"))
_DRAFTED = Ending("DONE CONFIRMED", 0, ("Done",))
_DRAFTED_BY_THE_NEXT = Ending("DONE CONFIRMED", 0, ("lost", "Done"))
_UNKNOWN_AND_MISSING = Ending("UNCERTAIN LEASE_LOST_AFTER_WRITE", 0, ("lost",))
_UNKNOWN_AND_THERE = Ending("UNCERTAIN LEASE_LOST_AFTER_WRITE", 1, ("lost",))
_NOT_FENCED = Ending("DONE CONFIRMED", 0, ("Done",), reached=False)
_NEVER_READ_BACK = Ending("UNCERTAIN READBACK_EXHAUSTED", 0, ("lost",))
_NEVER_DRAFTED = Ending("FAILED ATTEMPTS_EXHAUSTED", 0, ("lost",))
_DELETED = Ending("", 1, ())
_DRAFT_DELETED = Ending("", 0, ())

_FENCED = (_UNKNOWN_AND_MISSING, _SENT_BY_THE_NEXT, _NEVER_READ_BACK, _SENT_BY_THE_NEXT)
_WRITTEN = (
    _UNKNOWN_AND_THERE,
    _FOUND_BY_THE_NEXT,
    _FOUND_BY_THE_NEXT,
    _SENT_BY_THE_NEXT,
    _DRAFTED_BY_THE_NEXT,
)
_REAPED = (_UNKNOWN_AND_MISSING, _NEVER_READ_BACK, _NEVER_READ_BACK, _NEVER_READ_BACK, _NEVER_DRAFTED)

# The columns are those of Promise.
_ROWS: Mapping[Failpoint, _Row] = {
    Failpoint.BEFORE_ENQUEUE: _all_but_drafts(_SENT, _DRAFTED),
    Failpoint.AFTER_ENQUEUE: _all_but_drafts(_SENT, _DRAFTED),
    Failpoint.BEFORE_CLAIM: _all_but_drafts(_SENT, _DRAFTED),
    Failpoint.AFTER_CLAIM: _all_but_drafts(_SENT_BY_THE_NEXT, _DRAFTED_BY_THE_NEXT),
    Failpoint.BEFORE_FENCE: _all_but_drafts(_SENT_BY_THE_NEXT, _NOT_FENCED),
    Failpoint.AFTER_FENCE: (*_FENCED, _NOT_FENCED),
    Failpoint.BEFORE_PROVIDER: (*_FENCED, _DRAFTED_BY_THE_NEXT),
    Failpoint.AFTER_PROVIDER: _WRITTEN,
    Failpoint.BEFORE_SETTLE: _WRITTEN,
    Failpoint.AFTER_SETTLE: _all_but_drafts(_SENT, _DRAFTED),
    Failpoint.BEFORE_HOOK: _WRITTEN,
    Failpoint.AFTER_HOOK: _WRITTEN,
    Failpoint.BEFORE_OWED_HOOK: _all_but_drafts(_SENT, _DRAFTED),
    Failpoint.AFTER_OWED_HOOK: _all_but_drafts(_SENT, _DRAFTED),
    Failpoint.BEFORE_REAP: _REAPED,
    Failpoint.AFTER_REAP: _REAPED,
    Failpoint.BEFORE_SWEEP: _all_but_drafts(_DELETED, _DRAFT_DELETED),
    Failpoint.AFTER_SWEEP: _all_but_drafts(_DELETED, _DRAFT_DELETED),
}

LEFT: Mapping[Failpoint, Left] = {
    Failpoint.BEFORE_ENQUEUE: Left.ABSENT,
    Failpoint.AFTER_ENQUEUE: Left.WAITING,
    Failpoint.BEFORE_CLAIM: Left.WAITING,
    Failpoint.AFTER_CLAIM: Left.CLAIMED,
    Failpoint.BEFORE_FENCE: Left.CLAIMED,
    Failpoint.AFTER_FENCE: Left.FENCED,
    Failpoint.BEFORE_PROVIDER: Left.FENCED,
    Failpoint.AFTER_PROVIDER: Left.FENCED,
    Failpoint.BEFORE_SETTLE: Left.FENCED,
    Failpoint.AFTER_SETTLE: Left.ENDED,
    # Both are in the transaction of the settlement, and are undone with it.
    Failpoint.BEFORE_HOOK: Left.FENCED,
    Failpoint.AFTER_HOOK: Left.FENCED,
    Failpoint.BEFORE_OWED_HOOK: Left.OWED,
    Failpoint.AFTER_OWED_HOOK: Left.ENDED,
    Failpoint.BEFORE_REAP: Left.FENCED,
    Failpoint.AFTER_REAP: Left.ENDED,
    Failpoint.BEFORE_SWEEP: Left.ENDED,
    Failpoint.AFTER_SWEEP: Left.ABSENT,
}


def left(failpoint: Failpoint, promise: Promise) -> Left:
    """What the database must have of the action while its process is dead: a kind without a fence is but claimed."""
    had = LEFT[failpoint]
    return Left.CLAIMED if had is Left.FENCED and promise is Promise.WRITES_NOTHING else had


PROMISED: Mapping[Failpoint, Mapping[Promise, Ending]] = {
    failpoint: dict(zip(Promise, endings, strict=True)) for failpoint, endings in _ROWS.items()
}
"""The end of an action whose process was killed once, and started again, for each failpoint and promise.

The action behind it in its lane is `DONE` in each, with one effect, and the ended hook of each counts once.
"""


def table() -> str:
    """The promises as Markdown."""
    head = ["killed", "left", *Promise]
    rows = [
        [f"**{failpoint}**: {WHERE[failpoint]}", LEFT[failpoint], *map(str, PROMISED[failpoint].values())]
        for failpoint in Failpoint
    ]
    return "\n".join([_line(head), _line(["---"] * len(head)), *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
