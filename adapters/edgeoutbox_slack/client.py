"""Requests to Slack, one at a time, each with an answer that says only what was proven."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from edgeoutbox import Deadline
from edgeoutbox_slack.answers import Answer, read_answer
from edgeoutbox_slack.codes import NO_MORE, Meaning
from edgeoutbox_slack.connection import Connection

_NO_LOG = logging.Logger("edgeoutbox.slack.sdk", logging.CRITICAL + 1)  # noqa: LOG001 - attached to nothing: it logs requests and answers


class _RedirectRefused(Exception):
    """A redirect would carry the token and the post to somebody else."""


class _TooLate(Exception):
    """The connection stood only after the request's time was over."""


@dataclass
class _Watched:
    """What was seen of the request that runs: the only witness when an exception says nothing about it."""

    deadline: Deadline
    sent: bool = False
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Slack:
    """The requests of one attempt. Open it with `async with`.

    It owns its session, and every request has a connection of its own: an old goodbye on a kept one would look like
    the loss of an answer. Nothing is retried, no redirect is followed, and no proxy comes from the environment.
    """

    def __init__(self, connection: Connection, tls: ssl.SSLContext | None = None) -> None:
        self._connection = connection
        self._tls = tls
        self._watched = _Watched(Deadline.after(0))

    @property
    def timeout(self) -> float:
        """Seconds for a request of no hurry."""
        return self._connection.timeout

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._headers_are_due)
        trace.on_request_redirect.append(self._redirected)
        trace.on_request_end.append(self._answered)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connection.timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
        )
        self._client = AsyncWebClient(
            self._connection.token,
            base_url=self._connection.base_url,
            session=self._session,
            ssl=self._tls,
            logger=_NO_LOG,
            # None would mean the SDK's own handler, which sends again after a lost connection.
            retry_handlers=[],
        )
        self._client.proxy = self._connection.proxy  # the SDK took one from the environment
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def read(
        self, method: str, params: Mapping[str, Any], deadline: Deadline, codes: Mapping[str, Meaning] = NO_MORE
    ) -> Answer:
        """Ask for something."""
        until = Deadline.after(deadline.left(at_most=self._connection.timeout))
        return await self._ask(until, codes, method, http_verb="GET", params=dict(params))

    async def write(
        self, method: str, body: Mapping[str, Any], deadline: Deadline, codes: Mapping[str, Meaning] = NO_MORE
    ) -> Answer:
        """Have something done. After the deadline no byte of the request is written."""
        return await self._ask(deadline, codes, method, json=dict(body))

    async def _ask(self, deadline: Deadline, codes: Mapping[str, Meaning], method: str, **request: Any) -> Answer:
        watched = self._watched = _Watched(deadline)
        try:
            async with asyncio.timeout(deadline.left()):
                response = await self._client.api_call(method, **request)
        except SlackApiError as error:
            return _refused(error, watched, codes)
        except Exception as error:  # noqa: BLE001 - the SDK raises whatever a strange answer breaks in it
            return _broken(error, watched, codes)
        return read_answer(response.status_code, response.headers, response.data, codes)

    async def _headers_are_due(self, *_: object) -> None:
        # aiohttp calls this before it hands the headers to the connection: raising here sends nothing.
        if self._watched.deadline.passed:
            raise _TooLate
        self._watched.sent = True

    async def _redirected(self, *seen: Any) -> None:
        params: aiohttp.TraceRequestRedirectParams = seen[-1]
        self._watched.status = params.response.status
        params.response.close()
        raise _RedirectRefused

    async def _answered(self, *seen: Any) -> None:
        params: aiohttp.TraceRequestEndParams = seen[-1]
        self._watched.status, self._watched.headers = params.response.status, params.response.headers


def _refused(error: SlackApiError, watched: _Watched, codes: Mapping[str, Meaning]) -> Answer:
    # `error.response` holds the token and the body beside the answer: nothing of it but this is ever looked at.
    body = error.response.data if isinstance(error.response, AsyncSlackResponse) else None
    return _with_status(watched, body, codes)


def _broken(error: Exception, watched: _Watched, codes: Mapping[str, Meaning]) -> Answer:
    if not watched.sent:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return Answer(Meaning.UNREACHABLE, "Slack could not be connected to in time")
        if isinstance(error, TimeoutError | _TooLate):
            return Answer(Meaning.UNSENT, "the time ran out before anything was sent")
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError):
            untrusted = isinstance(error, aiohttp.ClientConnectorCertificateError)
            return Answer(Meaning.UNREACHABLE, _why_unreachable(error), untrusted=untrusted)
    if isinstance(error, TimeoutError):
        return Answer(Meaning.UNCLEAR, "Slack did not answer in time", status=watched.status)
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
        return Answer(Meaning.UNCLEAR, "the connection to Slack was lost", status=watched.status)
    return _with_status(watched, None, codes)


def _with_status(watched: _Watched, body: object, codes: Mapping[str, Meaning]) -> Answer:
    if watched.status is None:
        return Answer(Meaning.UNCLEAR, "the request broke")
    return read_answer(watched.status, watched.headers, body, codes)


def _why_unreachable(error: aiohttp.ClientError) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return "the certificate of Slack's address is not accepted"
        case aiohttp.ClientConnectorDNSError():
            return "the name of Slack's address cannot be resolved"
        case aiohttp.ClientSSLError():
            return "Slack's address does not speak TLS as it should"
        case aiohttp.ClientHttpProxyError() | aiohttp.ClientProxyConnectionError():
            return "the proxy does not connect us to Slack"
        case _:
            return "Slack cannot be connected to"
