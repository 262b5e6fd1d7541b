"""P15: what somebody's ANALYZE notes about nearly empty tables of ours costs nothing when they have grown."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from edgeoutbox.storage.sqlite import claiming, settling
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import Driver
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.sqlite.statistics import Statistics
from edgeoutbox.testing.conformance.story import started

STATEMENTS = (settling.HELD, settling.LOG, settling.END, claiming.HELD_LEASES, claiming.BEGIN_WRITE)


@pytest.fixture
def application(storage: SqliteStorage, driver: Driver, database: Path) -> Iterator[Connection]:
    """A connection of the application's, which has a table of its own."""
    assert storage.path == database
    connection = driver.open(str(database), 1000, None)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
    connection.execute("CREATE INDEX orders_by_state ON orders (state)")
    connection.execute("INSERT INTO orders (state) VALUES ('new'), ('paid'), ('paid')")
    yield connection
    connection.close()


def walks(connection: Connection) -> list[str]:
    """Which tables of ours the statements of a fence and a settlement would walk."""
    connection.execute("SELECT version FROM agent_action_schema")  # EXPLAIN does not see that the schema has changed
    fresh = f"-- {uuid4()}"  # nor does one that was compiled before
    lines = []
    for statement in STATEMENTS:
        parameters = ("[]",) * statement.count("?")
        lines += [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement} {fresh}", parameters)]
    return [line for line in lines if line.startswith("SCAN agent_action")]


async def walked(storage: SqliteStorage) -> list[str]:
    """The same, by the connection that writes."""
    return await storage._committer.submit(walks)


def noted(connection: Connection) -> set[str]:
    """The tables that have statistics."""
    return {name for (name,) in connection.execute("SELECT tbl FROM sqlite_stat1")}


async def test_p15_statistics_of_nearly_empty_tables_are_forgotten(
    storage: SqliteStorage, application: Connection
) -> None:
    """With them the log would be walked for each settlement; the application's own stay."""
    await started(storage, fenced=True)
    assert await walked(storage) == []
    application.execute("ANALYZE")
    assert "SCAN agent_action_attempt" in await walked(storage)
    await storage.heartbeat("one", "1.0", {})
    assert await walked(storage) == []
    assert noted(application) == {"orders"}


async def test_p15_each_process_forgets_what_it_has_read(
    storage: SqliteStorage, application: Connection, driver: Driver, database: Path
) -> None:
    """What another process deletes, this one still knows."""
    await started(storage, fenced=True)
    other = SqliteStorage(database, driver)
    await other.open()
    assert await walked(other) == []
    application.execute("ANALYZE")
    for one in (storage, other):
        assert "SCAN agent_action_attempt" in await walked(one)
    for one in (storage, other):
        await one.heartbeat("one", "1.0", {})
        assert await walked(one) == []
    await other.close()


async def test_p15_statistics_that_come_with_a_new_schema_are_forgotten(
    storage: SqliteStorage, application: Connection
) -> None:
    """A second ANALYZE is read when the application migrates."""
    await started(storage, fenced=True)
    application.execute("ANALYZE")
    await storage.heartbeat("one", "1.0", {})
    await storage.heartbeat("one", "1.0", {})
    application.execute("ANALYZE")
    application.execute("ALTER TABLE orders ADD COLUMN total INTEGER")
    assert "SCAN agent_action_attempt" in await walked(storage)
    await storage.heartbeat("one", "1.0", {})
    assert await walked(storage) == []


async def test_nothing_is_made_where_nobody_analyzed(storage: SqliteStorage, application: Connection) -> None:
    """A database without statistics stays without."""
    await started(storage)
    await storage.heartbeat("one", "1.0", {})
    assert application.execute("SELECT name FROM sqlite_master WHERE name LIKE 'sqlite_stat%'") == []


async def test_what_was_forgotten_and_rolled_back_is_forgotten_again(
    storage: SqliteStorage, application: Connection
) -> None:
    """A failed heartbeat leaves the statistics there; the next one finds them."""
    await started(storage)
    application.execute("ANALYZE")
    statistics = Statistics()
    for end in ("ROLLBACK", "COMMIT"):
        application.execute("BEGIN IMMEDIATE")
        statistics.forget(application)
        application.execute(end)
    assert noted(application) == {"orders"}
