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
