"""Why: one true sentence about what an action waits for."""

from datetime import UTC, datetime

from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Situation


def sentence(situation: Situation) -> str:
    """What the action waits for, or how it ended."""
    action = situation.action
    what = f"Action {action.id} ({action.kind})"
    if action.ended:
        return f"{what} ended {action.state}: {action.stop_reason}{_error(action)}."
    if action.expires_at is not None and action.expires_at <= situation.now and action.state is not State.EXECUTING:
        return f"{what} expired at {_moment(action.expires_at)} and will be cancelled by an executor of its kind."
    if action.state is State.EXECUTING:
        return f"{what} {_executing(situation)}."
    if situation.lane_head is not None:
        head = situation.lane_head
        return f"{what} waits in its lane behind action {head.id} ({head.kind}), which is {head.state}."
    if action.state is State.PROPOSED:
        return f"{what} waits for somebody to admit or refuse it."
    return f"{what} {_admitted(situation)}."


def _executing(situation: Situation) -> str:
    action = situation.action
    ends = _moment(action.lease_expires_at or 0)
    if (action.lease_expires_at or 0) > situation.now:
        if action.lease_owner is None:
            return f"may exist at the provider and waits until {ends} to be read back"
        return f"is executing: attempt {action.attempt}, whose lease ends at {ends}"
    if not _serving(situation):
        return f"lost its executor at {ends}, and {_nobody(situation)}; withdraw it as lost, or start one"
    if action.write_started_at is not None and _at_most_once(situation):
        return (
            f"lost its executor at {ends} after its write had started, and will end UNCERTAIN: it is never sent twice"
        )
    return _hindered(situation) or f"lost its lease at {ends} and is taken up by the next executor of its kind"


def _admitted(situation: Situation) -> str:
    own = _hindered(situation) or _later(situation)
    if not _serving(situation):
        return f"{own}; and {_nobody(situation)}" if own else f"waits because {_nobody(situation)}"
    return own or "is due and waits for a free executor of its kind"


def _later(situation: Situation) -> str | None:
    action = situation.action
    if action.due_at > situation.now:
        if action.last_error is not None:
            after = f" after attempt {action.attempt}" if action.attempt else ""
            return f"waits until {_moment(action.due_at)} to be tried again{after}"
        return f"is due at {_moment(action.due_at)}"
    return None


def _hindered(situation: Situation) -> str | None:
    policy = situation.policy
    if policy is not None and policy.paused_by is not None:
        return f"waits because its kind was paused by {policy.paused_by}"
    if policy is not None and policy.cooling_until is not None and policy.cooling_until > situation.now:
        return f"waits because its kind cools down until {_moment(policy.cooling_until)}: {policy.cooling_reason}"
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


def _error(action: Action) -> str:
    # Stored errors are our own words. What ended as it was meant to may carry one of an earlier attempt.
    told = action.state in {State.FAILED, State.UNCERTAIN} and action.last_error
    return f" ({action.last_error})" if told else ""


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="seconds")
