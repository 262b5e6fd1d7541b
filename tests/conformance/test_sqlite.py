"""The conformance suite over SQLite, through both drivers."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from edgeoutbox.storage.protocol import Storage
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import Driver
from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.conformance import Backend, StorageConformance
from edgeoutbox.testing.conformance.suite import TOPICS


class SqliteBackend(Backend):
    """A file, one driver, and a plain connection of the same library beside it."""

    def __init__(self, path: Path, driver: Driver) -> None:
        self.clock = MovableClock()
        self._path = path
        self._driver = driver
        self._opened: list[SqliteStorage] = []
        self._plain: sqlite3.Connection | apsw.Connection | None = None

    async def open(self) -> Storage:
        """Open one more storage on the file."""
        storage = SqliteStorage(self._path, self._driver, on_connect=self.clock.register)
        await storage.open()
        self._opened.append(storage)
        return storage

    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement through a connection that edgeoutbox did not open."""
        if self._plain is None:
            apart = self._driver.copy == "apsw"
            self._plain = (
                apsw.Connection(str(self._path)) if apart else sqlite3.connect(self._path, isolation_level=None)
            )
            self.clock.register(self._plain)
        return [tuple(row) for row in self._plain.execute(statement, parameters).fetchall()]

    async def close(self) -> None:
        """Close everything."""
        if self._plain is not None:
            self._plain.close()
        for storage in self._opened:
            await storage.close()


class TestSqlite(StorageConformance):
    """Every promise of the storage protocol, on SQLite."""

    @pytest.fixture
    async def backend(self, database: Path, driver: Driver) -> AsyncIterator[Backend]:
        """A new file for each test and driver."""
        async with SqliteBackend(database, driver) as backend:
            yield backend


def test_no_topic_of_the_suite_hides_a_test_of_another() -> None:
    """Every test name is used once, so that the one class runs them all."""
    names = [name for topic in TOPICS for name in vars(topic) if name.startswith("test_")]
    assert len(names) == len(set(names))
    assert set(names) == {name for name in dir(TestSqlite) if name.startswith("test_")}
