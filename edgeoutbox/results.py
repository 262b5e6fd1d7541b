"""What an adapter can say about an attempt: a closed union that `match` checks.

Waits are seconds. Every `reason` is the adapter's own words and codes, never provider text, exception messages
or input values: it is stored and logged. `evidence` is small JSON without personal data that says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from edgeoutbox.states import STOP_REASONS, State, StopReason

Evidence: TypeAlias = Mapping[str, str | int | float | bool | list[str] | list[int] | None]


@dataclass(frozen=True, slots=True)
class Done:
    """The provider confirmed the effect, or an earlier write was found there (`read_back`)."""

    readback_ref: str | None = None
    read_back: bool = False
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retry:
    """The provider proved that it holds nothing, of any earlier write either; a later attempt may work."""

    reason: str
    wait: float | None = None
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defer:
    """Not now, and nothing was written; the attempt does not count.

    `scope="kind"` cools the whole kind down in every process; without a `wait` that is a long wait (15 minutes,
    doubling to 4 hours), for a provider that cannot be reached or does not let us in.
    """

    reason: str
    wait: float | None = None
    scope: Literal["action", "kind"] = "action"
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reread:
    """The effect may exist and can be read back: the next attempt, after the wait, reads before it writes."""

    reason: str
    wait: float | None = None
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The effect may exist and nobody can know; it is never sent again."""

    reason: str
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The provider refused for good, or nobody can receive it; `stop_reason` is one of FAILED's."""

    stop_reason: StopReason
    reason: str
    evidence: Evidence = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_reason_of_another_state(State.FAILED, self.stop_reason)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nothing should be written; `stop_reason` is one of CANCELLED's."""

    stop_reason: StopReason
    reason: str = ""
    evidence: Evidence = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_reason_of_another_state(State.CANCELLED, self.stop_reason)


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The fence refused: another holder owns the action, and this attempt changes nothing."""

    evidence: Evidence = field(default_factory=dict)


Result: TypeAlias = Done | Retry | Defer | Reread | Uncertain | Failed | Cancelled | Abandoned


def _refuse_reason_of_another_state(state: State, reason: StopReason) -> None:
    if reason not in STOP_REASONS[state]:
        allowed = ", ".join(sorted(STOP_REASONS[state]))
        msg = f"stop_reason: {reason} is not a reason of {state}; choose one of {allowed}"
        raise ValueError(msg)
