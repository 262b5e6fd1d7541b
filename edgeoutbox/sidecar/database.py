"""The database of a configuration: its URL, and a look at it that changes nothing.

A file is looked at through the same copy of SQLite that the outbox will open it with, and never both at once.
"""

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote, unquote, urlsplit

import apsw

from edgeoutbox.errors import ConfigurationError, DatabaseUnavailable, NoSchema
from edgeoutbox.storage import open_storage, scheme_of
from edgeoutbox.storage.places import place_of
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.drivers import DriverConnection, storage_error
from edgeoutbox.storage.sqlite.schema import require_readable
from edgeoutbox.storage.sqlite.spelling import run
from edgeoutbox.storage.statements.steps import Row, Steps
from edgeoutbox.variants import Condition

if TYPE_CHECKING:
    from edgeoutbox.sidecar.postgres import PostgresLook

T = TypeVar("T")

BUSY_TIMEOUT = 5000
"""Milliseconds to wait for a lock."""

_URLS = (
    "url: write sqlite:///app.db or sqlite+apsw:///app.db, where an absolute path takes a fourth slash, or "
    "postgresql://user@host/name?schema=name"
)
_KEYWORDS = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|options|ssl\w*)\s*=")
_CREATE = "create it with: edgeoutbox init"


def absolute_url(given: str, folder: Path) -> str:
    """A database's URL with its path made absolute. A plain path means `sqlite+apsw:///`.

    Raises `ConfigurationError`.
    """
    if _KEYWORDS.match(given):  # it may hold a password: it must not become the name of a file
        raise ConfigurationError("database: libpq's keywords are not known here; write postgresql://user@host/name")
    if "://" not in given:
        given = f"sqlite+apsw:///{quote(given)}"
    if not is_file(given):
        open_storage(given)
        return given
    try:
        open_storage(given)  # its rules on URLs hold here too
    except ConfigurationError:
        raise ConfigurationError(_URLS) from None
    parts = urlsplit(given)
    path = folder / unquote(parts.path).removeprefix("/")
    return f"{parts.scheme}:///{quote(str(path))}"


def is_file(url: str) -> bool:
    """Whether the URL is of a database in a file; Postgres is reached over a connection."""
    return scheme_of(url) not in {"postgresql", "postgres"}


def shown(url: str) -> str:
    """The database as it may be printed: a file's path, or a URL without its password."""
    return str(path_of(url)) if is_file(url) else open_storage(url).url


def holds_password(url: str) -> bool:
    """Whether the URL has a secret in it."""
    if is_file(url):
        return False
    from edgeoutbox.storage.postgres.address import address_of  # noqa: PLC0415 - its driver is an extra

    return address_of(url).holds_password


def path_of(url: str) -> Path:
    """The file of a database's absolute URL."""
    return Path(unquote(urlsplit(url).path).removeprefix("/"))


def driver_of(url: str) -> str:
    """The driver of a database's URL: `apsw`, `sqlite3` for the standard library's, or `psycopg`."""
    if not is_file(url):
        return "psycopg"
    return "apsw" if urlsplit(url).scheme == "sqlite+apsw" else "sqlite3"


def refuse_folder(url: str) -> None:
    """Refuse a folder in the place of a database. Raises `DatabaseUnavailable`."""
    path = path_of(url)
    if is_file(url) and path.is_dir():
        raise DatabaseUnavailable(f"{path} is a folder; name a file in it with --database")


def require_database(url: str) -> None:
    """Refuse a database that is not there or has no schema, and create nothing.

    Raises `DatabaseUnavailable`, `NoSchema` or `SchemaTooNew`.
    """
    refuse_folder(url)
    path = path_of(url)
    if not path.is_file():
        raise DatabaseUnavailable(f"there is no database {path}; {_CREATE}, or name another with --database")
    with Look(url) as look:
        version, readable_from = look.schema()
    require_readable(version, readable_from)


async def require_there(url: str) -> None:
    """The same for a database of either kind."""
    if is_file(url):
        require_database(url)
        return
    async with place_of(url).opened():
        pass


class Look:
    """A read-only connection. Raises `StorageError`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: DriverConnection | None = None

    def __enter__(self) -> Self:
        try:
            self._connection = self._open("ro", BUSY_TIMEOUT)
        except (apsw.Error, sqlite3.Error) as error:
            raise self._error(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """The rows of one query."""
        return self.taken(_query(sql))

    def taken(self, steps: Steps[T]) -> T:
        """What these steps, which must only read, come to."""
        if self._connection is None:
            raise ConfigurationError("open the look with `with` first")
        try:
            return run(self._connection, steps)
        except (apsw.Error, sqlite3.Error) as error:
            raise self._error(error) from error

    def try_write_lock(self, milliseconds: int) -> None:
        """Take the write lock and give it back. Raises `DatabaseBusy` when somebody keeps it for so long."""
        connection = None
        try:
            # Beside ours: it is not the last to close, so it makes no checkpoint and the file stays as it is.
            connection = self._open("rw", milliseconds)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except (apsw.Error, sqlite3.Error) as error:
            raise self._error(error) from error
        finally:
            if connection is not None:
                connection.close()

    def _open(self, mode: Literal["ro", "rw"], busy_timeout: int) -> DriverConnection:
        location = f"file:{quote(str(path_of(self._url)))}?mode={mode}"
        raw: apsw.Connection | sqlite3.Connection
        if driver_of(self._url) == "apsw":
            writes = apsw.SQLITE_OPEN_READONLY if mode == "ro" else apsw.SQLITE_OPEN_READWRITE
            raw = apsw.Connection(location, flags=writes | apsw.SQLITE_OPEN_URI)
        else:
            raw = sqlite3.connect(location, uri=True, isolation_level=None)
        connection = DriverConnection(raw)
        connection.execute(f"PRAGMA busy_timeout = {busy_timeout}")
        return connection

    def _error(self, error: apsw.Error | sqlite3.Error) -> Exception:
        code = int(getattr(error, "result" if isinstance(error, apsw.Error) else "sqlite_errorcode", 0))
        if code & 0xFF == apsw.SQLITE_NOTADB:
            name = path_of(self._url).name
            return DatabaseUnavailable(f"{name} is not an SQLite database; name another with --database")
        return storage_error(error) or error

    def condition(self, condition: Condition) -> str:
        """A condition of rows as SQL."""
        return sql_of(condition)

    def schema(self) -> tuple[int, int]:
        """The version of the schema and the earliest build that may open it. Raises `NoSchema`."""
        if self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'agent_action_schema'"):
            for version, readable_from in self.rows("SELECT version, readable_from FROM agent_action_schema"):
                return int(version), int(readable_from)
        path = path_of(self._url)
        raise NoSchema(
            f"{path} has no edgeoutbox tables; add them with: edgeoutbox migrate --database {path}, "
            "or let edgeoutbox run do it"
        )


def look_at(url: str) -> "Look | PostgresLook":
    """A look at a database of either kind."""
    if is_file(url):
        return Look(url)
    from edgeoutbox.sidecar.postgres import PostgresLook  # noqa: PLC0415 - its driver is an extra

    return PostgresLook(url)


def _query(sql: str) -> Steps[list[Row]]:
    return (yield sql, ())
