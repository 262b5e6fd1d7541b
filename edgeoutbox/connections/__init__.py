"""The caller's own connection, whatever its library: the statements of a step run on it, in its transaction.

Nothing here commits or rolls back what the caller began; where each statement would commit by itself, a change has a
transaction of its own. A room per kind of database recognises its connections; this one runs steps on what was
recognised.
"""

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from edgeoutbox.connections import postgres, sqlalchemy, sqlite
from edgeoutbox.connections.recognised import Database, Recognised
from edgeoutbox.errors import UnsupportedConnection
from edgeoutbox.storage.protocol import ConnectionFacts, PostgresFacts, SqliteFacts
from edgeoutbox.storage.statements.lanes import Lanes
from edgeoutbox.storage.statements.steps import Row, Statement, Steps, take_async

T = TypeVar("T")


class Place(Protocol):
    """Where the actions of a connection have to be: an open storage, or `ANYWHERE`."""

    @property
    def schema(self) -> str | None:
        """The Postgres schema of our tables, or `None` for the one that the connection's search_path finds."""

    def require_connection(self, facts: ConnectionFacts) -> None:
        """Refuse a connection to another database, or to a schema that this build cannot read."""


class Anywhere:
    """Without an open outbox: wherever the connection leads, if this build can work with what is there."""

    schema = None

    def require_connection(self, facts: ConnectionFacts) -> None:
        """Raise `WrongDatabase`, `MixedSqliteCopies` or `SchemaTooNew`."""
        match facts:
            case SqliteFacts():
                sqlite.require_file(facts)
            case PostgresFacts():
                postgres.require_readable(facts)


ANYWHERE = Anywhere()

_DATABASES: tuple[Database, ...] = (sqlite, postgres)
"""The rooms that recognise connections, in the order in which they are asked."""


def run_sync(connection: object, steps: Steps[T], place: Place, lanes: Lanes | None = Lanes()) -> T:  # noqa: B008 - immutable
    """Run the steps of an enqueue into these lanes, or of another change, on a synchronous connection.

    With `lanes` `None` they only read. Raises `UnsupportedConnection`, what `place` raises, and `StorageError` for the
    database's own errors.
    """
    return _at_once(_run(_synchronous(connection), steps, place, lanes))


async def run_async(connection: object, steps: Steps[T], place: Place, lanes: Lanes | None = Lanes()) -> T:  # noqa: B008
    """Run the steps on any known connection."""
    connection = sqlalchemy.unscoped(connection)
    if sqlalchemy.is_asynchronous(connection):
        asynchronous: Any = connection
        result: T = await asynchronous.run_sync(lambda inner: run_sync(inner, steps, place, lanes))
        return result
    return await _run(_recognised(connection), steps, place, lanes)


def prepare(connection: object) -> None:
    """Set on a connection of your own what edgeoutbox recommends for the database that it works on.

    On SQLite: WAL mode and a busy timeout, `synchronous=FULL` (an enqueue is durable when your commit returns),
    `recursive_triggers` (a REPLACE fires delete triggers), and no automatic checkpoints, which the executor's process
    makes. Call it outside of a transaction. A connection to Postgres needs nothing and is left as it is. Accepts every
    synchronous connection that `enqueue_sync` does; for others use `prepare_async`.
    """
    _at_once(_prepare(_synchronous(connection)))


async def prepare_async(connection: object) -> None:
    """The same for an asynchronous connection."""
    connection = sqlalchemy.unscoped(connection)
    if sqlalchemy.is_asynchronous(connection):
        asynchronous: Any = connection
        await asynchronous.run_sync(prepare)
        return
    await _prepare(_recognised(connection))


async def _run(connection: Recognised, steps: Steps[T], place: Place, lanes: Lanes | None) -> T:
    try:
        facts = connection.facts_of(await _rows(connection, connection.spell(connection.facts, place.schema), ()))
        place.require_connection(facts)
        schema = facts.schema if isinstance(facts, PostgresFacts) else None
        if lanes is None:
            return await take_async(steps, partial(_step, connection, schema))
        return await _change(connection, steps, schema, lanes)
    except Exception as error:
        original = getattr(error, "orig", None)  # SQLAlchemy wraps the driver's error
        translated = connection.error(original if isinstance(original, Exception) else error)
        if translated is None:
            raise
        raise translated from None  # the driver's error, or SQLAlchemy's, shows rows and parameters in a log
    finally:
        steps.close()
        if connection.close is not None:
            await connection.close()


async def _change(connection: Recognised, steps: Steps[T], schema: str | None, lanes: Lanes) -> T:
    """Take all steps or none: on a connection whose statements commit by themselves, in a transaction of our own."""
    ours = connection.commits_each()  # asked after the first statement, with which some libraries begin a transaction
    if ours:
        await _rows(connection, connection.begin, ())
    try:
        for lock in connection.locks(lanes):
            await _step(connection, schema, lock)
        answer = await take_async(steps, partial(_step, connection, schema))
        if ours:
            await _rows(connection, "COMMIT", ())
    except BaseException:
        if ours and not connection.commits_each():
            with suppress(Exception):  # the connection may be lost, and the transaction with it; the first error counts
                await _rows(connection, "ROLLBACK", ())
        raise
    return answer


async def _prepare(connection: Recognised) -> None:
    try:
        for statement in connection.recommended:
            await _rows(connection, statement, ())
    finally:
        if connection.close is not None:
            await connection.close()


async def _step(connection: Recognised, schema: str | None, statement: Statement) -> list[Row]:
    return await _rows(connection, connection.spell(statement[0], schema), statement[1])


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
    connection = sqlalchemy.unscoped(connection)
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
