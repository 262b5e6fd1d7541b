"""The adapter: from a payload to a result."""

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, Unpack

from edgeoutbox import (
    Adapter,
    Attempt,
    Cancelled,
    Check,
    ConfigurationError,
    Deadline,
    Defer,
    Delivery,
    Done,
    Evidence,
    Failed,
    InvalidPayload,
    Kind,
    KindLimits,
    NotNeeded,
    Result,
    Retry,
    StopReason,
    Uncertain,
    WriteWindow,
    tagged,
)
from edgeoutbox_smtp.addresses import Address
from edgeoutbox_smtp.capture import capture
from edgeoutbox_smtp.checks import check_relay
from edgeoutbox_smtp.compose import Composed, compose
from edgeoutbox_smtp.emails import Email
from edgeoutbox_smtp.errors import InvalidEmail
from edgeoutbox_smtp.notices import EmailNotice, Message
from edgeoutbox_smtp.preview import preview_text
from edgeoutbox_smtp.relay import Relay
from edgeoutbox_smtp.session import NotOpened, open_session
from edgeoutbox_smtp.settings import Settings
from edgeoutbox_smtp.transaction import Fence, Transaction

log = logging.getLogger("edgeoutbox.smtp")

_SHARE_BEFORE_FENCE = 0.9
_AT_LEAST_BEFORE_FENCE = 1.0


class SmtpAdapter(Adapter[EmailNotice[Any]]):
    """Carries out emails through one relay, at most once each.

    `relay` may be `None` for a process that only enqueues, or that captures. `sender` is the address that messages
    come from; `notices` are the application's own, beside the built-in `message`, and `app` is what they are given.
    `deliver="capture"` writes each message into `capture_dir` instead of sending it. `attachments_dir` is the only
    folder that a literal message may name files in. The rest are the limits of the kind, in seconds and days; the
    relay has `write_window` seconds to take a message, and a slower one ends it UNCERTAIN. Raises
    `ConfigurationError`.
    """

    def __init__(
        self,
        relay: Relay | None,
        *,
        sender: str,
        notices: Sequence[type[EmailNotice[Any]]] = (),
        app: Any = None,
        deliver: Literal["send", "capture"] = "send",
        capture_dir: Path | str | None = None,
        attachments_dir: Path | str | None = None,
        kind: str = "email",
        **limits: Unpack[KindLimits],
    ) -> None:
        if not isinstance(relay, Relay | None):
            raise ConfigurationError(
                f'relay: is a {type(relay).__name__}; give a Relay, such as Relay.parse("smtp://host:587"), or None'
            )
        try:
            Address.parse(sender)
        except ValueError as error:
            raise ConfigurationError(f"sender: {error}") from None
        if deliver not in {"send", "capture"}:
            raise ConfigurationError("deliver: choose send or capture")
        if deliver == "capture" and capture_dir is None:
            raise ConfigurationError("capture_dir: is needed to capture messages")
        self.kind = Kind(
            kind,
            variants=tagged(reduce(or_, notices, Message)),
            delivery=Delivery.AT_MOST_ONCE,
            **limits,
        )
        if self.kind.lease <= self.kind.write_window:
            raise ConfigurationError("lease: must be longer than write_window, or nothing could ever be sent")
        self._relay = relay
        self._sender = sender
        self._app = app
        self._capture_dir = Path(capture_dir) if deliver == "capture" and capture_dir is not None else None
        self._attachments_dir = None if attachments_dir is None else Path(attachments_dir)
        self._tls: ssl.SSLContext | None = None

    @classmethod
    def configure(cls, kind_name: str, settings: Mapping[str, object]) -> "SmtpAdapter":
        """The adapter of a configuration table. Raises `ConfigurationError` naming kind and setting, never a value."""
        read = Settings.read(kind_name, settings)
        try:
            return cls(
                read.make_relay(),
                kind=kind_name,
                sender=read.sender,
                deliver=read.deliver,
                capture_dir=read.capture_dir,
                attachments_dir=read.attachments_dir,
                **read.limits(),
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"kind {kind_name}: {error}") from None

    async def execute(self, attempt: Attempt[EmailNotice[Any]]) -> Result:
        """Make the message, and hand it over once."""
        before_fence = self._before_fence()
        if attempt.inherited_write_at is not None:
            return Uncertain("an earlier attempt may have handed the message over", {"stage": "inherited"})
        action = attempt.action
        try:
            email = await self._email(attempt.payload)
            if isinstance(email, NotNeeded):
                return Cancelled(StopReason.NOT_NEEDED, email.reason, {"stage": "notice"})
            composed = self._compose(email, action.idempotency_key, action.created_at)
        except InvalidPayload as error:
            # Only our own words are stored; what an application's notice says may hold anything.
            words = str(error) if isinstance(error, InvalidEmail) else "the notice refused its event"
            return Failed(StopReason.INVALID_PAYLOAD, words, {"stage": "notice"})
        if self._capture_dir is not None:
            return await self._capture(self._capture_dir, composed, attempt)
        return await self._send(composed, attempt.begin_write, before_fence, action.attempt)

    async def prepare(self, payload: EmailNotice[Any]) -> EmailNotice[Any]:
        """Make the whole message once, so that one that cannot be sent is refused now.

        Returns the payload with the digests of its files. Raises `InvalidPayload`, and what a notice raises.
        """
        if isinstance(payload, Message):
            payload = await asyncio.to_thread(payload.sealed, self._attachments_dir)
        email = await self._email(payload)
        if isinstance(email, Email):
            self._compose(email, "", 0)
        return payload

    async def preview(self, payload: EmailNotice[Any]) -> str:
        """The message with everything in it, as text."""
        email = await self._email(payload)
        if isinstance(email, NotNeeded):
            return f"Nothing would be sent: {email.reason or 'it is not needed any more'}"
        return preview_text(email, self._sender)

    async def check(self) -> Sequence[Check]:
        """Whether a message could be handed over now: connects and logs in, and sends nothing."""
        if self._capture_dir is not None:
            return [Check("deliver", ok=True, detail="messages are captured as files, nothing is sent")]
        if self._relay is None:
            return [Check("relay", ok=False, detail="none is configured; set `relay`")]
        try:
            tls = await self._tls_context(self._relay)
        except ConfigurationError as error:
            return [Check("tls", ok=False, detail=str(error))]
        return await check_relay(self._relay, tls)

    async def send_test_message(self, to: str) -> Check:
        """Send one short message to the address, without an action, and say what the relay answered.

        Raises `InvalidEmail` for what is no address.
        """
        email = Email(to=to, subject="Test message", text="This message shows that email can be sent from here.\n")
        key = f"test:{secrets.token_hex(16)}"
        composed = self._compose(email, key, time.time_ns() // 1_000_000)
        if self._capture_dir is not None:
            await asyncio.to_thread(capture, self._capture_dir, composed, action_id=0, key=key)
            return Check("test message", ok=True, detail="captured as a file")
        result = await self._send(composed, self._unfenced, self._before_fence(), 1)
        if isinstance(result, Done):
            code = result.evidence.get("code")
            return Check("test message", ok=True, detail=f"the relay took it ({code}) as {composed.message_id}")
        return Check("test message", ok=False, detail=f"{type(result).__name__}: {getattr(result, 'reason', '')}")

    def destination(self) -> str:
        """The relay, or where messages are captured."""
        if self._capture_dir is not None:
            return f"no relay; captured in {self._capture_dir}"
        relay = self._relay
        return "no relay" if relay is None else f"relay {relay.host}:{relay.port} ({relay.security})"

    def settings(self) -> str:
        """Every setting of the connection, the password too."""
        relay = self._relay
        return repr((relay, relay.password if relay else None, self._sender, self._capture_dir))

    async def _unfenced(self) -> WriteWindow:
        return WriteWindow(self.kind.write_window)

    def _before_fence(self) -> Deadline:
        """When to give up before the fence: a little before the executor does, so that we say why."""
        seconds = (self.kind.lease - self.kind.write_window) * _SHARE_BEFORE_FENCE
        return Deadline.after(max(seconds, _AT_LEAST_BEFORE_FENCE))

    async def _email(self, payload: EmailNotice[Any]) -> Email | NotNeeded:
        if isinstance(payload, Message):
            if self.kind.requires_approval and any(file.path and not file.sha256 for file in payload.attachments):
                raise InvalidEmail("attachments: a file that must be approved needs its sha256")
            return await asyncio.to_thread(payload.email, self._attachments_dir)
        return await payload.prepare(self._app)

    def _compose(self, email: Email, key: str, created_at: int) -> Composed:
        return compose(email, sender=self._sender, key=key, created_at=created_at)

    async def _send(self, composed: Composed, fence: Fence, before_fence: Deadline, attempt: int) -> Result:
        if self._relay is None:
            log.error("kind %s: no relay is configured, so nothing can be sent", self.kind.name)
            return Defer("no relay is configured", scope="kind", evidence={"stage": "settings"})
        try:
            tls = await self._tls_context(self._relay)
        except ConfigurationError as error:
            log.error("kind %s: %s", self.kind.name, error)  # noqa: TRY400 - a stack trace would say no more
            return Defer(str(error), scope="kind", evidence={"stage": "settings"})
        opened = await open_session(self._relay, tls, before_fence)
        if isinstance(opened, NotOpened):
            return self._deferred(opened)
        transaction = Transaction(opened, composed, self._relay.timeout, attempt)
        return await transaction.run(fence, before_fence)

    def _deferred(self, failure: NotOpened) -> Defer:
        """Nothing was said yet, so nothing is lost: the kind waits until the relay lets it in again."""
        if failure.needs_attention:
            log.error("kind %s: %s; no email is sent until this is mended", self.kind.name, failure.reason)
        reply = failure.reply
        evidence: Evidence = {
            "stage": str(failure.stage),
            "code": reply.code if reply else None,
            "extended": reply.extended if reply else None,
        }
        return Defer(failure.reason, scope="kind", evidence=evidence)

    async def _capture(self, folder: Path, composed: Composed, attempt: Attempt[EmailNotice[Any]]) -> Result:
        await attempt.begin_write()
        action = attempt.action
        evidence: Evidence = {
            "captured": True,
            "message_id": composed.message_id,
            "recipients": len(composed.recipients),
        }
        try:
            await asyncio.to_thread(capture, folder, composed, action_id=action.id, key=action.idempotency_key)
        except OSError as error:
            return Retry("the message could not be written to capture_dir", evidence={"errno": error.errno})
        return Done(composed.message_id, evidence=evidence)

    async def _tls_context(self, relay: Relay) -> ssl.SSLContext | None:
        if self._tls is None:
            self._tls = await asyncio.to_thread(relay.make_tls_context)
        return self._tls
