"""Why: one true sentence about what an action waits for."""

from collections.abc import Callable
from datetime import UTC, datetime

from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action
from edgeoutbox.states import MEANINGS, State, StopReason
from edgeoutbox.storage.protocol import Situation

Moment = Callable[[int], str]
"""How a time, in milliseconds since 1970 UTC, is written."""


def in_utc(milliseconds: int) -> str:
    """A time as a program writes it that does not know its reader's zone."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def sentence(situation: Situation, at: Moment = in_utc) -> str:
    """What the action waits for, or how it ended; `at` writes its times."""
    return f"Action {_name(situation.action)} {_waits(situation, at)}."


def _waits(situation: Situation, at: Moment) -> str:
    """The sentence after the action's name: what holds for it, and for the head of its lane in the same words."""
    action = situation.action
    if action.stop_reason is not None:
        return f"ended {action.state}: {action.stop_reason}{_error(action)}; {MEANINGS[StopReason(action.stop_reason)]}"
    if action.expires_at is not None and action.expires_at <= situation.now and action.state is not State.EXECUTING:
        expired = f"expired at {at(action.expires_at)} and will be cancelled by an executor of its kind"
        return expired if _serving(situation) else f"{expired}; but {_nobody(situation)}"
    if action.state is State.EXECUTING:
        return _executing(situation, at)
    if situation.lane_head is not None:
        head = situation.lane_head
        return f"waits in its lane behind action {_name(head.action)}, which {_waits(head, at)}"
    if action.state is State.PROPOSED:
        return "waits for somebody to admit or refuse it"
    return _admitted(situation, at)


def _executing(situation: Situation, at: Moment) -> str:
    action = situation.action
    owned = action.lease_owner is not None  # else its write may exist, and whoever comes first reads it back
    ends = at(action.lease_expires_at or 0)
    if (action.lease_expires_at or 0) > situation.now:
        if owned:
            return f"is executing: attempt {action.attempt}, whose lease ends at {ends}{_silent(situation, at)}"
        nobody = "" if _serving(situation) else f"; and {_nobody(situation)}"
        return f"may exist at the provider and waits until {ends} to be read back{_because(action)}{nobody}"
    what = f"lost its executor at {ends}" if owned else "may exist at the provider and waits to be read back"
    if not _serving(situation):
        return f"{what}, and {_nobody(situation)}; {'withdraw it as lost, or ' if owned else ''}start one that does"
    if action.write_started_at is not None and _at_most_once(situation):
        fenced = f"{what} after its write had started" if owned else "may exist at the provider"
        return f"{fenced}, and will end UNCERTAIN: it is never sent twice"
    return f"{what}, and {_hindered(situation, at) or 'the next free executor of its kind takes it up'}"


def _silent(situation: Situation, at: Moment) -> str:
    """What makes its lease a hope only: its executor should have been seen, and was not."""
    there = {executor.owner for executor in situation.executors}
    if situation.owner_seen_at is None or situation.action.lease_owner in there:
        return ""
    return f"; its executor was last seen at {at(situation.owner_seen_at)}"


def _admitted(situation: Situation, at: Moment) -> str:
    own = _hindered(situation, at) or _later(situation, at)
    if not _serving(situation):
        return f"{own}; and {_nobody(situation)}" if own else f"waits because {_nobody(situation)}"
    return own or "is due and waits for a free executor of its kind"


def _later(situation: Situation, at: Moment) -> str | None:
    action = situation.action
    if action.due_at <= situation.now:
        return None
    if action.last_error is None:
        return f"is due at {at(action.due_at)}"
    after = f" after attempt {action.attempt}" if action.attempt else ""
    return f"waits until {at(action.due_at)} to be tried again{after}{_because(action)}"


def _hindered(situation: Situation, at: Moment) -> str | None:
    policy = situation.policy
    if policy is not None and policy.paused_by is not None:
        return f"waits because its kind was paused by {policy.paused_by}"
    if policy is not None and policy.cooling_until is not None and policy.cooling_until > situation.now:
        return f"waits because its kind cools down until {at(policy.cooling_until)}: {policy.cooling_reason}"
    return None


def _at_most_once(situation: Situation) -> bool:
    # A kind that nobody declared counts as at most once.
    return situation.policy is None or situation.policy.delivery is Delivery.AT_MOST_ONCE


def _serving(situation: Situation) -> bool:
    return any(executor.carries_out(situation.action) for executor in situation.executors)


def _nobody(situation: Situation) -> str:
    if any(situation.action.kind in executor.kinds for executor in situation.executors):
        return "no running executor knows its variant; check what its payload names"
    return "no running executor serves its kind"


def _name(action: Action) -> str:
    return f"{action.id} ({action.kind})"


def _because(action: Action) -> str:
    # Stored errors are our own words.
    return f": {action.last_error}" if action.last_error else ""


def _error(action: Action) -> str:
    # What ended as it was meant to may carry one of an earlier attempt.
    told = action.state in {State.FAILED, State.UNCERTAIN} and action.last_error
    return f" ({action.last_error})" if told else ""
