"""What may happen to a call of the operating system, and what SQLite is told then."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import apsw

Call: TypeAlias = Literal["open", "read", "write", "truncate", "sync", "size", "delete", "access", "lock"]

NEEDS_ROOM: frozenset[Call] = frozenset({"open", "write", "truncate", "sync"})
"""What a full disk cannot do. Of a write SQLite learns why; to the others it is an error like any."""

What: TypeAlias = Literal["cut before", "cut after", "no space", "i/o error", "short read", "slow"]

CUT_BEFORE: What = "cut before"
CUT_AFTER: What = "cut after"
NO_SPACE: What = "no space"
IO_ERROR: What = "i/o error"
SHORT_READ: What = "short read"
SLOW: What = "slow"

ERRORS: dict[str, int] = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "size": apsw.SQLITE_IOERR_FSTAT,
    "delete": apsw.SQLITE_IOERR_DELETE,
    "access": apsw.SQLITE_IOERR_ACCESS,
    "lock": apsw.SQLITE_IOERR_LOCK,
}
"""What SQLite is told when a call fails, as its own layer for the operating system would say it."""


@dataclass
class Fault:
    """What happens to the `at`-th of the calls that fit, and to the `times - 1` that follow it.

    Calls fit by their kind (`None`: every kind) and by the end of the file's name. `seconds` is how long a slow one
    takes. A "short read" finds the file ending in its middle; "no space" comes to calls that need room. A cut "before"
    lets the call fail; one "after" lets it be made and answered, and the next one fail.
    """

    what: What
    call: Call | None = None
    at: int = 1
    times: int = 1
    file: str = ""
    seconds: float = 1.0
    seen: int = 0

    def strikes(self, call: str, path: str) -> bool:
        """Whether this call is one of those; to be asked once for each call."""
        if (self.call is not None and self.call != call) or not path.endswith(self.file):
            return False
        if (self.what == SHORT_READ and call != "read") or (self.what == NO_SPACE and call not in NEEDS_ROOM):
            return False
        self.seen += 1
        return self.at <= self.seen < self.at + self.times


def failure(call: str, *, full: bool = False) -> Exception:
    """The exception that tells SQLite that a call failed, maybe as the disk was `full`."""
    return apsw.exception_for(apsw.SQLITE_FULL if full and call == "write" else ERRORS[call])
