"""Connections to SQLite: `sqlite3`, aiosqlite, apsw, and SQLAlchemy on SQLite."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
import apsw

from edgeoutbox.connections import sqlalchemy
from edgeoutbox.connections.recognised import Execute, Recognised
from edgeoutbox.errors import MixedSqliteCopies, NoSchema, UnsupportedConnection, WrongDatabase
from edgeoutbox.storage.protocol import SqliteFacts
from edgeoutbox.storage.sqlite import copies, schema
from edgeoutbox.storage.sqlite.drivers import Copy, Unshown, storage_error
from edgeoutbox.storage.sqlite.spelling import spell
from edgeoutbox.storage.statements.steps import Row

KNOWN = "sqlite3, aiosqlite, apsw, or a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession on SQLite"

# Which file the connection has open, and the schema in there.
FACTS = """
SELECT (SELECT file FROM pragma_database_list WHERE name = 'main'), version, readable_from FROM agent_action_schema
"""

PREPARE = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA busy_timeout = 5000",
    "PRAGMA recursive_triggers = ON",
    "PRAGMA wal_autocheckpoint = 0",
)


def recognise(connection: object) -> Recognised | None:
    """A connection to SQLite as its library runs statements, or `None` when it is none that we know."""
    if isinstance(connection, sqlite3.Connection):
        return _recognised("stdlib", connection, partial(_sqlite3, connection))
    if isinstance(connection, aiosqlite.Connection):
        cursor = _AiosqliteCursor(connection)
        return _recognised("stdlib", connection, cursor.execute, asynchronous=True, close=cursor.close)
    if isinstance(connection, apsw.Connection):
        if getattr(connection, "is_async", False):
            raise UnsupportedConnection(f"connection=: an asynchronous apsw connection is not known; give {KNOWN}")
        return _recognised("apsw", connection, partial(_apsw, connection))
    if sqlalchemy.is_connection(connection):
        return _sqlalchemy(connection)
    return None


def require_file(facts: SqliteFacts) -> None:
    """Without an open outbox: the connection must be readable by this build, and of the same copy as others here."""
    if not facts.file:
        raise WrongDatabase("the connection has no database file open; actions need one that an executor can open too")
    copies.require_same_copy_as_outboxes(Path(facts.file), facts.copy)
    schema.require_readable(facts.version, facts.readable_from)


def _recognised(copy: Copy, raw: Any, execute: Execute, **more: Any) -> Recognised:
    return Recognised(
        execute=execute,
        facts=FACTS,
        facts_of=partial(_facts, copy),
        spell=lambda sql, _schema: spell(sql),
        error=storage_error,
        commits_each=partial(_commits_each, raw),
        begin="BEGIN IMMEDIATE",
        recommended=PREPARE,
        **more,
    )


def _commits_each(raw: Any) -> bool:
    """Whether no transaction is open, and sqlite3 will not begin one with the first INSERT or UPDATE."""
    if raw.in_transaction or getattr(raw, "autocommit", None) is False:  # which Python 3.12 has
        return False
    return isinstance(raw, apsw.Connection) or raw.isolation_level is None or getattr(raw, "autocommit", None) is True


def _facts(copy: Copy, rows: list[Row]) -> SqliteFacts:
    if not rows:
        raise NoSchema("the database has no edgeoutbox schema version; open it with Outbox once, or apply schema.sql")
    file, version, readable_from = rows[0]
    return SqliteFacts(copy, file or "", version, readable_from)


def _sqlite3(connection: sqlite3.Connection, sql: str, parameters: Sequence[Any]) -> list[Row]:
    cursor = connection.cursor()
    cursor.row_factory = None
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        return cursor.execute(sql, parameters).fetchall()
    finally:
        connection.text_factory = text_factory
        cursor.close()


def _apsw(connection: apsw.Connection, sql: str, parameters: Sequence[Any]) -> list[Row]:
    cursor = connection.cursor()
    cursor.row_trace = lambda _, row: row
    try:
        return cursor.execute(sql, tuple(parameters)).fetchall()
    finally:
        cursor.close()


class _AiosqliteCursor:
    """One cursor for every statement of a run: each call of aiosqlite's goes through its thread."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._cursor: aiosqlite.Cursor | None = None

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement to its end and return its rows."""
        if self._cursor is None:
            self._cursor = await self._connection.cursor()
            self._cursor.row_factory = None
        await self._cursor.execute(sql, Unshown(parameters))
        return [tuple(row) for row in await self._cursor.fetchall()]

    async def close(self) -> None:
        """Close the cursor."""
        if self._cursor is not None:
            await self._cursor.close()


def _sqlalchemy(connection: Any) -> Recognised | None:
    if connection.dialect.name != "sqlite":
        return None
    raw = connection.connection.driver_connection
    if isinstance(raw, apsw.Connection):
        raise MixedSqliteCopies("connection=: SQLAlchemy through apsw is not known; use its own pysqlite or aiosqlite")
    return _recognised("stdlib", raw, partial(sqlalchemy.execute, connection))
