"""What most tests stand on: a clock to move, every database, a storage and an outbox that close themselves."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from edgeoutbox import Adapter, Outbox
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.storage.protocol import Storage
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, Driver, StdlibDriver
from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.postgres import PostgresServer, as_url
from edgeoutbox.testing.postgres_clock import PostgresClock
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
    """An open storage of SQLite: for tests that concern it alone. What holds of every backend is conformance."""
    opened = SqliteStorage(database, driver, on_connect=clock.register)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def conninfo(postgres_server: PostgresServer) -> str:
    """How to connect to a schema of the test's own on Postgres, with empty tables."""
    return postgres_server.fresh_schema(schema_sql())


@pytest.fixture(params=[StdlibDriver, ApswDriver, None], ids=["stdlib", "apsw", "postgres"])
def new_storage(request: pytest.FixtureRequest, database: Path, clock: MovableClock) -> Iterator[Callable[[], Storage]]:
    """Makes storages over one database on the test's clock: a file of each copy of SQLite, and a schema of Postgres."""
    if request.param is not None:
        yield lambda: SqliteStorage(database, request.param(), on_connect=clock.register)
        return
    conninfo = request.getfixturevalue("conninfo")
    with PostgresClock(conninfo, clock):
        yield lambda: PostgresStorage(as_url(conninfo))


@pytest.fixture
async def open_outbox(new_storage: Callable[[], Storage]) -> AsyncIterator[OpenOutbox]:
    """Opens outboxes on the test's database and clock."""
    async with AsyncExitStack() as stack:

        async def opener(*adapters: Adapter[Any]) -> Outbox:
            return await stack.enter_async_context(Outbox(new_storage(), adapters))

        yield opener


@pytest.fixture
async def outbox(open_outbox: OpenOutbox) -> Outbox:
    """An open outbox without adapters."""
    return await open_outbox()
