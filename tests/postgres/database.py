"""A Postgres schema with nothing but `postgres.sql` in it, worked on by plain SQL like its SQLite sibling."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg.types.string import TextLoader

import edgeoutbox.storage
from edgeoutbox.storage.sqlite.spelling import NOW
from edgeoutbox.testing.postgres import PostgresServer, unavailable
from tests.schema.database import Database

POSTGRES_SCHEMA = (Path(edgeoutbox.storage.__file__).parent / "postgres.sql").read_text(encoding="utf-8")

WORDS = {
    "agent_action.kind": ['null value in column "kind"'],
    "agent_action.idempotency_key": ['null value in column "idempotency_key"'],
    "kind has 1 to 64 lower-case letters": ["kind has 1 to 64"],
    "payload is a JSON object": ["agent_action: payload is a JSON object", "invalid input syntax for type json"],
    "evidence is JSON of at most 4 KiB": ["evidence is JSON of at most 4 KiB", "invalid input syntax for type json"],
    "idempotency_key has 1 to 512 characters": ["idempotency_key has 1 to 512 characters", "cannot contain NUL"],
    "lane_key has 1 to 512 characters": ["lane_key has 1 to 512 characters", "cannot contain NUL"],
    "due_at": ["due_at", "invalid input syntax for type bigint"],
    "expires_at": ["expires_at", "invalid input syntax for type bigint"],
}
"""What Postgres itself, or its driver, says where in SQLite a CHECK does or SQLite itself."""

Connect: TypeAlias = Callable[[], "PostgresDatabase"]
"""Opens one more session in the test's schema."""


class PostgresDatabase(Database):
    """A session in autocommit mode. JSON comes as the text that is stored."""

    dialect = "postgres"
    refusals = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.DatatypeMismatch)

    def __init__(self, conninfo: str) -> None:
        super().__init__()
        self.conninfo = conninfo
        self.raw = psycopg.connect(conninfo, autocommit=True, connect_timeout=10)
        self.raw.adapters.register_loader("json", TextLoader)
        self.raw.execute("SET lock_timeout = '20s'")

    def script(self, text: str) -> None:
        """Run a script of many statements."""
        self.raw.execute(text.encode())

    def __call__(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        text = sql.replace(NOW, "edgeoutbox_now()")
        if parameters:
            text = text.replace("%", "%%").replace("?", "%s")
        cursor = self.raw.execute(text.encode(), parameters or None)
        return cursor.fetchall() if cursor.description is not None else []

    def columns(self, table: str) -> list[str]:
        """The names of the table's columns."""
        return [
            str(row[0])
            for row in self(
                "SELECT attname FROM pg_attribute WHERE attrelid = ?::regclass AND attnum > 0 ORDER BY attnum", table
            )
        ]

    def words(self, because: str) -> list[str]:
        """How Postgres may say it."""
        return WORDS.get(because, [because])

    @property
    def schema(self) -> str:
        """The name of the schema that the session works in."""
        return str(self.one("SELECT current_schema()"))

    @property
    def pid(self) -> int:
        """The server's process of this session."""
        return self.raw.info.backend_pid

    def close(self) -> None:
        """Close the connection."""
        self.raw.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for all tests of this process."""
    why = unavailable()
    if why is not None:
        pytest.skip(why)
    with PostgresServer(fsync=False) as server:
        yield server
