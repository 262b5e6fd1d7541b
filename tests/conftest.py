"""What most tests stand on: a clock to move, both drivers of SQLite, a storage and an outbox that close themselves."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from edgeoutbox import Adapter, Outbox
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, Driver, StdlibDriver
from edgeoutbox.testing import MovableClock
from tests.postgres.database import postgres_server

__all__ = ["postgres_server"]

OpenOutbox: TypeAlias = Callable[..., Awaitable[Outbox]]
"""Call it with adapters; every outbox that it opens is of the same database and is closed after the test."""


@pytest.fixture
def clock() -> MovableClock:
    """The clock of the database and the machine; it stands still until a test moves it."""
    return MovableClock()


@pytest.fixture(params=[StdlibDriver, ApswDriver], ids=["stdlib", "apsw"])
def driver(request: pytest.FixtureRequest) -> Driver:
    """Each of the two copies of SQLite in turn."""
    made: Driver = request.param()
    return made


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the test's database is or will be."""
    return tmp_path / "app.db"


@pytest.fixture
async def storage(database: Path, driver: Driver, clock: MovableClock) -> AsyncIterator[SqliteStorage]:
    """An open storage on the test's database and clock."""
    opened = SqliteStorage(database, driver, on_connect=clock.register)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def open_outbox(database: Path, driver: Driver, clock: MovableClock) -> AsyncIterator[OpenOutbox]:
    """Opens outboxes on the test's database and clock."""
    async with AsyncExitStack() as stack:

        async def opener(*adapters: Adapter[Any]) -> Outbox:
            storage = SqliteStorage(database, driver, on_connect=clock.register)
            return await stack.enter_async_context(Outbox(storage, adapters))

        yield opener


@pytest.fixture
async def outbox(open_outbox: OpenOutbox) -> Outbox:
    """An open outbox without adapters."""
    return await open_outbox()
