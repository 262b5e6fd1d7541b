"""Where actions are kept. `open_storage` chooses the backend by URL."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.storage.protocol import Storage
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver

_DRIVERS: dict[str, type[StdlibDriver] | type[ApswDriver]] = {"sqlite": StdlibDriver, "sqlite+apsw": ApswDriver}


def open_storage(url: str) -> Storage:
    """The storage of a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite+apsw:///...`.

    A third slash begins a path relative to the working directory, a fourth an absolute one. Raises
    `ConfigurationError`. Nothing is opened yet.
    """
    parts = urlsplit(url)
    driver = _DRIVERS.get(parts.scheme)
    if driver is None:
        known = " or ".join(_DRIVERS)
        raise ConfigurationError(f"url: {parts.scheme or 'no scheme'} is not known; use {known}:///path")
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or ":memory:" in path or parts.query:
        raise ConfigurationError(f"url: {parts.scheme}:///path names a file; an absolute path takes a fourth slash")
    return SqliteStorage(Path(path), driver())
