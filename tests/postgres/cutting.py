"""What lies between programs and the server: it passes messages on, and cuts connections, above all at a commit.

A cut `before` loses the COMMIT on its way. One `behind` it loses the answer. One that is `late` loses the answer, and
the COMMIT arrives a while after the program saw its connection end.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

LATEST = 2.5
"""Seconds after which a late COMMIT arrives at most."""

SETTLES = 0.2
"""Seconds that the server's end of a cut connection stays open."""

_READ = 65536
_COMMIT = b"COMMIT"


@dataclass(frozen=True)
class Odds:
    """How likely a COMMIT meets each cut."""

    before: float = 0.006
    behind: float = 0.015
    late: float = 0.008

    def draw(self, dice: random.Random) -> str | None:
        """Which cut this COMMIT meets, if any."""
        drawn = dice.random()
        for name, chance in (("before", self.before), ("behind", self.behind), ("late", self.late)):
            if drawn < chance:
                return name
            drawn -= chance
        return None


@dataclass
class Messages:
    """Takes a client's bytes apart: whole messages, and whether one of them is a COMMIT."""

    _buffer: bytearray = field(default_factory=bytearray)
    _started: bool = False
    _commits: set[bytes] = field(default_factory=set)

    def take(self, data: bytes) -> list[tuple[bytes, bool]]:
        """The messages that are complete now: the bytes, and whether they commit."""
        self._buffer += data
        whole: list[tuple[bytes, bool]] = []
        while True:
            head = 1 if self._started else 0
            if len(self._buffer) < head + 4:
                return whole
            end = head + int.from_bytes(self._buffer[head : head + 4])
            if len(self._buffer) < end:
                return whole
            message = bytes(self._buffer[:end])
            del self._buffer[:end]
            whole.append((message, self._started and self._is_commit(message)))
            self._started = True

    def _is_commit(self, message: bytes) -> bool:
        kind, body = message[:1], message[5:]
        match kind:
            case b"Q":
                return body.rstrip(b"\0") == _COMMIT
            case b"P":
                name, query, _ = body.split(b"\0", 2)
                (self._commits.add if query == _COMMIT else self._commits.discard)(name)
                return False
            case b"B":
                return body.split(b"\0", 2)[1] in self._commits
            case _:
                return False


class Cable:
    """Listens in a folder as a server would, and passes on to the server in another."""

    def __init__(self, folder: Path, server: Path, dice: random.Random, odds: Odds) -> None:
        self._folder = folder
        self._server = server
        self._dice = dice
        self._odds = odds
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.quiet = False
        """Whether nothing is cut any more."""
        self.cuts: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        path = self._folder / ".s.PGSQL.5432"
        self._listening = await asyncio.start_unix_server(self._connected, path)
        path.chmod(0o666)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_one(self) -> None:
        """Cut a connection wherever it is."""
        if self._open:
            self.cuts["anywhere"] += 1
            self._dice.choice(sorted(self._open, key=id)).transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(client)
        try:
            from_server, server = await asyncio.open_unix_connection(self._server / ".s.PGSQL.5432")
        except OSError:
            client.close()
        else:
            back = asyncio.create_task(_pass(from_server, client))
            try:
                await self._forward(reader, client, server)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                back.cancel()
                server.close()
                client.close()
        finally:
            self._tasks.discard(task)
            self._open.discard(client)

    async def _forward(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        messages = Messages()
        held: list[bytes] = []
        while (data := await reader.read(_READ)) and not server.is_closing():
            for message, commits in messages.take(data):
                if not (commits or held):
                    server.write(message)
                    continue
                held.append(message)
                if message[:1] not in (b"S", b"Q"):
                    continue
                cut = None if self.quiet else self._odds.draw(self._dice)
                if cut is not None:
                    await self._cut(cut, held, client, server)
                    return
                server.writelines(held)
                held = []
            await server.drain()

    async def _cut(
        self, how: str, held: list[bytes], client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self.cuts[how] += 1
        client.transport.abort()
        if how == "before":
            return
        if how == "late":
            await asyncio.sleep(self._dice.uniform(0.0, LATEST))
        server.writelines(held)
        await server.drain()
        await asyncio.sleep(SETTLES)


async def _pass(reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    try:
        while (data := await reader.read(_READ)) and not to.is_closing():
            to.write(data)
            await to.drain()
    except OSError:
        pass
    finally:
        to.close()
