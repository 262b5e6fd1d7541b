"""What `doctor` learns about a relay, without sending anything."""

import ssl

from edgeoutbox import Check, Deadline
from edgeoutbox_smtp.relay import Relay, Security
from edgeoutbox_smtp.replies import Stage
from edgeoutbox_smtp.session import NotOpened, open_session

_TOLD = ("size", "smtputf8", "8bitmime", "pipelining", "enhancedstatuscodes")
_ORDER = list(Stage)
_STEPS_IN_ALL = 7


async def check_relay(relay: Relay, tls: ssl.SSLContext | None) -> list[Check]:
    """Connect, negotiate TLS and log in; one check for each, up to the first that fails."""
    opened = await open_session(relay, tls, Deadline.after(relay.timeout * _STEPS_IN_ALL))
    checks = [
        (Stage.GREETING, Check("relay", ok=True, detail="it answers")),
        (Stage.STARTTLS, Check("tls", ok=True, detail=_protection(relay, opened))),
        (Stage.AUTH, Check("login", ok=True, detail="accepted" if relay.username else "none is configured")),
    ]
    if isinstance(opened, NotOpened):
        passed = [check for stage, check in checks if _ORDER.index(stage) < _ORDER.index(opened.stage)]
        name = "login" if opened.stage is Stage.AUTH else "tls" if "tls" in opened.stage else "relay"
        return [*(check for check in passed if check.name != name), Check(name, ok=False, detail=opened.reason)]
    offers = [f"{name.upper()} {opened.offers[name]}".strip() for name in _TOLD if name in opened.offers]
    opened.leave()
    return [*(check for _, check in checks), Check("offers", ok=True, detail=", ".join(offers) or "plain SMTP")]


def _protection(relay: Relay, opened: object) -> str:
    if relay.security is Security.PLAINTEXT:
        return "none: plaintext, as configured"
    return f"{getattr(opened, 'tls', None) or 'TLS'}, by {relay.security}"
