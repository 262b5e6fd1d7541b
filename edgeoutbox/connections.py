"""The caller's own connection, whatever its library: the statements of a step run on it, in its transaction.

Nothing here begins, commits or rolls back. Every statement runs on a cursor without the caller's row factory.
"""

import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import aiosqlite
import apsw

from edgeoutbox.errors import MixedSqliteCopies, NoSchema, UnsupportedConnection, WrongDatabase
from edgeoutbox.storage.protocol import ConnectionFacts
from edgeoutbox.storage.sqlite import copies, schema
from edgeoutbox.storage.sqlite.drivers import storage_error
from edgeoutbox.storage.sqlite.steps import Row, Steps

T = TypeVar("T")

# What a connection is asked before it is used: which file it has open, and the schema in there.
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

_KNOWN = "sqlite3, aiosqlite, apsw, or a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession on SQLite"


class SyncExecute(Protocol):
    """Runs one statement on the caller's connection, now."""

    def __call__(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """Run it to its end and return its rows."""


def run_sync(connection: object, steps: Steps[T], check: Callable[[ConnectionFacts], None]) -> T:
    """Run the steps on a synchronous connection. `check` may refuse it.

    Raises `UnsupportedConnection`, what `check` raises, and `StorageError` for the database's own errors.
    """
    copy, execute = _synchronous(connection)
    return _run(copy, execute, steps, check)


async def run_async(connection: object, steps: Steps[T], check: Callable[[ConnectionFacts], None]) -> T:
    """Run the steps on any known connection."""
    if isinstance(connection, aiosqlite.Connection):
        return await _run_aiosqlite(connection, steps, check)
    if _is_sqlalchemy(connection, "AsyncConnection", "AsyncSession"):
        asynchronous: Any = connection
        result: T = await asynchronous.run_sync(lambda inner: run_sync(inner, steps, check))
        return result
    return run_sync(connection, steps, check)


def require_file(facts: ConnectionFacts) -> None:
    """Without an open outbox: the connection must be readable by this build, and of the same copy as others here."""
    if not facts.file:
        raise WrongDatabase("the connection has no database file open; actions need one that an executor can open too")
    copies.require_same_copy_as_outboxes(Path(facts.file), facts.copy)
    schema.require_readable(facts.version, facts.readable_from)


def prepare(connection: object) -> None:
    """Set on a connection of your own what edgeoutbox recommends for the database that it works on.

    WAL mode and a busy timeout, `synchronous=FULL` (an enqueue is durable when your commit returns),
    `recursive_triggers` (a REPLACE fires delete triggers), and no automatic checkpoints, which the executor's process
    makes. Accepts `sqlite3`, `apsw` and a SQLAlchemy `Connection`; call it outside of a transaction. For aiosqlite use
    `prepare_async`.
    """
    _, execute = _synchronous(connection)
    for pragma in PREPARE:
        execute(pragma, ())


async def prepare_async(connection: aiosqlite.Connection) -> None:
    """The same for an aiosqlite connection."""
    for pragma in PREPARE:
        await connection.execute(pragma)


def _run(
    copy: Literal["stdlib", "apsw"], execute: SyncExecute, steps: Steps[T], check: Callable[[ConnectionFacts], None]
) -> T:
    try:
        check(_facts(copy, execute(FACTS, ())))
        sql, parameters = next(steps)
        while True:
            sql, parameters = steps.send(execute(sql, parameters))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except Exception as error:
        raise _translated(error) from error
    finally:
        steps.close()


async def _run_aiosqlite(
    connection: aiosqlite.Connection, steps: Steps[T], check: Callable[[ConnectionFacts], None]
) -> T:
    cursor = await connection.cursor()
    cursor.row_factory = None

    async def execute(sql: str, parameters: Sequence[Any]) -> list[Row]:
        await cursor.execute(sql, parameters)
        return [tuple(row) for row in await cursor.fetchall()]

    try:
        check(_facts("stdlib", await execute(FACTS, ())))
        sql, parameters = next(steps)
        while True:
            sql, parameters = steps.send(await execute(sql, parameters))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except Exception as error:
        raise _translated(error) from error
    finally:
        steps.close()
        await cursor.close()


def _facts(copy: Literal["stdlib", "apsw"], rows: list[Row]) -> ConnectionFacts:
    if not rows:
        raise NoSchema("the database has no edgeoutbox schema version; open it with Outbox once, or apply schema.sql")
    file, version, readable_from = rows[0]
    return ConnectionFacts(copy, file or "", version, readable_from)


def _translated(error: Exception) -> Exception:
    # SQLAlchemy wraps the driver's error.
    original = getattr(error, "orig", None)
    return storage_error(original if isinstance(original, Exception) else error) or error


def _synchronous(connection: object) -> tuple[Literal["stdlib", "apsw"], SyncExecute]:
    if isinstance(connection, sqlite3.Connection):
        return "stdlib", _of_sqlite3(connection)
    if isinstance(connection, apsw.Connection):
        return "apsw", _of_apsw(connection)
    if _is_sqlalchemy(connection, "Session"):
        session: Any = connection
        return _synchronous(session.connection())
    if _is_sqlalchemy(connection, "Connection"):
        return _of_sqlalchemy(connection)
    if isinstance(connection, aiosqlite.Connection) or _is_sqlalchemy(connection, "AsyncConnection", "AsyncSession"):
        raise UnsupportedConnection(
            "this is an asynchronous connection: give it to Outbox.enqueue(connection=...); "
            "to prepare it, await prepare_async(connection)"
        )
    raise UnsupportedConnection(
        f"connection=: {type(connection).__module__}.{type(connection).__qualname__} is not known; give {_KNOWN}"
    )


def _of_sqlite3(connection: sqlite3.Connection) -> SyncExecute:
    def execute(sql: str, parameters: Sequence[Any]) -> list[Row]:
        cursor = connection.cursor()
        cursor.row_factory = None
        text_factory, connection.text_factory = connection.text_factory, str
        try:
            return cursor.execute(sql, parameters).fetchall()
        finally:
            connection.text_factory = text_factory
            cursor.close()

    return execute


def _of_apsw(connection: apsw.Connection) -> SyncExecute:
    if getattr(connection, "is_async", False):
        raise UnsupportedConnection(f"connection=: an asynchronous apsw connection is not known; give {_KNOWN}")

    def execute(sql: str, parameters: Sequence[Any]) -> list[Row]:
        cursor = connection.cursor()
        cursor.row_trace = lambda _, row: row
        try:
            return cursor.execute(sql, tuple(parameters)).fetchall()
        finally:
            cursor.close()

    return execute


def _of_sqlalchemy(connection: Any) -> tuple[Literal["stdlib", "apsw"], SyncExecute]:
    if connection.dialect.name != "sqlite":
        dialect = connection.dialect.name
        raise UnsupportedConnection(f"connection=: the SQLAlchemy dialect {dialect} is not known; give {_KNOWN}")
    if isinstance(connection.connection.driver_connection, apsw.Connection):
        raise MixedSqliteCopies("connection=: SQLAlchemy through apsw is not known; use its own pysqlite or aiosqlite")

    def execute(sql: str, parameters: Sequence[Any]) -> list[Row]:
        result = connection.exec_driver_sql(sql, tuple(parameters))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    return "stdlib", execute


def _is_sqlalchemy(connection: object, *names: str) -> bool:
    """Whether the connection is one of SQLAlchemy's classes, without importing SQLAlchemy."""
    found = []
    for module, name in (
        ("sqlalchemy.engine", "Connection"),
        ("sqlalchemy.orm", "Session"),
        ("sqlalchemy.ext.asyncio", "AsyncConnection"),
        ("sqlalchemy.ext.asyncio", "AsyncSession"),
    ):
        loaded = sys.modules.get(module)
        if name in names and loaded is not None:
            found.append(getattr(loaded, name))
    return isinstance(connection, tuple(found))
