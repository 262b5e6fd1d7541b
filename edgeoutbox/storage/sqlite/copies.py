"""One process opens one file through one copy of SQLite.

POSIX locks belong to the process: when one copy closes any descriptor of a file, the locks that the other copy holds
on it are gone, silently. So before a file is opened, and for every connection that a caller hands in, we look at
which copy has it open. Nothing here opens the file: even that would drop locks.
"""

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias, cast

from edgeoutbox.errors import MixedSqliteCopies, StorageError, WrongDatabase
from edgeoutbox.storage.sqlite.drivers import Copy

_LIBRARY = {"stdlib": "the standard library's sqlite3 (also aiosqlite and SQLAlchemy)", "apsw": "apsw"}
_URL = {"stdlib": "sqlite://", "apsw": "sqlite+apsw://"}


Opened: TypeAlias = tuple[tuple[int, int] | None, Copy]
"""A file, by what it is and not by its name, and the copy that has it open."""

BUSY_FOR = 0.25
"""Seconds to wait for an apsw connection that another thread is using, to learn which file it has open."""

_opened: Counter[Opened] = Counter()
"""What this process's outboxes have open. Locks belong to the process, so this is a fact of the process too."""


def opened(path: Path, copy: Copy) -> Opened:
    """Note that an outbox opened the file, and return what `closed` is to be told: the name may be gone by then."""
    noted = _identity_of(path), copy
    _opened[noted] += 1
    return noted


def closed(noted: Opened) -> None:
    """Note that an outbox closed the file."""
    _opened[noted] -= 1


def require_same_copy(path: Path, copy: Copy) -> None:
    """Refuse to open a file that this process has open through the other copy. Raises `MixedSqliteCopies`."""
    identity = _identity_of(path)
    if identity is None:
        return
    by_apsw = _open_by_apsw(identity)
    if copy == "stdlib" and by_apsw:
        raise _mixed("apsw", copy)
    if copy == "apsw" and (_opened[identity, "stdlib"] > 0 or (not by_apsw and _open_at_all(identity))):
        raise _mixed("stdlib", copy)


def require_same_copy_as_outboxes(path: Path, copy: Copy) -> None:
    """Refuse a caller's connection when an outbox of this process has the file open through the other copy."""
    other: Copy = "apsw" if copy == "stdlib" else "stdlib"
    if _opened[_identity_of(path), other] > 0:
        raise _mixed(other, copy)


def require_connection(path: Path, copy: Copy, connection_copy: Copy, connection_file: str) -> None:
    """Refuse a caller's connection of the other copy, or to another file."""
    if not connection_file or not _same_file(path, connection_file):
        raise WrongDatabase(
            f"the connection has another database open than the outbox ({path.name}); "
            "the action would not commit with your change"
        )
    if connection_copy != copy:
        raise _mixed(connection_copy, copy)


def _same_file(path: Path, other: str) -> bool:
    try:
        return os.path.samefile(path, other)  # noqa: PTH121 - stat only
    except OSError as error:
        raise StorageError("the database file of the connection is gone") from error


def _mixed(there: Copy, wanted: Copy) -> MixedSqliteCopies:
    return MixedSqliteCopies(
        f"this process has the database open through {_LIBRARY[there]}, and the outbox would open it through "
        f"{_LIBRARY[wanted]}: two copies of SQLite in one process silently lose each other's file locks. "
        f"Open the outbox with {_URL[there]} instead, or run it in a process of its own."
    )


def _open_at_all(identity: tuple[int, int]) -> bool:
    return any(_identity_of(descriptor) == identity for descriptor in _descriptors())


def _descriptors() -> list[int]:
    for listing in ("/proc/self/fd", "/dev/fd"):
        try:
            return [int(name) for name in os.listdir(listing)]  # noqa: PTH208 - names are numbers, not paths
        except OSError:
            continue
    return list(range(4096))


def _identity_of(file_or_descriptor: Path | str | int) -> tuple[int, int] | None:
    try:
        file = os.stat(file_or_descriptor)  # noqa: PTH116 - descriptors too
    except (OSError, ValueError):
        return None
    return file.st_dev, file.st_ino


def _open_by_apsw(identity: tuple[int, int]) -> bool:
    apsw: Any = sys.modules.get("apsw")
    if apsw is None:
        return False
    if _opened[identity, "apsw"] > 0:
        return True
    return any(_identity_of(name) == identity for name in map(_file_of_apsw, apsw.connections()) if name)


def _file_of_apsw(connection: Any) -> str | None:
    """The file of an apsw connection; one that is busy in another thread does not say until it is done."""
    apsw: Any = sys.modules["apsw"]
    deadline = time.monotonic() + BUSY_FOR
    while True:
        try:
            return cast("str | None", connection.filename)
        except apsw.ConnectionClosedError:
            return None
        except apsw.ThreadingViolationError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
