"""From what Slack's answers mean to what an attempt says: a table for each stage.

`again` is the rest before the next look, in seconds.
"""

from collections.abc import Callable, Mapping

from edgeoutbox import Defer, Done, Evidence, Failed, Reread, Result, Retry, StopReason
from edgeoutbox_slack.answers import Answer
from edgeoutbox_slack.codes import Meaning
from edgeoutbox_slack.readback import Absent, Found, Incomplete, MakesWay, Outcome, Stopped, Wanted
from edgeoutbox_slack.steps import POST
from edgeoutbox_slack.waits import LONG

Verdict = Callable[[Answer, Evidence], Result]


def _defer_for_long(answer: Answer, evidence: Evidence) -> Result:
    return Defer(answer.said, scope="kind", evidence=evidence)


def _defer_for_rest(answer: Answer, evidence: Evidence) -> Result:
    return Defer(answer.said, answer.rest, scope="kind", evidence=evidence)


def _retry(answer: Answer, evidence: Evidence) -> Result:
    return Retry(answer.said, evidence=evidence)


def _retry_for_long(answer: Answer, evidence: Evidence) -> Result:
    return Retry(answer.said, LONG, evidence)


def _failed(stop_reason: StopReason) -> Verdict:
    return lambda answer, evidence: Failed(stop_reason, answer.said, evidence)


_NOTHING_POSTED: Mapping[Meaning, Verdict] = {
    Meaning.LIMITED: _defer_for_rest,
    Meaning.LATER: _retry_for_long,
    Meaning.CUT: _retry,
    Meaning.UNSENT: _retry,
    Meaning.LOGIN: _defer_for_long,
    Meaning.UNREACHABLE: _defer_for_long,
    Meaning.NO_PLACE: _failed(StopReason.UNDELIVERABLE),
    Meaning.NO_RIGHT: _failed(StopReason.NOT_CONFIGURED),
    Meaning.BAD_CONTENT: _failed(StopReason.REJECTED),
}
"""What proves that nothing was posted. Everything else proves nothing."""

_WHILE_LOOKING: Mapping[Meaning, Verdict] = {
    Meaning.LIMITED: _defer_for_rest,
    Meaning.LOGIN: _defer_for_long,
    Meaning.UNREACHABLE: _defer_for_long,
}
"""What keeps the fence and spends no attempt. Everything else is a look that was not complete."""


def posted(answer: Answer, again: float) -> Result:
    """The result of the one request that posts."""
    if answer.meaning is Meaning.CONFIRMED:
        channel, timestamp = answer.body.get("channel"), answer.body.get("ts")
        if isinstance(channel, str) and isinstance(timestamp, str) and channel and timestamp:
            return Done(f"{channel}:{timestamp}", evidence=answer.evidence(POST))
        return _look_later("Slack confirmed without saying what", again, answer.evidence(POST))
    verdict = _NOTHING_POSTED.get(answer.meaning)
    if verdict is None:
        return _look_later(answer.said, again, answer.evidence(POST))
    return verdict(answer, answer.evidence(POST))


def not_begun(answer: Answer, method: str) -> Result:
    """The result of a request before the fence that did not work: whatever it was, nothing was posted."""
    return _NOTHING_POSTED.get(answer.meaning, _retry)(answer, answer.evidence(method))


def not_seen(answer: Answer, method: str, again: float) -> Result:
    """The result of a request on the way to an earlier post that did not work."""
    verdict = _WHILE_LOOKING.get(answer.meaning)
    if verdict is not None:
        return verdict(answer, answer.evidence(method))
    return _look_later(answer.said, again, {**answer.evidence(method), "complete": False})


def looked(outcome: Outcome, wanted: Wanted, again: float) -> Result:
    """The result of a look for an earlier post."""
    evidence: Evidence = {"method": wanted.method, "pages": outcome.pages}
    match outcome:
        case Found(timestamps):
            found: Evidence = {**evidence, "matches": len(timestamps)}
            return Done(f"{wanted.place.channel}:{timestamps[0]}", read_back=True, evidence=found)
        case Absent(closed=closed):
            # Deleted and outdated posts are not shown: this is no proof that it never existed.
            why = "it is not in the complete history" if closed else "it is not in the history yet"
            return _look_later(why, again, {**evidence, "complete": closed})
        case Incomplete(why):
            return _look_later(why, again, {**evidence, "complete": False})
        case MakesWay(wait):
            return Defer("the next look has its turn later", wait, evidence={**evidence, "complete": False})
        case Stopped(answer):
            return not_seen(answer, wanted.method, again)


def nowhere(again: float) -> Result:
    """The result when nobody knows where an earlier attempt posted."""
    return _look_later("the notice does not say where it posted", again, {"complete": False})


def _look_later(why: str, again: float, evidence: Evidence) -> Reread:
    return Reread(why, again, evidence)
