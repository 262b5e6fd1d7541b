"""A schema of the test server per test, and as many sessions in it as the test needs."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.postgres.database import Connect, PostgresDatabase
from tests.postgres.world import outbox, shop
from tests.schema.database import SqliteDatabase

__all__ = ["outbox", "shop"]


@pytest.fixture
def connect(conninfo: str) -> Iterator[Connect]:
    """Opens sessions in the test's schema."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(PostgresDatabase(conninfo)))


@pytest.fixture
def db(connect: Connect) -> PostgresDatabase:
    """A session in the test's schema."""
    return connect()


@pytest.fixture
def sqlite() -> Iterator[SqliteDatabase]:
    """The same schema in SQLite, to compare with."""
    with SqliteDatabase(sqlite3.connect(":memory:", isolation_level=None)) as database:
        yield database
