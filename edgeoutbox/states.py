"""The lifecycle of an action, as tables.

An action is born PROPOSED (an agent asked) or ADMITTED (it was meant). A claim makes it EXECUTING. An attempt
ends it, or gives it back. The same rows stand in each backend's `agent_action_transition` and
`agent_action_stop_reason`, where triggers look every step up, so that no program in any language can take a
step that is not here. A test asserts that the copies are equal.
"""

from enum import StrEnum


class State(StrEnum):
    """Where an action is in its life."""

    PROPOSED = "PROPOSED"
    ADMITTED = "ADMITTED"
    EXECUTING = "EXECUTING"
    DONE = "DONE"
    UNCERTAIN = "UNCERTAIN"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Whether the action has ended: an ended action never changes and keeps no payload."""
        return self in ENDED


class StopReason(StrEnum):
    """Why an action ended; each belongs to exactly one state."""

    CONFIRMED = "CONFIRMED"
    READ_BACK = "READ_BACK"
    NO_CONFIRMATION = "NO_CONFIRMATION"
    ERROR_AFTER_WRITE = "ERROR_AFTER_WRITE"
    LEASE_LOST_AFTER_WRITE = "LEASE_LOST_AFTER_WRITE"
    READBACK_EXHAUSTED = "READBACK_EXHAUSTED"
    ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"
    REJECTED = "REJECTED"
    UNDELIVERABLE = "UNDELIVERABLE"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    NOT_CONFIGURED = "NOT_CONFIGURED"
    EXPIRED = "EXPIRED"
    REFUSED = "REFUSED"
    WITHDRAWN = "WITHDRAWN"
    SUPERSEDED = "SUPERSEDED"
    NOT_NEEDED = "NOT_NEEDED"
    ABSENT = "ABSENT"


BORN: frozenset[State] = frozenset({State.PROPOSED, State.ADMITTED})
"""The states in which an action may be inserted."""

OPEN: frozenset[State] = frozenset({State.PROPOSED, State.ADMITTED, State.EXECUTING})
"""The states that hold a lane."""

ENDED: frozenset[State] = frozenset({State.DONE, State.UNCERTAIN, State.FAILED, State.CANCELLED})
"""The states that nothing leaves."""

TRANSITIONS: dict[tuple[State, State], str] = {
    (State.PROPOSED, State.ADMITTED): "admitted",
    (State.PROPOSED, State.CANCELLED): "refused, withdrawn, expired or superseded",
    (State.ADMITTED, State.EXECUTING): "a claim: epoch + 1, attempt + 1",
    (State.ADMITTED, State.CANCELLED): "expired, withdrawn or superseded before it started",
    (State.EXECUTING, State.EXECUTING): "a claim after the lease expired: epoch + 1, attempt + 1",
    (State.EXECUTING, State.ADMITTED): "a proven retry or a deferral",
    (State.EXECUTING, State.DONE): "the attempt ended it",
    (State.EXECUTING, State.UNCERTAIN): "the attempt or the reaper ended it",
    (State.EXECUTING, State.FAILED): "the attempt or the reaper ended it",
    (State.EXECUTING, State.CANCELLED): "the attempt, the reaper, an expiry or a withdrawal ended it",
}
"""Every allowed step, with what takes it."""

STOP_REASONS: dict[State, frozenset[StopReason]] = {
    State.DONE: frozenset({StopReason.CONFIRMED, StopReason.READ_BACK}),
    State.UNCERTAIN: frozenset(
        {
            StopReason.NO_CONFIRMATION,
            StopReason.ERROR_AFTER_WRITE,
            StopReason.LEASE_LOST_AFTER_WRITE,
            StopReason.READBACK_EXHAUSTED,
        }
    ),
    State.FAILED: frozenset(
        {
            StopReason.ATTEMPTS_EXHAUSTED,
            StopReason.REJECTED,
            StopReason.UNDELIVERABLE,
            StopReason.INVALID_PAYLOAD,
            StopReason.NOT_CONFIGURED,
        }
    ),
    State.CANCELLED: frozenset(
        {
            StopReason.EXPIRED,
            StopReason.REFUSED,
            StopReason.WITHDRAWN,
            StopReason.SUPERSEDED,
            StopReason.NOT_NEEDED,
            StopReason.ABSENT,
        }
    ),
}
"""The stop reasons of each ended state."""

_LOOK = "look there before you enqueue it again under a new key"
_ANEW = "enqueue it under a new key"

MEANINGS: dict[StopReason, str] = {
    StopReason.CONFIRMED: "the provider confirmed it",
    StopReason.READ_BACK: "an earlier write of it was found at the provider",
    StopReason.NO_CONFIRMATION: f"it may exist at the provider, which did not confirm it: {_LOOK}",
    StopReason.ERROR_AFTER_WRITE: "an error, a time-out or a stop came after its write had started, and it may exist "
    f"at the provider: {_LOOK}",
    StopReason.LEASE_LOST_AFTER_WRITE: "its executor was lost after its write had started, and it may exist at the "
    f"provider: {_LOOK}",
    StopReason.READBACK_EXHAUSTED: "its attempts are used up, and its write was neither found nor excluded at the "
    f"provider: {_LOOK}",
    StopReason.ATTEMPTS_EXHAUSTED: f"its attempts are used up, and nothing was written: mend the cause, then {_ANEW}",
    StopReason.REJECTED: f"the provider refused it: correct what it refused, then {_ANEW}",
    StopReason.UNDELIVERABLE: f"nobody can receive it: correct whom it goes to, then {_ANEW}",
    StopReason.INVALID_PAYLOAD: f"its payload cannot be read: correct the program that stored it, then {_ANEW}",
    StopReason.NOT_CONFIGURED: f"something that it needs is not there: provide it, then {_ANEW}",
    StopReason.EXPIRED: f"its time passed before anything was written: if it is still wanted, {_ANEW}",
    StopReason.REFUSED: "a person refused the proposal",
    StopReason.WITHDRAWN: "it was taken back before anything was written",
    StopReason.SUPERSEDED: "a later enqueue of its lane took its place",
    StopReason.NOT_NEEDED: "when it was about to be carried out, it was not needed any more",
    StopReason.ABSENT: "a readback proved that it does not exist, and it should not be made now",
}
"""What each stop reason means, and what to do about it."""
