"""A receiver of signed webhooks on this machine, for your own tests of what you send.

Without a script it verifies each call, acts on it, and answers 204::

    async with WebhookReceiver() as receiver:
        adapter = WebhookAdapter({"billing": receiver.endpoint()})
        ...  # carry an action out
        assert receiver.effects == [webhook_id]

A script says what each call gets, in order. This one acts on a call and loses its answer; the same call, sent again,
is recognised by its id and answered without a second effect::

    async with WebhookReceiver(Lost(), deduplicates=True) as receiver:
        ...
        assert len(receiver.received) == 2
        assert len(receiver.effects) == 1

It listens on a loopback address, so its endpoint has `allow_private`.
"""

import asyncio
import base64
import hashlib
import hmac
import ssl
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from edgeoutbox_webhook.endpoints import Endpoint
from edgeoutbox_webhook.testing_steps import Answer, Drop, Endless, Hang, Lost, Step, has_effect, redirect

__all__ = [
    "TEST_SECRET",
    "Answer",
    "Drop",
    "Endless",
    "Hang",
    "Lost",
    "Received",
    "Step",
    "WebhookReceiver",
    "redirect",
]

TEST_SECRET = "whsec_" + base64.b64encode(b"a secret for tests, 32 bytes long").decode()

_TOLERANCE = 300
_PIECE = b"x" * 65_536


@dataclass(frozen=True, slots=True)
class Received:
    """A request that came complete. Names of headers are lower-case; `verified` is what the receiver thought of it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    verified: bool

    @property
    def webhook_id(self) -> str:
        """The id that it came with."""
        return self.headers.get("webhook-id", "")


class WebhookReceiver:
    """The receiver. Open it with `async with`; `url` is known from then on.

    `received` has every request that came complete, `effects` the ids that it acted on, in order. One whose
    signature does not verify with any of `secrets` gets a 401 and has no effect. With `deduplicates` an id has an
    effect once; a call that comes again is answered by the script like any other, or with 204. `tls` is a server's
    context. `connections` counts them all.
    """

    def __init__(
        self,
        *script: Step,
        secrets: Sequence[str] = (TEST_SECRET,),
        deduplicates: bool = False,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.host = host
        self.port = port
        self.script = deque(script)
        self.secrets = tuple(secrets)
        self.received: list[Received] = []
        self.effects: list[str] = []
        self.connections = 0
        self._deduplicates = deduplicates
        self._tls = tls
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it takes calls."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}/hook"

    def endpoint(self) -> Endpoint:
        """The endpoint to configure an adapter with."""
        return Endpoint(self.url, secrets=self.secrets, allow_private=True)

    def on(self, *steps: Step) -> None:
        """Add to the script."""
        self.script.extend(steps)

    async def reached(self, requests: int = 1, timeout: float = 10.0) -> None:
        """Wait until so many requests came complete."""
        async with asyncio.timeout(timeout), self._news:
            await self._news.wait_for(lambda: len(self.received) >= requests)

    async def idle(self, timeout: float = 10.0) -> None:
        """Wait until no connection is open; one that hangs stays until its client ends it."""
        async with asyncio.timeout(timeout), self._news:
            await self._news.wait_for(lambda: not self._sessions)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = asyncio.current_task()
        if session is None:
            return
        self._sessions.add(session)
        self.connections += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
                await self._converse(reader, writer)
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self._sessions.discard(session)
            async with self._news:
                self._news.notify_all()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.script and isinstance(drop := self.script[0], Drop):
            self.script.popleft()
            writer.write(drop.says)
            await writer.drain()
            if not drop.says:
                return
        request = self._read(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(int(request.headers.get("content-length", "0")))
        await self._handle(self._judged(request, body), reader, writer)

    @staticmethod
    def _read(head: bytes) -> Received:
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, _, rest = first.partition(" ")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return Received(method, rest.rpartition(" ")[0], headers, b"", verified=False)

    def _judged(self, request: Received, body: bytes) -> Received:
        stamp = request.headers.get("webhook-timestamp", "")
        signed = b".".join((request.webhook_id.encode("latin-1"), stamp.encode("latin-1"), body))
        keys = [base64.b64decode(secret.removeprefix("whsec_")) for secret in self.secrets]
        expected = ["v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
        given = request.headers.get("webhook-signature", "").split(" ")
        fresh = stamp.isdecimal() and abs(time.time() - int(stamp)) <= _TOLERANCE
        matches = any(hmac.compare_digest(one, other) for one in expected for other in given)
        return Received(request.method, request.path, request.headers, body, verified=fresh and matches)

    async def _handle(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        step = self.script.popleft() if self.script else Answer()
        if not request.verified:
            step = Answer(401)
        self._act(request.webhook_id, step)
        async with self._news:
            self.received.append(request)
            self._news.notify_all()
        match step:
            case Answer():
                writer.write(step.as_bytes())
                await writer.drain()
            case Lost(after):
                writer.write(after)
                await writer.drain()
            case Hang(after):
                writer.write(after)
                await reader.read()
            case Endless():
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    writer.write(_PIECE)
                    await writer.drain()
            case Drop():  # its turn came in the middle of another connection
                pass

    def _act(self, webhook_id: str, step: Step) -> None:
        if has_effect(step) and not (self._deduplicates and webhook_id in self.effects):
            self.effects.append(webhook_id)
