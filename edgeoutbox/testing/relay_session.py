"""One connection to the scripted relay."""

import asyncio
import base64
import binascii
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Protocol, cast

from edgeoutbox.testing.relay_script import (
    Answer,
    Drip,
    Drop,
    Hang,
    On,
    Point,
    Raw,
    Reset,
    Step,
    Steps,
    first_code,
    says_yes,
)

_PATH = re.compile(r"(?:FROM|TO):\s*<([^>]*)>", re.IGNORECASE)
_CHUNK = 64 * 1024
_GO_ON = 354
_STUFFED = re.compile(rb"^\.\.", re.MULTILINE)
_POINTS = {
    "EHLO": Point.EHLO,
    "HELO": Point.HELO,
    "STARTTLS": Point.STARTTLS,
    "AUTH": Point.AUTH,
    "MAIL": Point.MAIL,
    "RCPT": Point.RCPT,
    "DATA": Point.DATA,
    "RSET": Point.RSET,
    "NOOP": Point.NOOP,
    "QUIT": Point.QUIT,
}


class _Gone(ConnectionError):
    """The script, or the client, ended the connection."""


class _Relay(Protocol):
    """What a session needs of its relay."""

    tls: ssl.SSLContext | None
    implicit_tls: bool
    offers: tuple[str, ...]
    users: dict[str, str]
    commands: list[tuple[int, str]]

    def note_point(self, point: Point) -> None: ...
    def note_hanging(self) -> None: ...
    def take(self, connection: int, mail_from: str, recipients: Iterable[str], content: bytes) -> None: ...
    def line_of(self, point: Point, nth: int, connection: int) -> On | None: ...


class RelaySession:
    """A session: reads commands, follows the script, and keeps the messages that it accepted."""

    def __init__(self, relay: _Relay, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relay = relay
        self._number = number
        self._reader = reader
        self._writer = writer
        self._times: Counter[Point] = Counter()
        self._secure = relay.implicit_tls
        self._user: str | None = None
        self._mail_from: str | None = None
        self._recipients: list[str] = []
        self._unread = bytearray()

    async def run(self) -> None:
        """Serve the connection until one side ends it; raises `ConnectionError` then."""
        await self._take(self._step(Point.GREETING, Answer(220, "relay.test ESMTP")))
        while True:
            line = await self._line()
            self._relay.commands.append((self._number, line))
            verb, _, rest = line.partition(" ")
            await self._command(_POINTS.get(verb.upper(), Point.OTHER), rest)

    async def _command(self, point: Point, rest: str) -> None:
        step = self._step(point, self._usual(point))
        if point is Point.AUTH and self._relay.users and step == Answer(334):
            step = await self._login(rest)
        await self._take(step)
        match point:
            case Point.STARTTLS if says_yes(step) and self._relay.tls is not None:
                await self._writer.start_tls(self._relay.tls)
                self._secure = True
            case Point.MAIL if says_yes(step):
                self._mail_from, self._recipients = _path(rest), []
            case Point.RCPT if says_yes(step):
                self._recipients.append(_path(rest))
            case Point.DATA if first_code(step) == _GO_ON:
                await self._message()
            case Point.RSET | Point.EHLO | Point.HELO:
                self._mail_from, self._recipients = None, []
            case Point.QUIT:
                raise _Gone
            case _:
                pass

    def _usual(self, point: Point) -> Answer:  # noqa: PLR0911 - a table, one line for each command
        """What a relay without a script answers."""
        match point:
            case Point.EHLO:
                return Answer(250, "\n".join(["relay.test", *self._offers()]))
            case Point.STARTTLS:
                return Answer(220) if self._relay.tls and not self._secure else Answer(502, "5.5.1 not offered")
            case Point.AUTH:
                return Answer(334) if self._relay.users else Answer(502, "5.5.1 not offered")
            case Point.MAIL if self._relay.users and self._user is None:
                return Answer(530, "5.7.0 log in first")
            case Point.RCPT | Point.DATA if self._mail_from is None:
                return Answer(503, "5.5.1 MAIL first")
            case Point.DATA:
                return Answer(354) if self._recipients else Answer(554, "5.5.1 RCPT first")
            case Point.QUIT:
                return Answer(221)
            case Point.OTHER:
                return Answer(500, "5.5.2 unknown")
            case _:
                return Answer(250, "2.0.0 ok")

    def _offers(self) -> list[str]:
        starttls = ["STARTTLS"] if self._relay.tls is not None and not self._secure else []
        return [*self._relay.offers, *starttls, *(["AUTH PLAIN LOGIN"] if self._relay.users else [])]

    async def _login(self, rest: str) -> Answer:
        mechanism, _, initial = rest.partition(" ")
        if mechanism.upper() == "PLAIN":
            _, user, password = _decoded(initial).split("\0")
        else:
            user = _decoded(initial or await self._ask("VXNlcm5hbWU6"))
            password = _decoded(await self._ask("UGFzc3dvcmQ6"))
        if self._relay.users.get(user) != password:
            return Answer(535, "5.7.8 no")
        self._user = user
        return Answer(235, "2.7.0 welcome")

    async def _ask(self, challenge: str) -> str:
        await self._take(Answer(334, challenge))
        return await self._line()

    async def _message(self) -> None:
        """Read a message up to its terminator, taking the steps that the script has for its middle."""
        nth = self._times[Point.BODY] + 1
        line = self._relay.line_of(Point.BODY, nth, self._number)
        content = bytearray(b"\r\n")  # so that a terminator in the first line looks like any other
        searched = 0
        while (end := content.find(b"\r\n.\r\n", searched)) < 0:
            searched = max(0, len(content) - 4)
            if line is not None and len(content) - 2 >= line.after:
                self._note(Point.BODY)
                await self._take(line.step)
                line = None
            content += await self._some(_CHUNK if line is None else max(1, line.after - len(content) + 2))
        self._unread[:0] = content[end + 5 :]
        await self._dot(_STUFFED.sub(b".", bytes(content[2 : end + 2])))

    async def _line(self) -> str:
        while (end := self._unread.find(b"\n")) < 0:
            self._unread += await self._some(_CHUNK, fresh=True)
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line.decode("utf-8", "replace").rstrip("\r")

    async def _some(self, at_most: int, *, fresh: bool = False) -> bytes:
        """Up to that many bytes: first what is already here, unless they must be fresh from the client."""
        if self._unread and not fresh:
            found = bytes(self._unread[:at_most])
            del self._unread[:at_most]
            return found
        found = await self._reader.read(min(at_most, _CHUNK))
        if not found:
            raise _Gone
        return found

    async def _dot(self, content: bytes) -> None:
        nth = self._times[Point.DOT] + 1
        line = self._relay.line_of(Point.DOT, nth, self._number)
        step = line.step if line is not None else Answer(250, "2.0.0 taken")
        keeps = line.keeps if line is not None and line.keeps is not None else says_yes(step)
        if keeps:
            self._relay.take(self._number, self._mail_from or "", self._recipients, content)
        self._mail_from, self._recipients = None, []
        self._note(Point.DOT)
        await self._take(step)

    def _step(self, point: Point, usual: Answer) -> Step:
        self._note(point)
        line = self._relay.line_of(point, self._times[point], self._number)
        return usual if line is None else line.step

    def _note(self, point: Point) -> None:
        self._times[point] += 1
        self._relay.note_point(point)

    async def _take(self, step: Step) -> None:
        match step:
            case Answer() | Raw():
                self._writer.write(step.wire)
                await self._writer.drain()
            case Drip(wire, every):
                for byte in wire:
                    self._writer.write(bytes([byte]))
                    await asyncio.sleep(every)
            case Drop():
                self._writer.close()
                raise _Gone
            case Reset():
                connection: socket.socket = self._writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._writer.transport.abort()
                raise _Gone
            case Hang():
                await self._hang()
            case Steps(steps):
                for each in steps:
                    await self._take(each)

    async def _hang(self) -> None:
        """Read and say nothing more; a client that goes away is not noticed either."""
        cast("asyncio.Transport", self._writer.transport).pause_reading()
        self._relay.note_hanging()
        await asyncio.Event().wait()


def _path(rest: str) -> str:
    found = _PATH.match(rest)
    return found[1] if found else ""


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return "\0\0"
