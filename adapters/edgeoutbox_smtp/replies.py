"""What a relay's reply proves, as a table.

A code's first digit carries the meaning (RFC 5321 section 4.2.1); a few codes mean something of their own at one
step. The rule behind every row: a doubt never becomes a second message.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

_EXTENDED = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?=\s|$)")


class Stage(StrEnum):
    """How far a session had come, in the order in which it goes."""

    CONNECT = "connect"
    GREETING = "greeting"
    TLS = "tls"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    OFFERS = "offers"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    BODY = "body"
    DOT = "dot"


class Verdict(StrEnum):
    """What a reply to a step of the mail transaction proves."""

    ACCEPTED = "accepted"
    NOT_NOW = "not now"
    """The relay holds nothing; a later attempt may work."""
    NOT_LET_IN = "not let in"
    """The relay wants a login or encryption that our settings do not give it: it holds nothing."""
    REJECTED = "rejected"
    UNDELIVERABLE = "undeliverable"
    UNKNOWN = "unknown"
    """The message may have been taken."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply: its code and, when it began with one, its extended status code (RFC 3463). Never its text."""

    code: int
    extended: str | None = None

    @classmethod
    def of(cls, code: int, text: str) -> "Reply":
        """The reply of a code and a text; the text is read for an extended code and forgotten."""
        found = _EXTENDED.match(text)
        return cls(code, found[0] if found and found[1] == str(code)[:1] else None)

    def __str__(self) -> str:
        return f"{self.code} {self.extended}" if self.extended else str(self.code)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: at these stages, a reply whose code and extended code start like this proves the verdict."""

    stages: frozenset[Stage]
    code: str
    verdict: Verdict
    extended: str = ""


_MAIL, _RCPT, _DATA = frozenset({Stage.MAIL}), frozenset({Stage.RCPT}), frozenset({Stage.DATA})
_BODY, _DOT = frozenset({Stage.BODY}), frozenset({Stage.DOT})
_COMMANDS = _MAIL | _RCPT | _DATA

RULES: tuple[Rule, ...] = (
    # 530 and 538: authentication, or encryption for it, is required (RFC 4954 section 6). Our settings, not the mail.
    Rule(_COMMANDS, "530", Verdict.NOT_LET_IN),
    Rule(_COMMANDS, "538", Verdict.NOT_LET_IN),
    # 552 to RCPT is an old way to say "too many recipients" (RFC 5321 section 4.5.3.1.10).
    Rule(_RCPT, "552", Verdict.NOT_NOW),
    # 251 and 252 are acceptances too (RFC 5321 section 3.4, 3.5.3).
    Rule(_MAIL | _RCPT | _DOT, "2", Verdict.ACCEPTED),
    Rule(_DATA, "354", Verdict.ACCEPTED),
    Rule(_COMMANDS | _DOT | _BODY, "4", Verdict.NOT_NOW),
    # A policy (RFC 3463 section 3.8) refuses us; any other refusal of a recipient says that it cannot be reached.
    Rule(_RCPT, "5", Verdict.REJECTED, extended="5.7."),
    Rule(_RCPT, "5", Verdict.UNDELIVERABLE),
    Rule(_MAIL | _DATA | _BODY | _DOT, "5", Verdict.REJECTED),
    # What came before the terminator is no reply to it, whatever it says: nothing was handed over.
    Rule(_COMMANDS | _BODY, "", Verdict.NOT_NOW),
    # A reply to the terminator that is neither yes nor no proves nothing.
    Rule(_DOT, "", Verdict.UNKNOWN),
)
"""First match wins. Every stage of a mail transaction ends in a row that matches any code."""


def judge(stage: Stage, reply: Reply) -> Verdict:
    """What the reply proves at this stage of a mail transaction."""
    for rule in RULES:
        if (
            stage in rule.stages
            and str(reply.code).startswith(rule.code)
            and (reply.extended or "").startswith(rule.extended)
        ):
            return rule.verdict
    raise LookupError(stage)
