"""The session before the mail transaction: connect, greeting, EHLO, TLS, login. Nothing can exist at the relay yet.

aiosmtplib carries these steps out. It is driven one step at a time, because one call for all of them cannot say
which one failed, and without its own way out: its context manager waits for the reply to QUIT.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import aiosmtplib

from edgeoutbox import Deadline
from edgeoutbox_smtp.relay import Relay, Security
from edgeoutbox_smtp.replies import Reply, Stage
from edgeoutbox_smtp.wire import Wire

_CLOSING = 421


@dataclass(frozen=True, slots=True)
class NotOpened:
    """Why there is no session. `needs_attention`: waiting will not help, somebody must look at the settings."""

    stage: Stage
    reason: str
    needs_attention: bool = False
    reply: Reply | None = None


class NotOffered(Exception):
    """The relay does not offer what the settings ask for; the text is our own words."""


class _Client(aiosmtplib.SMTP):
    """aiosmtplib's client, whose every way of closing is an abort: a close would still send what is buffered."""

    def close(self) -> None:
        """Throw the connection away."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        super().close()


class Session:
    """A connection that is ready for MAIL."""

    def __init__(self, client: aiosmtplib.SMTP) -> None:
        self._transport = cast("asyncio.Transport", client.transport)
        self._wire: Wire | None = None
        self.offers: Mapping[str, str] = dict(client.esmtp_extensions)
        cipher = self._transport.get_extra_info("ssl_object")
        self.tls: str | None = cipher.version() if cipher is not None else None

    @property
    def size_limit(self) -> int | None:
        """The most bytes of one message that the relay takes, when it says so (RFC 1870; 0 means no limit)."""
        words = self.offers.get("size", "").split()
        return int(words[0]) or None if words and words[0].isdecimal() else None

    def wire(self) -> Wire:
        """Take the connection over for the mail transaction."""
        if self._wire is None:
            self._wire = Wire(self._transport)
        return self._wire

    def leave(self) -> None:
        """Say QUIT without waiting for an answer, and end the connection."""
        with suppress(Exception):
            if not self._transport.is_closing():
                self._transport.write(b"QUIT\r\n")
        self.abort()

    def abort(self) -> None:
        """End the connection now and throw away what is buffered: closing it would still send that."""
        self._transport.abort()


async def open_session(relay: Relay, tls: ssl.SSLContext | None, deadline: Deadline) -> Session | NotOpened:
    """Connect and log in. Answers `NotOpened` for whatever goes wrong; only a cancellation is raised."""
    client = _Client(
        hostname=relay.host,
        port=relay.port,
        timeout=relay.timeout,
        # Not what EHLO says: only there so that aiosmtplib does not look our own name up, outside of every timeout.
        local_hostname="localhost",
        use_tls=relay.security is Security.TLS,
        start_tls=False,
        tls_context=tls,
    )
    stage = Stage.CONNECT
    try:
        async with asyncio.timeout(deadline.left()):
            for stage, step in _steps(relay):  # noqa: B007 - an error is explained by the step that it came from
                await step(client, relay)
            return Session(client)
    except Exception as error:  # noqa: BLE001 - aiosmtplib lets errors of many kinds through; here all mean the same
        client.close()
        return _explain(stage, error)
    except BaseException:
        client.close()
        raise


_Step = Callable[[aiosmtplib.SMTP, Relay], Awaitable[None]]


def _steps(relay: Relay) -> list[tuple[Stage, _Step]]:
    steps: list[tuple[Stage, _Step]] = [(Stage.CONNECT, _connect), (Stage.EHLO, _ehlo)]
    if relay.security is Security.STARTTLS:
        steps += [(Stage.STARTTLS, _starttls), (Stage.EHLO, _ehlo)]
    if relay.username is not None:
        steps += [(Stage.AUTH, _login)]
    return steps


async def _connect(client: aiosmtplib.SMTP, relay: Relay) -> None:
    await client.connect()
    client.local_hostname = relay.local_hostname or _address_literal(client)


async def _ehlo(client: aiosmtplib.SMTP, relay: Relay) -> None:  # noqa: ARG001 - every step has one shape
    try:
        await client.ehlo()
    except aiosmtplib.SMTPHeloError:
        if not client.is_connected:
            raise
        await client.helo()


async def _starttls(client: aiosmtplib.SMTP, relay: Relay) -> None:
    if not client.supports_extension("starttls"):
        raise NotOffered(
            'the relay does not offer STARTTLS; if it speaks TLS from the first byte, write smtps:// (security "tls"); '
            'if nothing needs to be encrypted on the way to it, set security = "plaintext"'
        )
    await client.starttls(server_hostname=relay.host)


async def _login(client: aiosmtplib.SMTP, relay: Relay) -> None:
    """Log in by one mechanism: trying them all would spend three tries of a lock-out on one wrong password."""
    username, password = relay.username or "", relay.password or ""
    over_tls = client.get_transport_info("sslcontext") is not None
    mechanisms = {"plain": client.auth_plain, "login": client.auth_login, "cram-md5": client.auth_crammd5}
    order = ("plain", "login", "cram-md5") if over_tls else ("cram-md5", "plain", "login")
    for name in order:
        if name in client.server_auth_methods:
            await mechanisms[name](username, password)
            return
    raise NotOffered("the relay offers no way to log in that is known here")


def _address_literal(client: aiosmtplib.SMTP) -> str:
    """Our own address, the name of a host that may have no other (RFC 5321 section 4.1.3)."""
    address = str(client.get_transport_info("sockname")[0]).partition("%")[0]
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"


_WORDS = {
    Stage.CONNECT: "cannot connect to the relay",
    Stage.GREETING: "the relay's greeting was no welcome",
    Stage.TLS: "cannot negotiate TLS with the relay",
    Stage.EHLO: "the relay refused EHLO",
    Stage.STARTTLS: "the relay refused STARTTLS",
    Stage.AUTH: "the relay refused the login",
}


def _explain(stage: Stage, error: Exception) -> NotOpened:  # noqa: PLR0911 - one return for each sort of error
    if isinstance(error, NotOffered):
        return NotOpened(stage, str(error), needs_attention=True)
    if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return NotOpened(Stage.TLS, _words_of_tls(error), needs_attention=True)
    if isinstance(error, aiosmtplib.SMTPResponseException):
        stage = Stage.GREETING if stage is Stage.CONNECT else stage
        if error.code < 0:
            return NotOpened(stage, f"{_WORDS[stage]}: it sent what is not an SMTP reply")
        reply = Reply.of(error.code, error.message)
        attention = stage in {Stage.STARTTLS, Stage.AUTH} and error.code != _CLOSING
        return NotOpened(stage, f"{_WORDS[stage]}: {reply}", needs_attention=attention, reply=reply)
    if isinstance(error, TimeoutError):
        return NotOpened(stage, f"the relay did not answer in time (at {stage})")
    if stage is Stage.CONNECT:
        return NotOpened(stage, _WORDS[stage])
    return NotOpened(stage, f"the connection to the relay was lost (at {stage})")


def _words_of_tls(error: Exception) -> str:
    causes = (error, error.__cause__)
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return "the relay's certificate was not accepted"
    return _WORDS[Stage.TLS]
