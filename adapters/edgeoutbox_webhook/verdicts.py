"""From what is known of a call to the result of its attempt. A doubt never becomes a second call of its own."""

import logging
from dataclasses import dataclass

from edgeoutbox import (
    Defer,
    Done,
    Evidence,
    Failed,
    Kind,
    Reread,
    Result,
    Retry,
    StopReason,
    Uncertain,
)
from edgeoutbox_webhook.answers import Meaning, is_redirect, meaning
from edgeoutbox_webhook.calls import Webhook
from edgeoutbox_webhook.endpoints import Endpoint
from edgeoutbox_webhook.exchange import Answer, NoAnswer, NothingSent, NotReached, Outcome
from edgeoutbox_webhook.repeating import Repeating
from edgeoutbox_webhook.waits import LONG, SHORTEST, UNASKED, Rests, doubling, spread

log = logging.getLogger("edgeoutbox.webhook")

_MOST_DEFERRALS_UNCONFIGURED = 8
"""About twenty hours: long enough for every process to get the new configuration."""
_SHARE_OF_TIME_LEFT = 0.25


class TooLate(Exception):
    """The endpoint may have forgotten the id by now, so the call is not sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What an attempt knows. `now` and `inherited_write_at` are milliseconds on the database's clock.

    `alone`: the kind has this endpoint only, so its trouble is the kind's. `deferrals`: how often the action was put
    off before.
    """

    kind: Kind[Webhook]
    endpoint: str
    webhook_id: str
    alone: bool
    rests: Rests
    now: int
    deferrals: int
    inherited_write_at: int | None
    repeating: Repeating | None

    def before_anything(self, endpoint: Endpoint | None) -> Result | None:
        """The result of an attempt that need not or must not connect, else `None`."""
        if self.inherited_write_at is not None and self._time_left(self.now) <= 0:
            return self.too_late()
        if endpoint is None:
            return self.not_configured()
        if not endpoint.secrets:
            return self.misconfigured("the endpoint has no secret here")
        resting = self.rests.left(self.endpoint, self.now)
        if resting:
            return Defer("the endpoint is left alone for a while", self._wait(resting), evidence=self._evidence("rest"))
        return None

    def require_time(self, write_started_at: int | None) -> None:
        """Refuse to send again when too much time has passed. Raises `TooLate`."""
        if self.inherited_write_at is not None and self._time_left(write_started_at or self.now) <= 0:
            raise TooLate

    def too_late(self) -> Uncertain:
        """An earlier call may have arrived, and this one might count as another."""
        reason = "an earlier call may have been taken"
        if self.repeating is not None:
            reason += ", and the endpoint may not know its id any more"
        return Uncertain(reason, self._evidence("inherited"))

    def not_configured(self) -> Result:
        """The endpoint's name is not known here: wait for the configuration, but not for ever."""
        log.error("kind %s: the endpoint %s is not configured", self.kind.name, self.endpoint)
        evidence = self._evidence("settings")
        if self.deferrals >= _MOST_DEFERRALS_UNCONFIGURED:
            return self.unless_inherited(Failed(StopReason.NOT_CONFIGURED, "no such endpoint is configured", evidence))
        wait = self._wait(doubling(LONG, self.deferrals))
        return Defer("no such endpoint is configured here", wait, evidence=evidence)

    def misconfigured(self, reason: str) -> Defer:
        """Something that people must mend."""
        log.error("kind %s: endpoint %s: %s; nothing is sent there until it is mended", *self._named(reason))
        return self._unreachable(reason, self._evidence("settings"))

    def unless_inherited(self, failed: Failed) -> Failed | Uncertain:
        """A refusal now says nothing about an earlier call that may have been taken."""
        if self.inherited_write_at is None:
            return failed
        return Uncertain(f"{failed.reason}, but an earlier call may have been taken", failed.evidence)

    def of(self, outcome: Outcome) -> Result:
        """The result of an exchange."""
        if not isinstance(outcome, NotReached):
            self.rests.reached(self.endpoint)
        match outcome:
            case NotReached(reason, needs_attention, errno):
                if needs_attention:
                    log.error(
                        "kind %s: endpoint %s: %s; nothing is sent there until this is mended", *self._named(reason)
                    )
                return self._unreachable(reason, {**self._evidence("connect"), "errno": errno})
            case NothingSent():
                return self._nothing_sent()
            case NoAnswer(reason):
                return self._unknown(reason, self._evidence("answer"))
            case Answer(status, retry_after):
                return self._answered(status, retry_after, {**self._evidence("answer"), "status": status})

    def _answered(self, status: int, retry_after: float | None, evidence: Evidence) -> Result:
        match meaning(status):
            case Meaning.TAKEN:
                return Done(self.webhook_id, evidence=evidence)
            case Meaning.REFUSED:
                what = "a redirect, which is not followed" if is_redirect(status) else "a refusal"
                return self.unless_inherited(Failed(StopReason.REJECTED, f"it answered {status}, {what}", evidence))
            case Meaning.GONE:
                return self.unless_inherited(Failed(StopReason.UNDELIVERABLE, f"it answered {status}, gone", evidence))
            case Meaning.NOT_NOW:
                return self._not_now(retry_after, evidence)
            case Meaning.UNKNOWN:
                return self._unknown(f"it answered {status}", evidence, retry_after)

    def _nothing_sent(self) -> Retry | Defer:
        reason = "the connection could not be used any more, and nothing was sent"
        if self.inherited_write_at is None:
            return Retry(reason, evidence=self._evidence("fence"))
        return Defer(reason, self._wait(UNASKED), evidence=self._evidence("fence"))  # keeps the earlier fence

    def _unreachable(self, reason: str, evidence: Evidence) -> Defer:
        if self.alone:
            return Defer(reason, scope="kind", evidence=evidence)
        return Defer(reason, self._wait(self.rests.unreachable(self.endpoint, self.now)), evidence=evidence)

    def _not_now(self, retry_after: float | None, evidence: Evidence) -> Defer:
        wait = doubling(UNASKED, self.deferrals) if retry_after is None else retry_after
        reason = "it asks for fewer calls"
        if self.alone:
            return Defer(reason, wait, scope="kind", evidence=evidence)
        return Defer(reason, self._wait(self.rests.asked(self.endpoint, self.now, wait)), evidence=evidence)

    def _unknown(self, reason: str, evidence: Evidence, wait: float | None = None) -> Uncertain | Reread:
        if self.repeating is None:
            return Uncertain(f"{reason}; it may have been taken", evidence)
        again = None if wait is None else min(spread(wait), self._longest_wait())
        return Reread(f"{reason}; it is sent again with the same id", again, evidence)

    def _time_left(self, now: int) -> float:
        """Seconds in which the call may be sent again, counted from the first one, or from now."""
        if self.repeating is None:
            return 0.0
        return self.repeating.left(now if self.inherited_write_at is None else self.inherited_write_at, now)

    def _wait(self, wait: float) -> float:
        """The wait, spread; under an earlier fence short enough to come back while a repeat is still allowed."""
        return spread(wait) if self.inherited_write_at is None else min(spread(wait), self._longest_wait())

    def _longest_wait(self) -> float:
        return max(SHORTEST, self._time_left(self.now) * _SHARE_OF_TIME_LEFT)

    def _named(self, reason: str) -> tuple[str, str, str]:
        return self.kind.name, self.endpoint, reason

    def _evidence(self, stage: str) -> Evidence:
        return {"stage": stage, "endpoint": self.endpoint, "webhook_id": self.webhook_id}
