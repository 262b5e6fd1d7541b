"""Where actions are kept. `open_storage` chooses the backend by URL."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.storage.protocol import Storage
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver


def scheme_of(url: str) -> str:
    """What stands before the colon; also of a URL that cannot be read otherwise."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon else ""


def open_storage(url: str) -> Storage:
    """The storage of a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite+apsw:///...`, `postgresql://...`.

    Of a path, a third slash begins one relative to the working directory, a fourth an absolute one. A Postgres URL is
    libpq's, with two parameters of ours: `schema`, the Postgres schema of the tables (search_path decides without), and
    `prepare=on`, for a pooler that knows prepared statements. Raises `ConfigurationError`. Nothing is opened yet.
    """
    scheme = scheme_of(url)
    make = _BACKENDS.get(scheme)
    if make is None:
        raise ConfigurationError(
            f"url: {scheme or 'no scheme'} is not known; use sqlite:///path, sqlite+apsw:///path or postgresql://host/name"
        )
    return make(url)


def _sqlite(url: str) -> Storage:
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may show a part of the URL
        raise ConfigurationError("url: it cannot be read; use sqlite:///path") from None
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
