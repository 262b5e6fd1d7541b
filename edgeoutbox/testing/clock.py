"""A clock to move: the database's, the machine's and the executor's, all at once or one at a time."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import apsw

UNIX_EPOCH_IN_JULIAN_DAYS = 2440587.5
SECONDS_PER_DAY = 86400.0


class MovableClock:
    """Stands still until it is moved. Seconds throughout.

    Give it to `SqliteStorage(on_connect=clock.register)` and `Executor(clock=clock)`. On SQLite it takes the place of
    `julianday`, which also moves the time in defaults and triggers.
    """

    def __init__(self, start: float | None = None) -> None:
        self._wall = round(time.time() if start is None else start, 3)
        self._boot = self._awake = 1000.0
        self._wakers: list[Callable[[], None]] = []

    def boot(self) -> float:
        """Seconds since the machine started, suspended or not."""
        return self._boot

    def awake(self) -> float:
        """Seconds that the machine was not suspended."""
        return self._awake

    def wall(self) -> float:
        """Seconds since 1970, as the machine and the database believe."""
        return self._wall

    @property
    def milliseconds(self) -> int:
        """The database's time."""
        return round(self._wall * 1000)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._awake += seconds
        self.suspend(seconds)

    def suspend(self, seconds: float) -> None:
        """Let time pass while the machine sleeps."""
        self._boot += seconds
        self._set(self._wall + seconds)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or a time server does; no time passes."""
        self._set(self._wall + seconds)

    def _set(self, wall: float) -> None:
        self._wall = round(wall, 3)
        for waker in self._wakers:
            waker()

    def on_move(self, waker: Callable[[], None]) -> None:
        """Call `waker` whenever the clock was moved."""
        self._wakers.append(waker)

    def register(self, connection: Any) -> None:
        """Make a `sqlite3` or `apsw` connection take its time from here."""
        if isinstance(connection, sqlite3.Connection):
            connection.create_function("julianday", -1, self._julianday)
        elif isinstance(connection, apsw.Connection):
            connection.create_scalar_function("julianday", self._julianday, -1)
        else:
            raise TypeError(f"{type(connection).__name__} is not a connection of sqlite3 or apsw")

    def _julianday(self, *moment: object) -> float:
        if moment not in {(), ("now",)}:
            raise ValueError("only julianday('now') can be moved")
        return self._wall / SECONDS_PER_DAY + UNIX_EPOCH_IN_JULIAN_DAYS


async def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Wait until a condition holds, looking at it in every turn of the loop; raises `TimeoutError`."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - the condition is anything, not an event
            await asyncio.sleep(0.001)
