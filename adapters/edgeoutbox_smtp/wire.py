"""The connection from MAIL on, read strictly: which reply answers which step is what every proof stands on.

aiosmtplib opens the session, and then this takes the connection over. Two things ask for it. aiosmtplib keeps what
follows a reply in the same packet and takes it for the answer to the next step, so that `354` and `250` sent
together look like an accepted message; and it throws away what arrives while nothing is awaited, so that a refusal
in the middle of the body is never seen. Here every byte is kept, and whatever comes before it was asked for is known
as such.
"""

import asyncio
import re
from collections import deque
from contextlib import suppress
from typing import cast

from edgeoutbox_smtp.replies import Reply

CHUNK = 64 * 1024
"""Bytes of the body that are written before the connection must have taken them."""

_LINE = re.compile(rb"([2-5][0-9]{2})(?:([ -])([^\r\n]*))?")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_LONGEST_LINE = 8 * 1024
_LONGEST_REPLY = 64 * 1024
_TURNS_TO_READ = 3


class WireBroken(Exception):
    """The conversation cannot go on; the text is our own words, for a reason."""


class Lost(WireBroken):
    """The relay, or the network, ended the connection."""

    def __str__(self) -> str:
        return "the connection was lost"


class Silent(WireBroken):
    """The relay did not answer, or did not read, in time."""

    def __str__(self) -> str:
        return "the relay did not answer in time"


class Garbled(WireBroken):
    """What the relay sent is not an SMTP reply."""

    def __str__(self) -> str:
        return "the relay sent what is not an SMTP reply"


class Spoke(WireBroken):
    """The relay replied before it was asked; `reply` is what it said."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply

    def __str__(self) -> str:
        return f"the relay replied {self.reply} before it was asked"


class Wire(asyncio.Protocol):
    """A conversation over a transport that another protocol opened."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._unread = bytearray()
        self._lines: list[bytes] = []
        self._replies: deque[Reply] = deque()
        self._garbled = False
        self._lost = transport.is_closing()
        self._changed = asyncio.Event()
        # A pause is asked for as soon as anything is buffered, and ends when nothing is. asyncio's TLS transport
        # compares with >= where the plain one compares with >.
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)
        transport.set_protocol(self)

    @property
    def spoken(self) -> bool:
        """Whether the relay sent anything, even half a line, that nobody has read yet."""
        return bool(self._replies or self._lines or self._unread or self._garbled)

    async def command(self, line: bytes, within: float) -> Reply:
        """Send a command line and return the reply to it, waiting at most `within` seconds.

        Raises `WireBroken`; `Spoke` when a reply was there before the command was sent.
        """
        if _CONTROL.search(line):
            raise ValueError("a command cannot hold a control character")
        await self._refuse_early(within)
        self._write(line + b"\r\n")
        return await self.reply(within)

    async def reply(self, within: float) -> Reply:
        """The next complete reply, waiting at most `within` seconds. Raises `Lost`, `Silent` or `Garbled`."""
        try:
            async with asyncio.timeout(within):
                while not self._replies:
                    if self._garbled:
                        raise Garbled
                    if self._lost:
                        raise Lost
                    await self._change()
        except TimeoutError:
            raise Silent from None
        return self._replies.popleft()

    async def send(self, body: bytes, within: float) -> None:
        """Write the chunk and wait until the connection has taken all of it, at most `within` seconds.

        Raises `Spoke` as soon as the relay replies: it has not been asked anything.
        """
        await self._refuse_early(within)
        self._write(body)
        try:
            async with asyncio.timeout(within):
                while self._transport.get_write_buffer_size() and not self._lost and not self.spoken:
                    await self._change()
        except TimeoutError:
            raise Silent from None
        await self._refuse_early(within)

    async def listen(self, within: float) -> None:
        """Read what has arrived by now. Raises `Spoke` when that is a reply, `Lost` when the connection is gone."""
        for _ in range(_TURNS_TO_READ):  # the event loop polls once a turn, and runs what it found in the next
            await asyncio.sleep(0)
        await self._refuse_early(within)

    def end_message(self) -> None:
        """Write the terminator. From here on the message may have been taken."""
        self._write(b".\r\n")

    def say_goodbye(self, words: bytes) -> None:
        """Write words whose reply nobody awaits, when the connection still stands. What comes of it is ignored."""
        with suppress(Exception):
            self._write(words)

    def data_received(self, data: bytes) -> None:
        """Take what the relay sent (asyncio calls this)."""
        self._unread += data
        while not self._garbled and (end := self._unread.find(b"\n")) >= 0:
            line = bytes(self._unread[:end]).removesuffix(b"\r")
            del self._unread[: end + 1]
            self._take_line(line)
        if len(self._unread) > _LONGEST_LINE:
            self._garbled = True
        self._changed.set()

    def eof_received(self) -> bool:
        """Take the relay's end of its side (asyncio calls this)."""
        self._lost = True
        self._transport.abort()
        self._changed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Take the end of the connection (asyncio calls this)."""
        self._lost = True
        self._changed.set()

    def pause_writing(self) -> None:
        """Note that bytes are waiting to be sent (asyncio calls this)."""

    def resume_writing(self) -> None:
        """Note that everything was handed to the system (asyncio calls this)."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _refuse_early(self, within: float) -> None:
        if self.spoken:
            raise Spoke(await self.reply(within))
        if self._lost or self._transport.is_closing():
            raise Lost

    def _write(self, data: bytes) -> None:
        if self._lost or self._transport.is_closing():
            raise Lost
        self._transport.write(data)

    def _take_line(self, line: bytes) -> None:
        found = _LINE.fullmatch(line)
        if found is None or (self._lines and self._lines[0][:3] != found[1]):
            self._garbled = True
            return
        self._lines.append(line)
        if found[2] == b"-":
            self._garbled = sum(map(len, self._lines)) > _LONGEST_REPLY
            return
        first = cast("re.Match[bytes]", _LINE.fullmatch(self._lines[0]))
        self._lines.clear()
        self._replies.append(Reply.of(int(found[1]), (first[3] or b"").decode("ascii", "replace")))
