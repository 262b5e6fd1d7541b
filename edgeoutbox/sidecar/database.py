"""The database of a configuration: its URL, and a look at it that changes nothing.

A file is looked at through the same copy of SQLite that the outbox will open it with, and never both at once.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import quote, unquote, urlsplit

import apsw

from edgeoutbox.errors import ConfigurationError, DatabaseUnavailable, NoSchema
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.sqlite.drivers import storage_error
from edgeoutbox.storage.sqlite.schema import require_readable

BUSY_TIMEOUT = 5000
"""Milliseconds to wait for a lock."""

_CREATE = "create it with: edgeoutbox init"


def absolute_url(given: str, folder: Path) -> str:
    """A database's URL with its path made absolute. A plain path means `sqlite+apsw:///`."""
    if "://" not in given:
        given = f"sqlite+apsw:///{quote(given)}"
    open_storage(given)  # its rules on URLs hold here too
    parts = urlsplit(given)
    path = folder / unquote(parts.path).removeprefix("/")
    return f"{parts.scheme}:///{quote(str(path))}"


def path_of(url: str) -> Path:
    """The file of a database's absolute URL."""
    return Path(unquote(urlsplit(url).path).removeprefix("/"))


def driver_of(url: str) -> str:
    """The driver of a database's URL: `apsw`, or `sqlite3` for the standard library's."""
    return "apsw" if urlsplit(url).scheme == "sqlite+apsw" else "sqlite3"


def require_database(url: str) -> None:
    """Refuse a database that is not there or has no schema, and create nothing.

    Raises `DatabaseUnavailable`, `NoSchema` or `SchemaTooNew`.
    """
    path = path_of(url)
    if not path.is_file():
        raise DatabaseUnavailable(f"there is no database {path}; {_CREATE}, or name another with --database")
    with Look(url) as look:
        version, readable_from = look.schema()
    require_readable(version, readable_from)


class _Rows(Protocol):
    """A connection of either copy, as far as both are the same."""

    def execute(self, sql: str, /) -> Any: ...
    def close(self) -> None: ...


class Look:
    """A read-only connection. Raises `StorageError`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: _Rows | None = None

    def __enter__(self) -> Self:
        location = f"file:{quote(str(path_of(self._url)))}?mode=ro"
        try:
            if driver_of(self._url) == "apsw":
                flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
                self._connection = apsw.Connection(location, flags=flags)
            else:
                self._connection = sqlite3.connect(location, uri=True, isolation_level=None)
            self.rows(f"PRAGMA busy_timeout = {BUSY_TIMEOUT}")
        except (apsw.Error, sqlite3.Error) as error:
            raise storage_error(error) or error from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """The rows of one query."""
        if self._connection is None:
            raise ConfigurationError("open the look with `with` first")
        try:
            return list(self._connection.execute(sql).fetchall())
        except (apsw.Error, sqlite3.Error) as error:
            raise storage_error(error) or error from error

    def schema(self) -> tuple[int, int]:
        """The version of the schema and the earliest build that may open it. Raises `NoSchema`."""
        if self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'agent_action_schema'"):
            for version, readable_from in self.rows("SELECT version, readable_from FROM agent_action_schema"):
                return int(version), int(readable_from)
        path = path_of(self._url)
        raise NoSchema(
            f"{path} has no edgeoutbox tables; add them with: edgeoutbox schema | sqlite3 {path.name}, "
            "or let edgeoutbox run do it"
        )
