"""What came of one request to Slack, in our own words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeoutbox import Evidence
from edgeoutbox_slack.codes import NO_MORE, Meaning, look_up
from edgeoutbox_slack.waits import retry_after

_OK = 200
_TOO_MANY = 429
_REDIRECTS = range(300, 400)
_SERVER_ERRORS = range(500, 600)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request led to.

    `said` is our own account of it, `code` the name of Slack's error if we know it. `body` is what Slack answered
    when it confirmed, else empty; `rest` the seconds that it asks us to wait; `scopes` what the token may do.
    `untrusted`: its certificate was not accepted.
    """

    meaning: Meaning
    said: str
    code: str | None = None
    status: int | None = None
    rest: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    scopes: frozenset[str] | None = None
    untrusted: bool = False

    @property
    def needs_attention(self) -> bool:
        """Whether somebody must mend something before it can work."""
        return self.untrusted or self.meaning is Meaning.LOGIN

    def evidence(self, method: str) -> Evidence:
        """What may be stored of it."""
        return {"method": method, "meaning": self.meaning.value, "status": self.status, "code": self.code}


def read_answer(  # noqa: PLR0911 - a table, one return for each kind of answer
    status: int, headers: Mapping[str, str], body: object, more_codes: Mapping[str, Meaning] = NO_MORE
) -> Answer:
    """What a complete HTTP answer means; `body` is its JSON, or `None` when it was none."""
    if status in _SERVER_ERRORS:
        return Answer(Meaning.UNCLEAR, f"Slack answered with status {status}", status=status)
    if status in _REDIRECTS:
        return Answer(Meaning.UNCLEAR, "Slack sent us elsewhere, which is refused", status=status)
    said_ok = body.get("ok") if isinstance(body, Mapping) else None
    if status == _TOO_MANY and said_ok is not True:
        return _limited(status, headers)
    if not isinstance(body, Mapping) or not isinstance(said_ok, bool):
        return Answer(Meaning.UNCLEAR, "Slack's answer is not readable", status=status)
    if said_ok:
        return _confirmed(status, headers, body)
    code = body.get("error")
    meaning, name = look_up(code, more_codes) if isinstance(code, str) else (Meaning.UNCLEAR, None)
    if meaning is Meaning.LIMITED:
        return _limited(status, headers, name)
    said = f"Slack answered {name}" if name else "Slack answered with a code that is not known here"
    return Answer(meaning, said, name, status, scopes=_scopes(headers))


def _limited(status: int, headers: Mapping[str, str], code: str | None = None) -> Answer:
    rest = retry_after(headers.get("Retry-After"))
    return Answer(Meaning.LIMITED, "Slack asks us to slow down", code, status, rest)


def _confirmed(status: int, headers: Mapping[str, str], body: Mapping[str, Any]) -> Answer:
    if status != _OK:
        return Answer(Meaning.UNCLEAR, f"Slack confirmed with status {status}", status=status)
    return Answer(Meaning.CONFIRMED, "Slack confirmed", status=status, body=body, scopes=_scopes(headers))


def _scopes(headers: Mapping[str, str]) -> frozenset[str] | None:
    listed = headers.get("X-OAuth-Scopes")
    return None if listed is None else frozenset(filter(None, (scope.strip() for scope in listed.split(","))))
