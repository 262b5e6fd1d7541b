"""SQLAlchemy's connections: which they are, and how one runs a statement. Its dialect says whose database it is."""

from collections.abc import Sequence
from typing import Any

from edgeoutbox.connections.recognised import is_of
from edgeoutbox.storage.statements.steps import Row


def is_session(connection: object) -> bool:
    """Whether this is a synchronous `Session`."""
    return is_of(connection, "sqlalchemy.orm", "Session")


def is_connection(connection: object) -> bool:
    """Whether this is a synchronous `Connection`."""
    return is_of(connection, "sqlalchemy.engine", "Connection")


def is_asynchronous(connection: object) -> bool:
    """Whether this is an `AsyncConnection` or an `AsyncSession`: each runs functions on its synchronous inner one."""
    return is_of(connection, "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession")


def unscoped(connection: object) -> object:
    """The session of this thread or task where it is a registry of them, as Flask-SQLAlchemy's `db.session` is."""
    scoped = is_of(connection, "sqlalchemy.orm", "scoped_session") or is_of(
        connection, "sqlalchemy.ext.asyncio", "async_scoped_session"
    )
    registry: Any = connection
    return registry() if scoped else connection


def execute(connection: Any, sql: str, parameters: Sequence[Any]) -> list[Row]:
    """Run one statement of the driver's own SQL on a `Connection`."""
    # An option that the caller gave its connection: on Postgres a cursor of the server's, which can only SELECT.
    result = connection.exec_driver_sql(sql, tuple(parameters), execution_options={"stream_results": False})
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []
