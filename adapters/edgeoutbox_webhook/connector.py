"""One connection, to an address that its endpoint permits, and the step between having it and using it."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import AddrInfoType, ClientRequest, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from edgeoutbox_webhook.endpoints import Endpoint

OnConnected: TypeAlias = Callable[[Connection], Awaitable[None]]


class AddressRefused(OSError):
    """The address is not one that the endpoint permits. Nothing was sent to it."""


class OneConnection(TCPConnector):
    """Opens a connection for one request, and awaits `on_connected` before the request may use it.

    Every address is judged where its socket is made, just before it is connected to: what a name resolved to earlier,
    or will resolve to next time, does not count, and an address written into the URL passes the same gate.
    `refused` says whether one was turned away; `transport` is the connection's once there is one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_connected: OnConnected,
        *,
        tls: ssl.SSLContext | None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        super().__init__(
            ssl=True if tls is None else tls,
            resolver=resolver,
            use_dns_cache=False,
            force_close=True,
            socket_factory=self._permitted,
        )
        self.refused = False
        self.transport: asyncio.Transport | None = None
        self._endpoint = endpoint
        self._on_connected = on_connected

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        """Resolve, connect, agree on TLS; then `on_connected`. When it raises, the connection is gone."""
        connection = await super().connect(req, traces, timeout)
        try:
            self.transport = connection.transport
            await self._on_connected(connection)
        except BaseException:
            self.abort()
            connection.close()
            raise
        return connection

    def abort(self) -> None:
        """End the connection now. Closing it would still send what is buffered."""
        if self.transport is not None:
            self.transport.abort()

    def _permitted(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, where = address
        if not self._endpoint.permits(str(where[0])):
            self.refused = True
            raise AddressRefused("the address is not permitted")
        return socket.socket(family, kind, protocol)
