"""A look at a Postgres database that changes nothing. Needs the driver, an extra."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from edgeoutbox.errors import ConfigurationError, NoSchema
from edgeoutbox.storage.postgres.address import address_of
from edgeoutbox.storage.postgres.conditions import sql_of
from edgeoutbox.storage.postgres.errors import storage_error
from edgeoutbox.storage.postgres.facts import FACTS
from edgeoutbox.storage.postgres.schema import require_server
from edgeoutbox.storage.postgres.sessions import CONNECT_WITHIN
from edgeoutbox.storage.postgres.spelling import spell
from edgeoutbox.storage.statements.steps import Row, Statement, Steps, take
from edgeoutbox.variants import Condition

T = TypeVar("T")


class PostgresLook:
    """A connection that only reads. Raises `StorageError`."""

    def __init__(self, url: str) -> None:
        self._address = address_of(url)
        self._schema = self._address.schema
        self._raw: psycopg.Connection[tuple[Any, ...]] | None = None

    def __enter__(self) -> Self:
        given = conninfo_to_dict(self._address.conninfo)
        wait = given.get("connect_timeout", CONNECT_WITHIN)
        try:
            self._raw = psycopg.connect(
                make_conninfo(self._address.conninfo, connect_timeout=wait), autocommit=True, prepare_threshold=None
            )
        except psycopg.Error as error:  # its text may hold the address
            raise storage_error(error) or error from None
        try:
            require_server(self._raw.info)
            if self._schema is None:
                [(self._schema,)] = self.rows("SELECT CAST(current_schema() AS text)")
        except BaseException:
            self._raw.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._raw is not None:
            self._raw.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """The rows of one query, in the words of shared statements."""
        return self.taken(_query(sql))

    def taken(self, steps: Steps[T]) -> T:
        """What these steps, which must only read, come to."""
        raw = self._raw
        if raw is None:
            raise ConfigurationError("open the look with `with` first")

        def execute(statement: Statement) -> list[Row]:
            return raw.execute(spell(statement[0], self._schema).encode(), statement[1]).fetchall()

        try:
            return take(steps, execute)
        except psycopg.Error as error:
            raise storage_error(error) or error from None

    def schema(self) -> tuple[int, int]:
        """The version of the schema and the earliest build that may open it. Raises `NoSchema`."""
        for _, _, version, readable_from in self.rows(FACTS):
            return int(version), int(readable_from)
        raise NoSchema("the database has no edgeoutbox schema version; run 'edgeoutbox migrate'")

    def condition(self, condition: Condition) -> str:
        """A condition of rows as SQL."""
        return sql_of(condition)

    @property
    def version(self) -> str:
        """The server's own."""
        [(version,)] = self.rows("SHOW server_version")
        return str(version)

    @property
    def standby(self) -> bool:
        """Whether the server takes no writes, as it follows another."""
        [(standby,)] = self.rows("SELECT pg_is_in_recovery()")
        return bool(standby)


def _query(sql: str) -> Steps[list[Row]]:
    return (yield sql, ())
