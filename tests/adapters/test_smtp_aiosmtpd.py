"""The same adapter against a server that somebody else wrote."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from edgeoutbox.results import Defer, Done, Failed, Retry, Uncertain
from edgeoutbox_smtp import Relay, SmtpAdapter
from tests.adapters.smtp_building import JANE, SENDER, a_message, an_attempt, client_context, server_context

LOGIN = {"username": "shop", "password": "open sesame"}


class Mailbox:
    """A handler that keeps what it accepts, and answers the message with `reply`."""

    def __init__(self, reply: str = "250 2.0.0 taken", recipient: str = "250 ok") -> None:
        self.reply = reply
        self.recipient = recipient
        self.envelopes: list[Envelope] = []

    async def handle_RCPT(  # noqa: N802 - aiosmtpd looks for this name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Accept or refuse a recipient."""
        del server, session, options
        if self.recipient.startswith("2"):
            envelope.rcpt_tos.append(address)
        return self.recipient

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - likewise
        """Keep the message."""
        del server, session
        self.envelopes.append(envelope)
        return self.reply


@asynccontextmanager
async def serving(mailbox: Mailbox, **options: Any) -> AsyncIterator[int]:
    """The port of a server on loopback."""
    loop = asyncio.get_running_loop()
    sessions: list[SMTP] = []

    def session() -> SMTP:
        sessions.append(SMTP(mailbox, loop=loop, hostname="relay.test", **options))
        return sessions[-1]

    server = await loop.create_server(session, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in sessions:
            if isinstance(each.transport, asyncio.WriteTransport):
                each.transport.abort()
        await server.wait_closed()


def check_password(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    del server, session, envelope, mechanism
    assert isinstance(data, LoginPassword)
    return AuthResult(success=(data.login, data.password) == (b"shop", b"open sesame"), handled=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(authority: trustme.CA) -> ssl.SSLContext:
    return server_context(authority, "127.0.0.1")


def adapter_for(port: int, **fields: Any) -> SmtpAdapter:
    return SmtpAdapter(Relay(**{"host": "127.0.0.1", "port": port, "timeout": 5.0, **fields}), sender=SENDER)


async def test_a_message_arrives() -> None:
    """Envelope and content come through a plaintext relay, dots and line ends included."""
    mailbox = Mailbox()
    async with serving(mailbox, enable_SMTPUTF8=True) as port:
        message = a_message(text=".\n..\nend", bcc=("eve@example.com",))
        result = await adapter_for(port, security="plaintext").execute(an_attempt(message))
    assert isinstance(result, Done)
    (envelope,) = mailbox.envelopes
    assert (envelope.mail_from, envelope.rcpt_tos) == ("shop@example.com", [JANE, "eve@example.com"])
    assert isinstance(envelope.content, bytes)
    assert envelope.content.endswith(b"\r\n\r\n.\r\n..\r\nend\r\n")
    assert str(result.readback_ref).encode() in envelope.content


async def test_a_message_arrives_by_starttls_and_login(authority: trustme.CA, encrypted: ssl.SSLContext) -> None:
    """The whole way in: STARTTLS with a certificate that is checked, then AUTH."""
    mailbox = Mailbox()
    options = {"tls_context": encrypted, "require_starttls": True, "auth_required": True}
    async with serving(mailbox, authenticator=check_password, **options) as port:
        adapter = adapter_for(port, **LOGIN, tls_context=client_context(authority))
        result = await adapter.execute(an_attempt())
        checks = await adapter.check()
    assert isinstance(result, Done)
    assert len(mailbox.envelopes) == 1
    assert all(check.ok for check in checks)


async def test_a_wrong_password_defers(authority: trustme.CA, encrypted: ssl.SSLContext) -> None:
    """A refused login sends nothing and spends no attempt."""
    mailbox = Mailbox()
    options = {"tls_context": encrypted, "require_starttls": True, "auth_required": True}
    async with serving(mailbox, authenticator=check_password, **options) as port:
        adapter = adapter_for(port, **{**LOGIN, "password": "wrong"}, tls_context=client_context(authority))
        result = await adapter.execute(an_attempt())
    assert isinstance(result, Defer)
    assert result.evidence["code"] == 535


async def test_a_certificate_of_a_stranger_defers(encrypted: ssl.SSLContext) -> None:
    """Without trust in the certificate nothing is said."""
    mailbox = Mailbox()
    async with serving(mailbox, tls_context=encrypted) as port:
        result = await adapter_for(port).execute(an_attempt())
    assert isinstance(result, Defer)
    assert result.evidence["stage"] == "tls"


@pytest.mark.parametrize(
    ("mailbox", "expected"),
    [
        (Mailbox(reply="451 4.3.0 later"), Retry),
        (Mailbox(reply="550 5.7.1 no"), Failed),
        (Mailbox(reply="354 what"), Uncertain),
        (Mailbox(recipient="450 4.2.0 later"), Retry),
        (Mailbox(recipient="550 5.1.1 no"), Failed),
    ],
)
async def test_its_answers_are_understood(mailbox: Mailbox, expected: type) -> None:
    """Refusals for now, refusals for good, and nonsense."""
    async with serving(mailbox) as port:
        result = await adapter_for(port, security="plaintext").execute(an_attempt())
    assert type(result) is expected


async def test_its_size_limit_is_respected() -> None:
    """A message over the limit is never offered."""
    mailbox = Mailbox()
    async with serving(mailbox, data_size_limit=1000) as port:
        result = await adapter_for(port, security="plaintext").execute(an_attempt(a_message(text="long\n" * 500)))
    assert isinstance(result, Failed)
    assert mailbox.envelopes == []
