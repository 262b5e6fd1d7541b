"""Where a cell has its database: a file of its own, or a schema of its own on a Postgres server."""

from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.testing.crash.matrix import POSTGRES, Cell

if TYPE_CHECKING:
    from edgeoutbox.testing.postgres import PostgresServer


def postgres_cell(cell: Cell, server: "PostgresServer") -> Cell:
    """The cell in a new schema of the server."""
    from edgeoutbox.storage.postgres.schema import schema_sql  # noqa: PLC0415 - an extra
    from edgeoutbox.testing.postgres import as_url  # noqa: PLC0415 - an extra

    return replace(cell, database=as_url(server.fresh_schema(schema_sql())))


def require_server() -> None:
    """Raise `ConfigurationError` where this machine has no Postgres for tests."""
    try:
        from edgeoutbox.testing.postgres import unavailable  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError(f"{POSTGRES}: needs psycopg 3; pip install 'edgeoutbox[postgres]'") from None
    missing = unavailable()
    if missing is not None:
        raise ConfigurationError(f"{POSTGRES}: {missing}")


class Databases:
    """Gives each cell its database; a Postgres server runs from the first cell that needs one until the block ends."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: PostgresServer | None = None

    def of(self, cell: Cell) -> Cell:
        """The cell with a database of its own. Raises what `PostgresServer` raises when there is none."""
        if cell.database != POSTGRES:
            return cell
        if self._server is None:
            from edgeoutbox.testing.postgres import PostgresServer  # noqa: PLC0415 - an extra

            self._server = self._stack.enter_context(PostgresServer())
        return postgres_cell(cell, self._server)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
