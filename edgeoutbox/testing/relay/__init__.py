"""An SMTP relay on this machine that does as it is told, and remembers what it was given.

Without a script it accepts every message::

    async with ScriptedRelay() as relay:
        ...  # send to relay.host, relay.port
        assert [message.recipients for message in relay.messages] == [("jane@example.com",)]

A script makes it answer, hang or break at any point of a session. This one takes a message and loses the connection
before it could say so, the first time::

    script = On(Point.DOT, Reset(), connection=1, keeps=True)
    async with ScriptedRelay(script) as relay:
        ...
        await relay.reached(Point.DOT)

It is made for tests and demonstrations: it listens on the loopback address only, and stores nothing unless `record`
names a file, to which it appends one JSON line for each message that it took.
"""

import asyncio
import hashlib
import json
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from edgeoutbox.testing.relay_script import Answer, Drip, Drop, Hang, On, Point, Raw, Reset, Step, Steps
from edgeoutbox.testing.relay_session import RelaySession

__all__ = [
    "AcceptedMessage",
    "Answer",
    "Drip",
    "Drop",
    "Hang",
    "On",
    "Point",
    "Raw",
    "Reset",
    "ScriptedRelay",
    "Step",
    "Steps",
    "duplicates",
    "read_record",
]

_RECEIVE_BUFFER = 64 * 1024
_BACKLOG = 512
_MESSAGE_ID = re.compile(rb"^Message-ID:\s*(<[^>\r\n]*>)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """A message that the relay took. `number` counts them from 1, in the order in which they were taken."""

    number: int
    connection: int
    mail_from: str
    recipients: tuple[str, ...]
    message_id: str | None
    size: int
    sha256: str
    content: bytes = field(repr=False, default=b"")


class ScriptedRelay:
    """The relay. Open it with `async with`; `port` is known from then on.

    `tls` is a server's context: the relay offers STARTTLS, or with `implicit_tls` speaks TLS from the first byte.
    `offers` are the lines of its EHLO reply; STARTTLS is added while it can be used. `users` are the names and
    passwords that may log in; with any, AUTH PLAIN and LOGIN are offered and mail is refused before a login.
    """

    def __init__(
        self,
        *script: On,
        tls: ssl.SSLContext | None = None,
        implicit_tls: bool = False,
        offers: Iterable[str] = ("SIZE 33554432", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES"),
        users: dict[str, str] | None = None,
        record: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.host = host
        self.port = port
        self.script = list(script)
        self.tls = tls
        self.implicit_tls = implicit_tls
        self.offers = tuple(offers)
        self.users = users or {}
        self.messages: list[AcceptedMessage] = []
        self.commands: list[tuple[int, str]] = []
        self.connections = 0
        self._record = record
        self._seen: Counter[Point] = Counter()
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self._hanging: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        listening = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        # A system may take many megabytes for a program that does not read; then a relay that hangs would go unnoticed.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.port))
        except BaseException:
            listening.close()
            raise
        self.port = listening.getsockname()[1]
        self._server = await asyncio.start_server(
            self._serve, sock=listening, backlog=_BACKLOG, ssl=self.tls if self.implicit_tls else None
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def on(self, point: Point, step: Step, *, nth: int | None = None, connection: int | None = None) -> None:
        """Add a line to the script; earlier lines win."""
        self.script.append(On(point, step, nth, connection))

    async def reached(self, point: Point, times: int = 1) -> None:
        """Wait until sessions have come to the point, as often as that."""
        while self._seen[point] < times:
            await self._news.wait()

    async def settled(self) -> None:
        """Wait until every session has ended, or hangs for good: nothing more can be taken then."""
        while self._sessions - self._hanging:
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait({news, *self._sessions}, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    @property
    def verbs(self) -> list[str]:
        """The commands that came, without their arguments, of all connections in the order in which they came."""
        return [line.split(" ")[0].upper() for _, line in self.commands]

    def note_point(self, point: Point) -> None:
        """Note that a session came to a point (sessions call this)."""
        self._seen[point] += 1
        self._news.set()
        self._news = asyncio.Event()

    def note_hanging(self) -> None:
        """Note that the session of the current task hangs (sessions call this)."""
        self._hanging.add(self._current())
        self._news.set()
        self._news = asyncio.Event()

    def take(self, connection: int, mail_from: str, recipients: Iterable[str], content: bytes) -> None:
        """Keep a message (sessions call this)."""
        found = _MESSAGE_ID.search(content)
        message = AcceptedMessage(
            number=len(self.messages) + 1,
            connection=connection,
            mail_from=mail_from,
            recipients=tuple(recipients),
            message_id=found[1].decode() if found else None,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            content=content,
        )
        if self._record is not None:
            fields = {name: getattr(message, name) for name in AcceptedMessage.__slots__ if name != "content"}
            with self._record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(fields) + "\n")
        self.messages.append(message)

    def line_of(self, point: Point, nth: int, connection: int) -> On | None:
        """The line of the script for this moment, when there is one."""
        return next((line for line in self.script if line.applies(point, nth, connection)), None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._current()
        self._sessions.add(task)
        self.connections += 1
        try:
            with suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                await RelaySession(self, self.connections, reader, writer).run()
        except asyncio.CancelledError:
            pass  # the relay closes; asyncio would log the cancellation of its own task
        finally:
            writer.transport.abort()
            self._sessions.discard(task)

    @staticmethod
    def _current() -> asyncio.Task[None]:
        return cast("asyncio.Task[None]", asyncio.current_task())


def read_record(path: Path) -> list[AcceptedMessage]:
    """The messages of a record, without their content, in the order in which they were taken."""
    if not path.exists():
        return []
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [AcceptedMessage(**{**row, "recipients": tuple(row["recipients"])}) for row in rows]


def duplicates(messages: Iterable[AcceptedMessage]) -> dict[str, int]:
    """The Message-IDs that were taken more than once, with how often."""
    counts = Counter(message.message_id for message in messages if message.message_id is not None)
    return {message_id: count for message_id, count in counts.items() if count > 1}
