"""Waking: notice that somebody committed.

The schema notifies; one connection of its own listens, and is made again when it is lost. While nobody listens, and as
a safety net everywhere, `changed` says after a while that there may have been a commit.

Through a pooler nobody listens: one that lends sessions by the transaction would leave the LISTEN behind in one, whose
notifications then reach whoever has borrowed it, and are kept by a driver that does not expect them.
"""

import asyncio
import contextlib
import logging

import psycopg
from psycopg import Notify

from edgeoutbox import telemetry
from edgeoutbox.errors import StorageError
from edgeoutbox.storage.postgres.sessions import Session, Sessions

CHANNEL = "edgeoutbox"

POLL = 1.0
"""Seconds after which there may have been a commit when nobody listens."""

POLL_LISTENING = 5.0
"""Seconds after which there may have been one although nothing was heard."""

ALIVE_EVERY = 10.0
"""Seconds after which a silent connection is asked whether it is still there."""

BACKOFF = (0.1, 0.3, 1.0, 3.0)
"""Seconds before each attempt to listen again; the last one repeats."""


class Watch:
    """Counts the commits that were heard of. Open while the storage is."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._count = 0
        self._moved = asyncio.Event()
        self._asked: set[asyncio.Future[None]] = set()
        self._ask = asyncio.Event()
        self._listening = False
        self._task: asyncio.Task[None] | None = None

    @property
    def listening(self) -> bool:
        """Whether notifications are heard."""
        return self._listening

    async def open(self) -> None:
        """Listen, or begin to try."""
        first = asyncio.Event()
        self._task = asyncio.create_task(self._live(first), name="edgeoutbox-listen")
        await first.wait()

    async def close(self) -> None:
        """Release the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self.raise_mark()

    def mark(self) -> int:
        """A number that rises with every commit that was heard of."""
        return self._count

    def raise_mark(self) -> None:
        """Somebody committed."""
        self._count += 1
        self._moved.set()
        self._moved = asyncio.Event()

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait for a commit after the mark, at most `timeout` seconds; true also when it is time to look."""
        patience = POLL_LISTENING if self._listening else POLL
        if self._count == since:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(timeout, patience)):
                    await self._moved.wait()
        if self._count == since and timeout < patience:
            await self._hear()
        return self._count != since or timeout >= patience

    async def _hear(self) -> None:
        """Take in what has been committed until now."""
        if not self._listening:
            return
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.add(heard)
        self._ask.set()
        try:
            await heard
        finally:
            self._asked.discard(heard)

    async def _live(self, first: asyncio.Event) -> None:
        tries = 0
        while True:
            try:
                session = await self._sessions.connect()
                try:
                    if session.pooled:
                        break
                    session.raw.add_notify_handler(self._heard)
                    await session.execute(f"LISTEN {CHANNEL}")
                    self._listening = True
                    tries = 0
                    first.set()
                    self.raise_mark()  # what was committed while nobody listened
                    await self._listen(session)
                finally:
                    self._listening = False
                    await session.close()
                    self._answer()
            except (psycopg.Error, StorageError, OSError) as error:
                if tries == 0:
                    telemetry.event(
                        logging.WARNING,
                        "storage.listen.lost",
                        error=type(error).__name__,
                        what="notifications of the database are not heard; until they are, it is polled",
                    )
            first.set()
            self.raise_mark()
            await asyncio.sleep(BACKOFF[min(tries, len(BACKOFF) - 1)])
            tries += 1
        telemetry.event(
            logging.INFO,
            "storage.listen.pooled",
            what="a pooler stands between, through which no notification comes: the database is polled",
        )
        first.set()

    async def _listen(self, session: Session) -> None:
        while True:
            await self._until_something(session.raw.fileno())
            asked = list(self._asked)
            self._ask.clear()
            # The server sends what it has to notify before it answers.
            await session.execute("SELECT 1")
            for waiter in asked:
                if not waiter.done():
                    waiter.set_result(None)

    async def _until_something(self, socket: int) -> None:
        """Wait until the server says something, somebody asks, or it is time to look whether it is still there."""
        loop = asyncio.get_running_loop()
        loop.add_reader(socket, self._ask.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_EVERY):
                    await self._ask.wait()
        finally:
            loop.remove_reader(socket)

    def _heard(self, notify: Notify) -> None:
        if notify.payload == self._sessions.schema:
            self.raise_mark()

    def _answer(self) -> None:
        for waiter in self._asked:
            if not waiter.done():
                waiter.set_result(None)
