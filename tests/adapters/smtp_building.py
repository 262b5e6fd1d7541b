"""What the SMTP tests arrange: an adapter for a relay on loopback, and literal messages."""

import ssl
from collections.abc import Mapping
from typing import Any

import trustme

from edgeoutbox.results import Result
from edgeoutbox.testing.attempt import ScriptedAttempt, an_action
from edgeoutbox.testing.relay import ScriptedRelay
from edgeoutbox_smtp import EmailNotice, Message, Relay, SmtpAdapter

SENDER = "Shop <shop@example.com>"
JANE = "jane@example.com"
BIG = "A line of a long message, which does not fit into what a system buffers.\n" * 100_000
"""About 7 MB: more than sockets take when nobody reads."""


def a_relay(server: ScriptedRelay, **fields: Any) -> Relay:
    """The settings for a scripted relay, without encryption and quick to give up."""
    usual: Mapping[str, Any] = {"host": server.host, "port": server.port, "security": "plaintext", "timeout": 5.0}
    return Relay(**{**usual, **fields})


def an_adapter(server: ScriptedRelay, *, fields: Mapping[str, Any] | None = None, **options: Any) -> SmtpAdapter:
    """An adapter for a scripted relay; `fields` are those of its `Relay`."""
    return SmtpAdapter(a_relay(server, **(fields or {})), **{"sender": SENDER, **options})


def a_message(**fields: Any) -> Message:
    """A short literal message to Jane."""
    return Message(**{"to": (JANE,), "subject": "Your receipt", "text": "Thank you.\n", **fields})


def an_attempt(payload: EmailNotice[Any] | None = None, **options: Any) -> ScriptedAttempt[EmailNotice[Any]]:
    """An attempt of a short message, or of this payload; `key` is its idempotency key."""
    action = an_action(idempotency_key=options.pop("key", "order:42:receipt"), attempt=options.pop("attempt", 1))
    return ScriptedAttempt(a_message() if payload is None else payload, action, **options)


def code_of(result: Result) -> object:
    """The reply code that a result's evidence names."""
    return result.evidence.get("code")


def server_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """A server's context with a certificate of the authority for these names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    """A client's context that trusts this authority and no other."""
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    authority.configure_trust(context)
    return context
