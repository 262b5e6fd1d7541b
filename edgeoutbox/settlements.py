"""What a result means: from what an adapter said, and what is known of its fence, to the write that ends the attempt.

Pure: it reads no clock and no database. This is where a doubt never becomes a second send.
"""

import json
import math
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from edgeoutbox.kinds import Delivery
from edgeoutbox.results import (
    Abandoned,
    Cancelled,
    Defer,
    Done,
    Evidence,
    Failed,
    Reread,
    Result,
    Retry,
    Uncertain,
)
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Refusal, Settlement

FIRST_BACKOFF = 10.0
LONGEST_BACKOFF = 4 * 3600.0
LONGEST_WAIT = 366 * 86400.0
MAX_EVIDENCE_BYTES = 4096
MAX_REASON_LENGTH = 200


class Interruption(StrEnum):
    """What ended an attempt that returned no result."""

    ERROR = "an exception"
    TIMEOUT = "the time ran out"
    ABORTED = "the attempt was cancelled"
    STORAGE = "the database could not store the fence"
    SHUTDOWN = "the executor was stopped"
    ASLEEP = "the machine slept between fence and call"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An attempt that returned no result, and the name of the exception's type, if there was one."""

    by: Interruption
    error: str | None = None


Outcome: TypeAlias = Result | Interrupted


class Facts(NamedTuple):
    """What is known of an attempt when it ends.

    `inherited`: an earlier attempt's write may exist. `fenced`: `begin_write` returned in this attempt. `refusal`: why
    it was refused, if it was.
    """

    delivery: Delivery
    attempt: int
    max_attempts: int
    inherited: bool = False
    fenced: bool = False
    refusal: Refusal | None = None

    @property
    def last(self) -> bool:
        """Whether no further attempt is allowed."""
        return self.attempt >= self.max_attempts

    @property
    def after_fence(self) -> bool:
        """Whether a write may exist."""
        return self.fenced or self.inherited


class Verdict(NamedTuple):
    """The settlement of an attempt (`None`: another holder owns the action), and what the adapter did wrong, if so."""

    settlement: Settlement | None
    misuse: str | None = None


def settle(outcome: Outcome, facts: Facts) -> Verdict:  # noqa: C901, PLR0911 - a table, one row per result
    """The settlement of an outcome."""
    if facts.refusal is not None and isinstance(outcome, Abandoned):
        return Verdict(_refused(facts.refusal, facts, outcome))
    match outcome:
        case Done():
            unfenced = facts.delivery is not Delivery.WRITES_NOTHING and not facts.after_fence
            misuse = "it reports an effect without a fence" if unfenced else None
            reason = StopReason.READ_BACK if outcome.read_back else StopReason.CONFIRMED
            return Verdict(_end(State.DONE, reason, outcome, readback_ref=outcome.readback_ref), misuse)
        case Retry():
            return Verdict(_retry(outcome, facts))
        case Defer():
            return Verdict(_defer(outcome, facts))
        case Reread():
            return _reread(outcome, facts)
        case Uncertain():
            return Verdict(_doubt(outcome))
        case Failed():
            return Verdict(_end(State.FAILED, outcome.stop_reason, outcome, outcome.reason))
        case Cancelled():
            return Verdict(_end(State.CANCELLED, outcome.stop_reason, outcome, outcome.reason))
        case Abandoned():
            # Nobody refused: left alone, it would be held for as long as this executor lives.
            given_up = Interrupted(Interruption.ERROR, "Abandoned")
            return Verdict(_interrupted(given_up, facts), "it abandoned an action whose fence was not refused")
        case Interrupted():
            return Verdict(_interrupted(outcome, facts))
        case _:
            strange = Interrupted(Interruption.ERROR, "no result")
            return Verdict(_interrupted(strange, facts), "it returned something that is not a result")


def _retry(outcome: Retry, facts: Facts) -> Settlement:
    if facts.last:
        return _end(State.FAILED, StopReason.ATTEMPTS_EXHAUSTED, outcome, outcome.reason, clears_fence=True)
    wait = backoff(facts.attempt) if outcome.wait is None else outcome.wait
    return _again(State.ADMITTED, outcome, outcome.reason, wait, clears_fence=True)


def _defer(outcome: Defer, facts: Facts) -> Settlement:
    # Under an inherited fence nothing but a proof about every earlier write gives the action back.
    state = State.EXECUTING if facts.inherited else State.ADMITTED
    if outcome.scope == "action":
        wait = backoff(facts.attempt) if outcome.wait is None else outcome.wait
        return _again(state, outcome, outcome.reason, wait, counts=False, clears_fence=not facts.inherited)
    # The kind's own rest holds the action too.
    rests = _again(state, outcome, outcome.reason, outcome.wait or 0.0, counts=False, clears_fence=not facts.inherited)
    return rests._replace(cools="long" if outcome.wait is None else "wait")


def _reread(outcome: Reread, facts: Facts) -> Verdict:
    if facts.delivery is Delivery.AT_MOST_ONCE:
        return Verdict(_doubt(outcome), "an at-most-once kind cannot reread")
    if not facts.after_fence:
        return Verdict(_doubt(outcome), "it asks to reread a write that has no fence")
    return Verdict(_read_again(outcome, outcome.reason, facts, outcome.wait))


def _doubt(outcome: Uncertain | Reread) -> Settlement:
    told = Uncertain(outcome.reason, outcome.evidence)
    return _end(State.UNCERTAIN, StopReason.NO_CONFIRMATION, told, told.reason)


def _read_again(outcome: Outcome, reason: str, facts: Facts, wait: float | None = None) -> Settlement:
    if facts.last:
        return _end(State.UNCERTAIN, StopReason.READBACK_EXHAUSTED, outcome, reason)
    return _again(State.EXECUTING, outcome, reason, backoff(facts.attempt) if wait is None else wait)


def _interrupted(outcome: Interrupted, facts: Facts) -> Settlement:
    reason = outcome.by.value if outcome.error is None else f"{outcome.by.value} ({outcome.error})"
    # When the machine slept, the call has not started: this attempt's own fence is empty.
    fenced = facts.fenced and outcome.by is not Interruption.ASLEEP
    if (fenced or facts.inherited) and facts.delivery is Delivery.AT_MOST_ONCE:
        return _end(State.UNCERTAIN, StopReason.ERROR_AFTER_WRITE, outcome, reason)
    if fenced:
        return _read_again(outcome, reason, facts)
    if outcome.by in {Interruption.STORAGE, Interruption.SHUTDOWN}:
        state = State.EXECUTING if facts.inherited else State.ADMITTED
        wait = 1.0 if outcome.by is Interruption.STORAGE else 0.0
        return _again(state, outcome, reason, wait, counts=False, clears_fence=not facts.inherited)
    return _read_again(outcome, reason, facts) if facts.inherited else _retry_interrupted(outcome, reason, facts)


def _retry_interrupted(outcome: Outcome, reason: str, facts: Facts) -> Settlement:
    if facts.last:
        return _end(State.FAILED, StopReason.ATTEMPTS_EXHAUSTED, outcome, reason, clears_fence=True)
    return _again(State.ADMITTED, outcome, reason, backoff(facts.attempt), clears_fence=True)


def _refused(refusal: Refusal, facts: Facts, outcome: Outcome) -> Settlement | None:
    match refusal:
        case Refusal.NOT_HELD:
            return None
        case Refusal.EXPIRED if not facts.after_fence:
            return _end(State.CANCELLED, StopReason.EXPIRED, outcome, refusal.value)
        case Refusal.LEASE_SHORT if not facts.after_fence:
            return _retry_interrupted(outcome, refusal.value, facts)
        case _:
            if facts.delivery is Delivery.AT_MOST_ONCE:
                return _end(State.UNCERTAIN, StopReason.ERROR_AFTER_WRITE, outcome, refusal.value)
            return _read_again(outcome, refusal.value, facts)


def backoff(attempt: int) -> float:
    """Seconds before the next attempt: full jitter below 10 s, three times as long each time, at most 4 h."""
    return random.uniform(0.0, min(LONGEST_BACKOFF, FIRST_BACKOFF * 3.0 ** min(attempt - 1, 20)))  # noqa: S311 - no secret


def _end(
    state: State,
    stop_reason: StopReason,
    outcome: Outcome,
    reason: str = "",
    *,
    readback_ref: str | None = None,
    clears_fence: bool = False,
) -> Settlement:
    return Settlement(
        state=state,
        stop_reason=StopReason(stop_reason),
        result=_name(outcome),
        reason=_short(reason),
        readback_ref=None if readback_ref is None else _storable(readback_ref),
        clears_fence=clears_fence,
        evidence=_evidence(outcome),
    )


def _again(
    state: State,
    outcome: Outcome,
    reason: str,
    wait: float,
    *,
    counts: bool = True,
    clears_fence: bool = False,
) -> Settlement:
    return Settlement(
        state=state,
        result=_name(outcome),
        reason=_short(reason),
        wait=_milliseconds(wait),
        counts=counts,
        clears_fence=clears_fence,
        evidence=_evidence(outcome),
    )


def _name(outcome: Outcome) -> str:
    return outcome.by.name.capitalize() if isinstance(outcome, Interrupted) else type(outcome).__name__


def _milliseconds(wait: float) -> int:
    """A wait as it is stored. One that is no number must not cost the result."""
    try:
        seconds = float(wait)
    except (TypeError, ValueError, OverflowError):
        seconds = LONGEST_BACKOFF
    return round(max(0.0, min(seconds if math.isfinite(seconds) else LONGEST_WAIT, LONGEST_WAIT)) * 1000)


def _storable(text: object) -> str:
    """A text that any database takes, whatever an adapter gave."""
    return str("" if text is None else text).replace("\0", "?").encode(errors="replace").decode()


def _short(reason: str) -> str:
    reason = _storable(reason)
    return reason if len(reason) <= MAX_REASON_LENGTH else reason[: MAX_REASON_LENGTH - 1] + "…"


_EVIDENCE = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # to make one takes longer than to use it


def _evidence(outcome: Outcome) -> str:
    """Evidence as JSON. What cannot be stored must not cost the result."""
    evidence: Evidence = getattr(outcome, "evidence", None) or {}
    try:
        text = _EVIDENCE.encode(dict(evidence)) if evidence else "{}"
    except Exception:  # noqa: BLE001 - an adapter's mapping can raise anything
        return '{"dropped":"the evidence is not JSON"}'
    return text if len(text) <= MAX_EVIDENCE_BYTES else '{"dropped":"the evidence is larger than 4 KiB"}'
