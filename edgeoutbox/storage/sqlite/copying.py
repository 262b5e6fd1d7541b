"""An SQLite database as the source or the destination of a copy."""

import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import apsw

from edgeoutbox.errors import ForbiddenByGuard, StorageError
from edgeoutbox.storage.protocol import KindPolicy, Migrated
from edgeoutbox.storage.sqlite import copies, schema
from edgeoutbox.storage.sqlite.backend import SqliteStorage, create_private
from edgeoutbox.storage.sqlite.checkpoints import Checkpoints
from edgeoutbox.storage.sqlite.drivers import require_version, storage_error
from edgeoutbox.storage.sqlite.spelling import Connection, run, spell
from edgeoutbox.storage.statements import copying
from edgeoutbox.storage.statements.copying import Carried, Outcome, Text, Unfit

T = TypeVar("T")

BUSY_TIMEOUT = 5000
"""Milliseconds to wait for a lock."""

TRIGGERS = """
SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'agent_action' ORDER BY rowid
"""

# What the guard asks of new rows, and what it does with them; a trigger of the application's own stays.
_OF_INSERTS = re.compile(r"CREATE TRIGGER\s+(?:guard_)?agent_action_\w+\s+(?:BEFORE|AFTER)\s+INSERT\b")


class SqlitePlace:
    """The file of a storage, which itself stays closed meanwhile."""

    def __init__(self, storage: SqliteStorage) -> None:
        self._storage = storage
        self._connection: Connection | None = None
        self._checkpoints = Checkpoints(storage.path, storage.driver)

    @property
    def shown(self) -> str:
        """Where it is."""
        return self._storage.url

    @property
    def identity(self) -> Hashable:
        """The file, whatever its name."""
        found = self._storage.path.stat()
        return "sqlite", found.st_dev, found.st_ino

    def sql(self) -> str:
        """The schema, as `migrate` would make it where there is none."""
        return schema.schema_sql()

    async def migrate(self) -> Migrated:
        """Bring the schema to this build's version, and make the file if it is not there."""
        require_version(self._storage.driver)
        create_private(self._storage.path)
        async with self.opened():
            return self._migrate()

    def _migrate(self) -> Migrated:
        connection = self._open()
        with _translated():
            before = schema.migrate(connection)
            [(after,)] = connection.execute("SELECT version FROM agent_action_schema")
        return Migrated(before, after)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the file, and close it in the end."""
        path, driver = self._storage.path, self._storage.driver
        copies.require_same_copy(path, driver.copy)
        noted = copies.opened(path, driver.copy)
        try:
            with _translated():
                self._connection = driver.open(str(path), BUSY_TIMEOUT, None)
            yield
        finally:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            copies.closed(noted)

    async def make_ready(self) -> None:
        """Make the table of what was copied."""
        self._write(lambda connection: run(connection, copying.make_ready()))

    async def hold(self, by: str) -> tuple[Mapping[str, KindPolicy], int]:
        """Pause every kind, in a transaction that is the only one that writes."""
        return self._write(lambda connection: run(connection, copying.hold(by)))

    async def hold_more(self, by: str) -> Mapping[str, KindPolicy]:
        """Pause also the kinds that came up since."""
        return self._write(lambda connection: run(connection, copying.hold_more(by)))

    async def count(self, *, everything: bool) -> int:
        """How many actions there are to carry."""
        return self._transaction("BEGIN", lambda connection: run(connection, copying.count(everything=everything)))

    async def read(self, after: int, limit: int, *, everything: bool) -> Sequence[Carried]:
        """The next actions by id."""
        steps = copying.read(after, limit, everything=everything)
        return self._transaction("BEGIN", lambda connection: run(connection, steps))

    async def declare(self, policies: Iterable[KindPolicy]) -> None:
        """Let the source's kinds hold here."""
        self._write(lambda connection: run(connection, copying.declare(policies)))

    async def put(self, actions: Sequence[Carried], blocked: Collection[Text]) -> Sequence[Outcome]:
        """Insert what is new, while the triggers of inserts are dropped; nobody can write until they are back."""

        def insert(connection: Connection) -> Sequence[Outcome]:
            aside = [(name, sql) for name, sql in connection.execute(TRIGGERS) if _OF_INSERTS.match(sql)]
            for name, _ in aside:
                connection.execute(f"DROP TRIGGER {name}")
            outcomes, statements = run(connection, copying.plan(actions, blocked, new_id="NULL"))
            for sql, parameters in statements:
                connection.execute(spell(sql), parameters)
            for _, sql in aside:
                connection.execute(sql)
            run(connection, copying.require_heads(copying.copied(actions, outcomes)))
            return outcomes

        try:
            outcomes = self._write(insert)
        except ForbiddenByGuard as error:
            raise Unfit(str(error)) from None
        self._checkpoint()
        return outcomes

    def _checkpoint(self) -> None:
        if self._checkpoints.due():
            connection = self._open()
            connection.execute("PRAGMA busy_timeout = 0")
            self._checkpoints.run(connection)
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT}")

    def _write(self, body: Callable[[Connection], T]) -> T:
        return self._transaction("BEGIN IMMEDIATE", body)

    def _transaction(self, begin: str, body: Callable[[Connection], T]) -> T:
        connection = self._open()
        with _translated():
            connection.execute(begin)
            try:
                result = body(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return result

    def _open(self) -> Connection:
        if self._connection is None:
            raise StorageError("this place is closed; open it first")
        return self._connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, apsw.Error) as error:
        raise storage_error(error) or error from None
