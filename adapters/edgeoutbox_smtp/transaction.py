"""The mail transaction: MAIL, RCPT, the fence, DATA, the body, and the terminator as a step of its own.

A relay must throw a transaction away whose terminator it never received (RFC 5321 section 4.1.1.10). So everything
that goes wrong before the terminator is written proves that the relay holds nothing; and from then until a complete
reply was read, nobody can know.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from edgeoutbox import Deadline, Done, Evidence, Failed, Result, Retry, StopReason, Uncertain, WriteWindow
from edgeoutbox_smtp.compose import Composed
from edgeoutbox_smtp.replies import Reply, Stage, Verdict, judge
from edgeoutbox_smtp.session import Session
from edgeoutbox_smtp.wire import CHUNK, Spoke, WireBroken

Fence: TypeAlias = Callable[[], Awaitable[WriteWindow]]

log = logging.getLogger("edgeoutbox.smtp")

_MARGIN = 0.05
"""The part of the window in which we have answered already, before the executor cancels us."""
_FOR_THE_REPLY = 0.2
"""The part of the window that is kept for the reply to the terminator: without it, the terminator is not written."""
_DOTS = re.compile(rb"^\.", re.MULTILINE)

_STOP_REASONS = {
    Verdict.REJECTED: StopReason.REJECTED,
    Verdict.UNDELIVERABLE: StopReason.UNDELIVERABLE,
}
_WORDS = {
    Stage.MAIL: "the relay refused the sender",
    Stage.RCPT: "the relay refused a recipient",
    Stage.DATA: "the relay refused to take the message",
    Stage.BODY: "the relay replied in the middle of the message",
    Stage.DOT: "the relay refused the message",
}


def long_wait(attempt: int) -> float:
    """Seconds to wait for something that only a person can change: 15 minutes, doubling to 4 hours."""
    return 900.0 * (1, 2, 4, 8, 16)[min(attempt, 5) - 1]


class _Ended(Exception):
    """The transaction is over before its terminator; `result` says how."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result


@dataclass(slots=True)
class Transaction:
    """One message over one session. `step_timeout` is seconds for each command, and for each chunk of the body."""

    session: Session
    composed: Composed
    step_timeout: float
    attempt: int = 1
    stage: Stage = Stage.OFFERS

    async def run(self, fence: Fence, before_fence: Deadline) -> Result:
        """Hand the message over and say what is proven; whatever happens, the connection is gone afterwards.

        The fence is asked for after the recipients were accepted, just before DATA: nothing before that can make a
        message, so a refusal or a failure there costs no certainty.
        """
        try:
            self._refuse_misfit()
            await self._envelope(before_fence)
            window = (await fence()).seconds
            deadline = Deadline.after(window * (1 - _MARGIN))
            await self._body(deadline.earlier(window * _FOR_THE_REPLY))
            return await self._terminator(deadline)
        except _Ended as ended:
            self.session.leave()
            return ended.result
        except Spoke as early:
            return self._out_of_step(early)
        except WireBroken as broken:
            return Retry(f"{broken} (at {self.stage}); nothing was handed over", evidence=self._evidence())
        finally:
            self.session.abort()

    def _refuse_misfit(self) -> None:
        """End a transaction that this relay cannot carry, by what it offered."""
        limit, size = self.session.size_limit, len(self.composed.content)
        if limit is not None and size > limit:
            evidence = {**self._evidence(), "size_limit": limit}
            raise _Ended(Failed(StopReason.REJECTED, "the message is larger than the relay takes", evidence))
        if self.composed.smtputf8 and "smtputf8" not in self.session.offers:
            reason = "an address needs SMTPUTF8, which the relay does not offer"
            raise _Ended(Failed(StopReason.UNDELIVERABLE, reason, self._evidence()))

    async def _envelope(self, deadline: Deadline) -> None:
        wire = self.session.wire()
        self.stage = Stage.MAIL
        reply = await wire.command(self._mail(), deadline.left(self.step_timeout))
        if (verdict := judge(self.stage, reply)) is not Verdict.ACCEPTED:
            raise _Ended(self._refused(verdict, reply))
        self.stage = Stage.RCPT
        replies = []
        for recipient in self.composed.recipients:
            line = b"RCPT TO:<" + recipient.encode() + b">"
            reply = await wire.command(line, deadline.left(self.step_timeout))
            replies.append(reply)
            if reply.code == 421:  # noqa: PLR2004 - the relay closes the connection (RFC 5321 section 3.8)
                break
        self._refuse_some(replies)

    def _refuse_some(self, replies: list[Reply]) -> None:
        """All or nothing: when any recipient was refused, nobody is written to."""
        verdicts = [judge(Stage.RCPT, reply) for reply in replies]
        refused = [pair for pair in zip(verdicts, replies, strict=True) if pair[0] is not Verdict.ACCEPTED]
        if not refused:
            return
        self.session.wire().say_goodbye(b"RSET\r\n")
        worst = next((pair for pair in refused if pair[0] in _STOP_REASONS), refused[0])
        evidence: Evidence = {
            "codes": [reply.code for reply in replies],
            "refused": [str(reply) for _, reply in refused],
        }
        codes = ", ".join(str(reply) for _, reply in refused)
        total = len(self.composed.recipients)
        reason = f"the relay refused {len(refused)} of {total} recipients: {codes}" if total > 1 else None
        raise _Ended(self._refused(*worst, reason=reason, more=evidence))

    async def _body(self, deadline: Deadline) -> None:
        wire = self.session.wire()
        self.stage = Stage.DATA
        reply = await wire.command(b"DATA", deadline.left(self.step_timeout))
        if (verdict := judge(self.stage, reply)) is not Verdict.ACCEPTED:
            raise _Ended(self._refused(verdict, reply))
        self.stage = Stage.BODY
        stuffed = _DOTS.sub(b"..", self.composed.content)
        for start in range(0, len(stuffed), CHUNK):
            await wire.send(stuffed[start : start + CHUNK], deadline.left(self.step_timeout))
        await wire.listen(deadline.left(self.step_timeout))
        if not deadline.left():
            raise _Ended(Retry("the write window left no time for the reply", evidence=self._evidence()))

    async def _terminator(self, deadline: Deadline) -> Result:
        """Write the terminator and read the reply to it. Every way out but a complete reply is uncertain."""
        wire = self.session.wire()
        self.stage = Stage.DOT
        try:
            wire.end_message()
            reply = await wire.reply(deadline.left())
        except WireBroken as broken:
            return Uncertain(f"{broken} after the message was handed over", self._evidence())
        except Exception:  # noqa: BLE001 - whatever it is, it came after the terminator
            return Uncertain("an error after the message was handed over", self._evidence())
        if wire.spoken:
            reason = "the relay sent more than one reply to the message"
            return Uncertain(reason, {**self._evidence(reply), "replies": "several"})
        wire.say_goodbye(b"QUIT\r\n")
        verdict = judge(self.stage, reply)
        if verdict is Verdict.ACCEPTED:
            return Done(self.composed.message_id, evidence=self._evidence(reply))
        return self._refused(verdict, reply)

    def _out_of_step(self, early: Spoke) -> Result:
        """The result of a reply that answers nothing.

        In the body a refusal is a refusal; anything else proves no more than that the terminator was not written.
        """
        verdict = judge(Stage.BODY, early.reply)
        if self.stage is Stage.BODY and verdict is Verdict.REJECTED:
            return self._refused(verdict, early.reply)
        return Retry(f"{early} (at {self.stage}); nothing was handed over", evidence=self._evidence(early.reply))

    def _refused(
        self, verdict: Verdict, reply: Reply, *, reason: str | None = None, more: Evidence | None = None
    ) -> Result:
        """The result of a reply that does not let the transaction go on."""
        evidence = {**self._evidence(reply), **(more or {})}
        words = reason or f"{_WORDS[self.stage]}: {reply}"
        match verdict:
            case Verdict.REJECTED | Verdict.UNDELIVERABLE:
                return Failed(_STOP_REASONS[verdict], words, evidence)
            case Verdict.NOT_LET_IN:
                log.error(
                    "the relay answered %s at %s: it wants a login that the settings do not give", reply, self.stage
                )
                return Retry(f"the relay wants a login: {reply}", long_wait(self.attempt), evidence)
            case Verdict.UNKNOWN:
                return Uncertain(f"the relay's reply to the message is neither yes nor no: {reply}", evidence)
            case _:
                return Retry(words, evidence=evidence)

    def _mail(self) -> bytes:
        line = b"MAIL FROM:<" + self.composed.mail_from.encode() + b">"
        if "size" in self.session.offers:
            line += b" SIZE=%d" % len(self.composed.content)
        if self.composed.smtputf8:
            line += b" SMTPUTF8"
            if "8bitmime" in self.session.offers:
                line += b" BODY=8BITMIME"
        return line

    def _evidence(self, reply: Reply | None = None) -> Evidence:
        facts: Evidence = {
            "stage": str(self.stage),
            "message_id": self.composed.message_id,
            "recipients": len(self.composed.recipients),
            "bytes": len(self.composed.content),
            "tls": self.session.tls,
        }
        return facts if reply is None else {**facts, "code": reply.code, "extended": reply.extended}
