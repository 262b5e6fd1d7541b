"""Where actions are kept. `open_storage` chooses the backend by URL."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.storage.protocol import Storage
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver


def open_storage(url: str) -> Storage:
    """The storage of a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite+apsw:///...`, `postgresql://...`.

    Of a path, a third slash begins one relative to the working directory, a fourth an absolute one. A Postgres URL is
    libpq's, with two parameters of ours: `schema`, the Postgres schema of the tables (search_path decides without), and
    `prepare=off`, for a pooler that knows no prepared statements. Raises `ConfigurationError`. Nothing is opened yet.
    """
    scheme = urlsplit(url).scheme
    make = _BACKENDS.get(scheme)
    if make is None:
        raise ConfigurationError(
            f"url: {scheme or 'no scheme'} is not known; use sqlite:///path, sqlite+apsw:///path or postgresql://host/name"
        )
    return make(url)


def _sqlite(url: str) -> Storage:
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or ":memory:" in path or parts.query:
        raise ConfigurationError(f"url: {parts.scheme}:///path names a file; an absolute path takes a fourth slash")
    return SqliteStorage(Path(path), StdlibDriver() if parts.scheme == "sqlite" else ApswDriver())


def _postgres(url: str) -> Storage:
    try:
        from edgeoutbox.storage.postgres.backend import PostgresStorage  # noqa: PLC0415 - its driver is an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise ConfigurationError("url: postgresql needs psycopg 3; pip install 'edgeoutbox[postgres]'") from None
    except ImportError:  # psycopg is there, and libpq is not
        raise ConfigurationError("url: psycopg finds no libpq; pip install 'edgeoutbox[postgres]' brings one") from None
    return PostgresStorage(url)


_BACKENDS: dict[str, Callable[[str], Storage]] = {
    "sqlite": _sqlite,
    "sqlite+apsw": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}
