"""A disk that loses power, fills up, fails and dawdles, under `sqlite+apsw://`.

    disk = Disk(folder, seed=7)
    storage = SqliteStorage(folder / "app.db", disk.driver())
    disk.plan(Fault(CUT_AFTER, "sync", at=12))   # the power goes when the 12th sync has been made
    ...                                          # every call fails from there on; close what is open
    disk.restore()                               # what a disk may hold after that; open it anew

What is written goes to real files. Beside it the disk knows of each file what is certain to survive (its content at
its last sync) and what was written since, and of its folder which names are certain. At a cut each sector of each write
since then is kept, lost or torn (its beginning is new, its end old); the length of a file follows from what was kept.
A write damages nothing beside itself. The names of files are certain when their folder was synced: by the first sync of
a log or journal that was opened to be created, or by a deletion that asks for it, which is when SQLite does it on POSIX
systems. Until then a new file may be gone, and a deleted one be back. The shared memory of the write-ahead log is
memory: it does not survive.
"""

from edgeoutbox.testing.disk.disk import Disk, DiskConnection, DiskDriver
from edgeoutbox.testing.disk.faults import (
    CUT_AFTER,
    CUT_BEFORE,
    ERRORS,
    IO_ERROR,
    NO_SPACE,
    SHORT_READ,
    SLOW,
    Call,
    Fault,
    What,
)

__all__ = [
    "CUT_AFTER",
    "CUT_BEFORE",
    "ERRORS",
    "IO_ERROR",
    "NO_SPACE",
    "SHORT_READ",
    "SLOW",
    "Call",
    "Disk",
    "DiskConnection",
    "DiskDriver",
    "Fault",
    "What",
]
