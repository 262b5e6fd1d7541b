"""An outbox whose time is a test's."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edgeoutbox.executor import Executor
from edgeoutbox.outbox import Adapters, Outbox
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import StdlibDriver
from edgeoutbox.testing.clock import MovableClock


@asynccontextmanager
async def running(
    path: str | os.PathLike[str], adapters: Adapters, clock: MovableClock
) -> AsyncIterator[tuple[Outbox, Executor]]:
    """An outbox on a file and its running executor, both on the movable clock; moving it wakes the executor."""
    storage = SqliteStorage(Path(path), StdlibDriver(), on_connect=clock.register)
    async with Outbox(storage, adapters) as outbox, Executor(outbox, clock=clock) as executor:
        clock.on_move(outbox.wake)
        yield outbox, executor
