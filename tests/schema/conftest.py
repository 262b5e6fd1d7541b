"""Each test of the schemas runs on both copies of SQLite and on Postgres, unless it says why on SQLite alone."""

import sqlite3
from collections.abc import Callable, Iterator

import apsw
import pytest

from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.postgres_clock import PostgresClock
from tests.postgres.database import POSTGRES_SCHEMA, PostgresDatabase
from tests.schema.database import Database, SqliteDatabase

OpenPlain = Callable[[str], SqliteDatabase]


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of these tests."""
    config.addinivalue_line("markers", "sqlite_alone(reason): a test of what only SQLite has")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out on Postgres what concerns SQLite alone."""
    left_out = [
        item
        for item in items
        if item.get_closest_marker("sqlite_alone") is not None
        and isinstance(item, pytest.Function)
        and getattr(item, "callspec", None) is not None
        and item.callspec.params.get("library") == "postgres"
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(params=["sqlite3", "apsw", "postgres"])
def library(request: pytest.FixtureRequest) -> str:
    """What the test works through, without edgeoutbox."""
    return str(request.param)


@pytest.fixture
def open_plain(library: str) -> Iterator[OpenPlain]:
    """Opens SQLite databases through one library."""
    opened: list[SqliteDatabase] = []

    def opener(path: str) -> SqliteDatabase:
        raw = apsw.Connection(path) if library == "apsw" else sqlite3.connect(path, isolation_level=None)
        opened.append(SqliteDatabase(raw))
        return opened[-1]

    yield opener
    for database in opened:
        database.close()


@pytest.fixture
def db(library: str, open_plain: OpenPlain, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A new database in memory, or a new schema of the test server."""
    if library != "postgres":
        yield open_plain(":memory:")
        return
    server = request.getfixturevalue("postgres_server")
    made = PostgresDatabase(server.fresh_schema(POSTGRES_SCHEMA))
    yield made
    made.close()


@pytest.fixture
def stopped(db: Database, clock: MovableClock) -> Iterator[MovableClock]:
    """The database's clock, which stands still until it is moved."""
    match db:
        case SqliteDatabase():
            clock.register(db.raw)
            yield clock
        case PostgresDatabase():
            with PostgresClock(db.conninfo, clock):
                yield clock
