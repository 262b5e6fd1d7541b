"""Waking: notice that a connection committed, without being told.

On Linux inotify watches the directory for writes to the write-ahead log; elsewhere, and always as a safety net,
`PRAGMA data_version` is polled. An event can come before its commit is visible, so we look again shortly after it.
"""

import asyncio
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from edgeoutbox.storage.sqlite.spelling import Connection

AFTER_EVENT = (0.0, 0.0005, 0.001, 0.002, 0.004)
"""Seconds to wait before each look at the database after an event."""

POLL_ACTIVE = 0.015
POLL_QUIET = 0.25
POLL_WITH_EVENTS = 1.0


class Events(Protocol):
    """What tells that somebody wrote to the database."""

    async def wait(self, timeout: float) -> bool:
        """Wait for a write, at most `timeout` seconds; true when there may have been one."""

    def close(self) -> None:
        """Release what was opened."""


OpenEvents: TypeAlias = Callable[[Path], Events | None]
"""Opens the events of a database file; `None` means that it has to be polled."""


def events_of_system(path: Path) -> Events | None:
    """Inotify on Linux; elsewhere nothing."""
    return _Inotify.open(path) if sys.platform == "linux" else None


class Watch:
    """Watches one database file. Its connection reads `data_version` in the event loop's thread: 4 microseconds."""

    def __init__(
        self, path: Path, open_connection: Callable[[], Connection], open_events: OpenEvents = events_of_system
    ) -> None:
        self._connection = open_connection()
        self._events = open_events(path)
        self._unreadable = itertools.count(-1, -1)

    def mark(self) -> int:
        """A number that changes with every commit of another connection than the watch's own."""
        try:
            return int(self._connection.execute("PRAGMA data_version")[0][0])
        except Exception:  # noqa: BLE001 - what cannot be read now may have changed; whoever claims next finds out
            return next(self._unreadable)

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait for a commit after the mark, at most `timeout` seconds."""
        if since < 0 or self.mark() < 0:
            # It cannot be read now, and may have changed: whoever claims at once finds that again, and again.
            await asyncio.sleep(min(timeout, POLL_WITH_EVENTS))
            return True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        interval = POLL_ACTIVE
        while self.mark() == since:
            left = deadline - loop.time()
            if left <= 0:
                return False
            if self._events is None:
                await asyncio.sleep(min(left, interval))
                interval = min(POLL_QUIET, interval * 1.5)
            elif await self._events.wait(min(left, POLL_WITH_EVENTS)) and await self._moved_soon(since):
                return True
        return True

    async def _moved_soon(self, since: int) -> bool:
        for pause in AFTER_EVENT:
            await asyncio.sleep(pause)
            if self.mark() != since:
                return True
        return False

    def close(self) -> None:
        """Release the connection and the watch."""
        if self._events is not None:
            self._events.close()
        self._connection.close()


class _Inotify:
    """Writes to the write-ahead log. Any number may wait; the descriptor is in the loop only while somebody does."""

    def __init__(self, path: Path) -> None:
        import inotify_simple  # noqa: PLC0415 - Linux only

        self._log_name = f"{path.name}-wal"
        self._inotify = inotify_simple.INotify(nonblocking=True)
        self._inotify.add_watch(str(path.parent), inotify_simple.flags.MODIFY | inotify_simple.flags.CREATE)
        self._waiters: set[asyncio.Future[None]] = set()

    @classmethod
    def open(cls, path: Path) -> "_Inotify | None":
        try:
            return cls(path)
        except OSError:  # the system's limit of watches is reached: polling serves
            return None

    async def wait(self, timeout: float) -> bool:
        """Wait for a write to the log; true also when the queue of events overflowed."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if not self._waiters:
            loop.add_reader(self._inotify.fileno(), self._arrived)
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
            if not self._waiters and not self._inotify.closed:
                loop.remove_reader(self._inotify.fileno())
        return True

    def _arrived(self) -> None:
        if any(event.name == self._log_name or not event.name for event in self._inotify.read(timeout=0)):
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def close(self) -> None:
        for waiter in self._waiters:
            waiter.get_loop().remove_reader(self._inotify.fileno())
            waiter.cancel()
        self._inotify.close()
