"""The caller's own connection, whatever its library: the statements of a step run on it, in its transaction.

Nothing here begins, commits or rolls back. A room per kind of database recognises its connections; this one runs steps
on what was recognised.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

import aiosqlite

from edgeoutbox.connections import sqlalchemy, sqlite
from edgeoutbox.connections.recognised import Database, Recognised
from edgeoutbox.errors import UnsupportedConnection
from edgeoutbox.storage.protocol import ConnectionFacts, PostgresFacts, SqliteFacts
from edgeoutbox.storage.statements.steps import Row, Steps

T = TypeVar("T")

Check: TypeAlias = Callable[[ConnectionFacts], None]
"""Raises for a connection that must not be used: of another database, or with a schema that this build cannot read."""

_DATABASES: tuple[Database, ...] = (sqlite,)
"""The rooms that recognise connections, in the order in which they are asked."""


def run_sync(connection: object, steps: Steps[T], check: Check) -> T:
    """Run the steps on a synchronous connection. `check` may refuse it.

    Raises `UnsupportedConnection`, what `check` raises, and `StorageError` for the database's own errors.
    """
    return _at_once(_run(_synchronous(connection), steps, check))


async def run_async(connection: object, steps: Steps[T], check: Check) -> T:
    """Run the steps on any known connection."""
    if sqlalchemy.is_asynchronous(connection):
        asynchronous: Any = connection
        result: T = await asynchronous.run_sync(lambda inner: run_sync(inner, steps, check))
        return result
    return await _run(_recognised(connection), steps, check)


def require_usable(facts: ConnectionFacts) -> None:
    """The check without an open outbox: this build must be able to work with what the connection has open.

    Raises `WrongDatabase`, `MixedSqliteCopies` or `SchemaTooNew`.
    """
    match facts:
        case SqliteFacts():
            sqlite.require_file(facts)
        case PostgresFacts():
            raise UnsupportedConnection("connection=: a connection to Postgres needs an open Outbox on its database")


def prepare(connection: object) -> None:
    """Set on a connection of your own what edgeoutbox recommends for the database that it works on.

    WAL mode and a busy timeout, `synchronous=FULL` (an enqueue is durable when your commit returns),
    `recursive_triggers` (a REPLACE fires delete triggers), and no automatic checkpoints, which the executor's process
    makes. Accepts `sqlite3`, `apsw` and a SQLAlchemy `Connection`; call it outside of a transaction. For aiosqlite use
    `prepare_async`.
    """
    _at_once(_prepare(_synchronous(connection)))


async def prepare_async(connection: aiosqlite.Connection) -> None:
    """The same for an aiosqlite connection."""
    await _prepare(_recognised(connection))


async def _run(connection: Recognised, steps: Steps[T], check: Check) -> T:
    try:
        check(connection.facts_of(await _rows(connection, connection.facts, ())))
        sql, parameters = next(steps)
        while True:
            sql, parameters = steps.send(await _rows(connection, connection.spell(sql), parameters))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except Exception as error:
        original = getattr(error, "orig", None)  # SQLAlchemy wraps the driver's error
        translated = connection.error(original if isinstance(original, Exception) else error)
        if translated is None:
            raise
        raise translated from error
    finally:
        steps.close()
        if connection.close is not None:
            await connection.close()


async def _prepare(connection: Recognised) -> None:
    try:
        for statement in connection.recommended:
            await _rows(connection, statement, ())
    finally:
        if connection.close is not None:
            await connection.close()


async def _rows(connection: Recognised, sql: str, parameters: Sequence[Any]) -> list[Row]:
    rows: Any = connection.execute(sql, parameters)
    answer: list[Row] = await rows if connection.asynchronous else rows
    return answer


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine comes to that has nothing to wait for: its connection is synchronous."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise UnsupportedConnection("connection=: a synchronous connection was waited for; give it to an asynchronous call")


def _synchronous(connection: object) -> Recognised:
    found = None if sqlalchemy.is_asynchronous(connection) else _recognised(connection)
    if found is None or found.asynchronous:
        raise UnsupportedConnection(
            "this is an asynchronous connection: give it to Outbox.enqueue(connection=...); "
            "to prepare it, await prepare_async(connection)"
        )
    return found


def _recognised(connection: object) -> Recognised:
    if sqlalchemy.is_session(connection):
        session: Any = connection
        connection = session.connection()
    for database in _DATABASES:
        found = database.recognise(connection)
        if found is not None:
            return found
    known = ", or ".join(database.KNOWN for database in _DATABASES)
    if sqlalchemy.is_connection(connection):
        of_sqlalchemy: Any = connection
        dialect = of_sqlalchemy.dialect.name
        raise UnsupportedConnection(f"connection=: the SQLAlchemy dialect {dialect} is not known; give {known}")
    raise UnsupportedConnection(
        f"connection=: {type(connection).__module__}.{type(connection).__qualname__} is not known; give {known}"
    )
