"""Connections to Postgres: psycopg, asyncpg, and SQLAlchemy on either.

Each statement runs as the library would run one of the caller's own. So psycopg and SQLAlchemy begin a transaction with
it where none is open, unless the connection is in autocommit mode; there, and on asyncpg outside of a transaction, a
change has one of its own.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from edgeoutbox.connections import sqlalchemy
from edgeoutbox.connections.recognised import Execute, Recognised, is_of
from edgeoutbox.errors import DatabaseBusy, NoSchema, StorageError, TransactionConflict, UnsupportedConnection
from edgeoutbox.storage.postgres import facts, lanes
from edgeoutbox.storage.postgres.errors import storage_error
from edgeoutbox.storage.postgres.facts import require_readable
from edgeoutbox.storage.postgres.spelling import spell, spell_numbered
from edgeoutbox.storage.statements.steps import Row

__all__ = ["KNOWN", "recognise", "require_readable"]

KNOWN = "psycopg 3, asyncpg, or SQLAlchemy on Postgres through one of these"

Spell: TypeAlias = Callable[[str, str | None], str]

_SPELLINGS: dict[str, Spell] = {"psycopg": spell, "asyncpg": spell_numbered}
"""The drivers, by SQLAlchemy's name, and how each takes a statement."""

_CONFLICTS = frozenset({"40001", "40P01", "23505"})
"""SQLSTATEs of transactions in each other's way: one saw too little, each waited for the other, two heads met."""

_ROLL_BACK = "your transaction is aborted: ROLLBACK it, or ROLLBACK TO a SAVEPOINT before this"


def recognise(connection: object) -> Recognised | None:
    """A connection to Postgres as its library runs statements, or `None` when it is none that we know."""
    if is_of(connection, "psycopg", "Connection"):
        return _recognised(connection, "psycopg", partial(_psycopg, connection))
    if is_of(connection, "psycopg", "AsyncConnection"):
        return _recognised(connection, "psycopg", partial(_psycopg_async, connection), asynchronous=True)
    if is_of(connection, "asyncpg", "Connection"):  # so is what a pool lends
        return _recognised(connection, "asyncpg", partial(_asyncpg, connection), asynchronous=True)
    if sqlalchemy.is_connection(connection):
        return _sqlalchemy(connection)
    return None


def _recognised(raw: Any, driver: str, execute: Execute, *, asynchronous: bool = False) -> Recognised:
    return Recognised(
        execute=execute,
        facts=facts.FACTS,
        facts_of=facts.facts_of,
        spell=_SPELLINGS[driver],
        error=partial(_error, raw),
        commits_each=partial(_commits_each, raw),
        begin="BEGIN",
        locks=lanes.locks,
        asynchronous=asynchronous,
    )


def _psycopg(connection: Any, sql: str, parameters: Sequence[Any]) -> list[Row]:
    import psycopg  # noqa: PLC0415 - it is loaded: the connection is of one of its classes

    with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        _adapt(cursor)
        try:
            cursor.execute(sql.encode(), tuple(parameters))
            if _sends_ahead(connection):
                _ask(connection)
        except psycopg.Error:
            if _sends_ahead(connection):  # an error may come before what it made of the transaction
                with contextlib.suppress(psycopg.Error):
                    _ask(connection)
            raise
        return cursor.fetchall() if cursor.description is not None else []


async def _psycopg_async(connection: Any, sql: str, parameters: Sequence[Any]) -> list[Row]:
    import psycopg  # noqa: PLC0415 - the same

    async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        _adapt(cursor)
        try:
            await cursor.execute(sql.encode(), tuple(parameters))
            if _sends_ahead(connection):
                await _ask_async(connection)
        except psycopg.Error:
            if _sends_ahead(connection):  # the same
                with contextlib.suppress(psycopg.Error):
                    await _ask_async(connection)
            raise
        return await cursor.fetchall() if cursor.description is not None else []


def _sends_ahead(connection: Any) -> bool:
    """Whether the caller is in a pipeline, where an answer comes only when all that was sent is asked for."""
    return str(connection.info.pipeline_status.name) != "OFF"


def _ask(connection: Any) -> None:
    with connection.pipeline() as pipeline:
        pipeline.sync()


async def _ask_async(connection: Any) -> None:
    async with connection.pipeline() as pipeline:
        await pipeline.sync()


def _adapt(cursor: Any) -> None:
    """Read and write what we do as psycopg does by itself, whatever the caller registered on its connection."""
    from psycopg.types import array, numeric, string  # noqa: PLC0415 - the same

    for kind in ("int2", "int4", "int8"):
        cursor.adapters.register_loader(kind, numeric.IntLoader)
    cursor.adapters.register_loader("text", string.TextLoader)
    cursor.adapters.register_dumper(int, numeric.IntDumper)
    cursor.adapters.register_dumper(str, string.StrDumperUnknown)
    cursor.adapters.register_dumper(list, array.ListDumper)


async def _asyncpg(connection: Any, sql: str, parameters: Sequence[Any]) -> list[Row]:
    import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415 - the same

    return [tuple(row) for row in await connection.fetch(sql, *parameters, record_class=asyncpg.Record)]


def _sqlalchemy(connection: Any) -> Recognised | None:
    dialect = connection.dialect
    if dialect.name != "postgresql":
        return None
    if dialect.driver not in _SPELLINGS:
        raise UnsupportedConnection(
            f"connection=: SQLAlchemy's postgresql+{dialect.driver} is not known; "
            "use postgresql+psycopg or postgresql+asyncpg"
        )
    raw = connection.connection.driver_connection
    return _recognised(raw, dialect.driver, partial(sqlalchemy.execute, connection))


def _error(raw: Any, error: Exception) -> StorageError | None:
    # SQLAlchemy has an error of its own for each of asyncpg's, which is then its cause.
    original = error if isinstance(error, StorageError) or storage_error(error) is not None else error.__cause__
    found = storage_error(original) if isinstance(original, Exception) else None
    if found is None or found is original:
        return None
    state: str | None = getattr(original, "sqlstate", None)
    if state is None:
        return found
    if isinstance(found, DatabaseBusy) and state in _CONFLICTS:
        return TransactionConflict(
            f"another transaction was in the way of yours (SQLSTATE {state}): ROLLBACK, and run all of yours again"
        )
    if isinstance(found, DatabaseBusy):
        what = f"another transaction held what this one needs for too long (SQLSTATE {state})"
    elif isinstance(found, NoSchema):
        what = (
            "the connection finds no edgeoutbox tables in its database where the outbox, or search_path, has them; "
            "SET search_path = public, and their schema on it, or for its role with ALTER ROLE"
        )
    else:
        what = str(found)
    return type(found)(f"{what}; {_ROLL_BACK}" if _aborted(raw) else what)


def _commits_each(raw: Any) -> bool:
    """Whether no transaction is open: psycopg begins one with the first statement, unless it is in autocommit mode."""
    if is_of(raw, "asyncpg", "Connection"):
        return not raw.is_in_transaction()
    return str(raw.info.transaction_status.name) == "IDLE"


def _aborted(raw: Any) -> bool:
    """Whether an error of the server's left the caller's transaction open: nothing but its rollback is possible."""
    if is_of(raw, "asyncpg", "Connection"):
        return not raw.is_closed() and bool(raw.is_in_transaction())
    return str(raw.info.transaction_status.name) == "INERROR"
