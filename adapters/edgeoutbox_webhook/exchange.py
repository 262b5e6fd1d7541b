"""One signed POST, and what is known of it when it ends.

aiohttp raises the same exceptions before and after the endpoint had the request. So it is not the exception that says
what happened, but how far the exchange had come.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import TypeAlias

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TraceConfig,
    TraceRequestHeadersSentParams,
)
from aiohttp.abc import AbstractResolver
from aiohttp.connector import Connection

from edgeoutbox import Deadline
from edgeoutbox_webhook.connector import OneConnection
from edgeoutbox_webhook.endpoints import Endpoint
from edgeoutbox_webhook.waits import retry_after

Fence: TypeAlias = Callable[[], Awaitable[float]]
"""Stores the fence and returns how many seconds the write may take."""

_SHARE_OF_WINDOW = 0.95
_MOST_READ = 16 * 1024
_READING = 1.0


class Stage(IntEnum):
    """How far an exchange has come."""

    CONNECTING = 1
    FENCING = 2
    FENCED = 3
    """The fence is stored, and nothing of the request was written."""
    SENDING = 4
    """The endpoint may have it."""


@dataclass(frozen=True, slots=True)
class NotReached:
    """There was no connection, so nothing was sent. `needs_attention`: waiting will not mend it."""

    reason: str
    needs_attention: bool = False
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class NothingSent:
    """The connection ended or spoke up while the fence was stored, or the machine slept; nothing was written."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The request was begun, and no answer to it can be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The status that the endpoint answered, and how long it asks to be left alone, in seconds."""

    status: int
    retry_after: float | None


Outcome: TypeAlias = NotReached | NothingSent | NoAnswer | Answer


class _Unusable(OSError):
    """The connection is not what it was when it was made."""


class _Probed(Exception):
    """The connection stands, and was wanted for no more than that."""


class Exchange:
    """One connection to an endpoint. `connect_within` is seconds for resolving, connecting and TLS."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        tls: ssl.SSLContext | None,
        connect_within: float,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._resolver = resolver
        self._connect_within = connect_within
        self._stage = Stage.CONNECTING
        self._protection = ""

    async def post(self, headers: Mapping[str, str], body: bytes, fence: Fence) -> Outcome:
        """Connect, store the fence, send. What the fence raises rises, and nothing was sent then."""
        limit = asyncio.timeout(self._connect_within)

        async def on_connected(connection: Connection) -> None:
            self._stage = Stage.FENCING
            limit.reschedule(None)
            ends = Deadline.after(await fence() * _SHARE_OF_WINDOW)
            self._stage = Stage.FENCED
            for _ in range(2):  # in one turn the loop looks at the socket, in the next it hands over what came in
                await asyncio.sleep(0)
            protocol = connection.protocol
            # What the endpoint says before it was asked would be taken for its answer.
            if protocol is None or protocol.should_close or not protocol.is_connected() or ends.passed:
                raise _Unusable
            limit.reschedule(asyncio.get_running_loop().time() + ends.left())

        return await self._run(headers, body, limit, on_connected)

    async def probe(self) -> NotReached | str:
        """Connect and send nothing; how the connection is protected, in a few words."""

        async def on_connected(connection: Connection) -> None:
            tls = connection.transport.get_extra_info("ssl_object") if connection.transport else None
            self._protection = str(tls.version()) if tls else "without encryption"
            raise _Probed

        try:
            outcome = await self._run({}, b"", asyncio.timeout(self._connect_within), on_connected)
        except _Probed:
            return self._protection
        return outcome if isinstance(outcome, NotReached) else NotReached("no connection could be made")

    async def _run(
        self,
        headers: Mapping[str, str],
        body: bytes,
        limit: asyncio.Timeout,
        on_connected: Callable[[Connection], Awaitable[None]],
    ) -> Outcome:
        connector = OneConnection(self._endpoint, on_connected, tls=self._tls, resolver=self._resolver)
        session = ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None),
            trace_configs=[self._tracing()],
            auto_decompress=False,
            trust_env=False,
        )
        answer: Answer | None = None
        try:
            async with limit:
                response = await session.post(
                    self._endpoint.target,
                    data=body,
                    headers=headers,
                    skip_auto_headers=("Accept", "Accept-Encoding"),
                    allow_redirects=False,
                )
                answer = Answer(response.status, _asked_wait(response))
                await _take_leave(response, limit)
        except (ClientError, OSError, ValueError) as error:
            if self._stage is Stage.FENCING:
                raise
            return answer or self._failed(error, refused=connector.refused)
        else:
            return answer
        finally:
            connector.abort()
            await session.close()

    def _failed(self, error: Exception, *, refused: bool) -> Outcome:
        match self._stage:
            case Stage.CONNECTING:
                return _not_reached(error, refused=refused)
            case Stage.FENCED:
                return NothingSent()
            case _:
                late = isinstance(error, TimeoutError)
                return NoAnswer("it did not answer in time" if late else "the connection ended without a valid answer")

    def _tracing(self) -> TraceConfig:
        async def sending(_: ClientSession, __: SimpleNamespace, ___: TraceRequestHeadersSentParams) -> None:
            self._stage = Stage.SENDING

        tracing = TraceConfig()
        tracing.on_request_headers_sent.append(sending)  # called before the first byte is written
        return tracing


def _not_reached(error: Exception, *, refused: bool) -> NotReached:
    errno = error.errno if isinstance(error, OSError) else None
    match error:
        case ClientConnectorCertificateError():
            return NotReached("its TLS certificate is not accepted", needs_attention=True)
        case ssl.SSLError():
            return NotReached("TLS could not be agreed on", needs_attention=True)
        case _ if refused:
            return NotReached("its address is not permitted; see allow_private", needs_attention=True)
        case ClientConnectorDNSError():
            return NotReached("its name does not resolve", errno=errno)
        case TimeoutError():
            return NotReached("it could not be connected to in time")
        case _:
            return NotReached("no connection could be made", errno=errno)


def _asked_wait(response: ClientResponse) -> float | None:
    return retry_after(response.headers.get("Retry-After"), response.headers.get("Date"))


async def _take_leave(response: ClientResponse, limit: asyncio.Timeout) -> None:
    """Read a little of the body, so that an endpoint can end its answer; nothing in it counts, nothing is kept."""
    left = (limit.when() or 0.0) - asyncio.get_running_loop().time()
    with suppress(ClientError, OSError, ValueError):
        async with asyncio.timeout(min(_READING, left / 2)):
            unread = _MOST_READ
            while unread > 0 and (chunk := await response.content.read(unread)):
                unread -= len(chunk)
    response.close()
