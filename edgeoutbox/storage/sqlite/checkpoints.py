"""Checkpoints: the write-ahead log is folded into the database by the one thread that writes."""

import os
from pathlib import Path

from edgeoutbox.storage.sqlite.drivers import Driver, has_wal_reset_defect, storage_error
from edgeoutbox.storage.sqlite.spelling import Connection

CHECKPOINT_AT = 16 * 1024 * 1024
"""The size in bytes of the write-ahead log from which on it is folded into the database."""

CUT_AT = 2
"""How many times as large a log that is written over may become before it is cut."""


class Checkpoints:
    """The checkpoints of one database file; they need a connection that does not wait for locks.

    Afterwards the log is written over from its beginning, and keeps its size: that it grows again would cost more than
    what is written to it. So it is due when it has grown past what it was. But it is the next writer who starts it
    over, and before SQLite 3.51.3 a checkpoint of somebody else can miss that: there the log is cut each time.
    """

    def __init__(self, path: Path, driver: Driver) -> None:
        self._log = f"{path}-wal"
        self._size = 0
        self._at = CHECKPOINT_AT
        self._cut_at = 0 if has_wal_reset_defect(driver.version()) else CUT_AT * CHECKPOINT_AT

    def due(self) -> bool:
        """Whether the log has grown far enough."""
        try:
            self._size = os.stat(self._log).st_size  # noqa: PTH116 - once a batch; Path.stat takes twice as long
        except OSError:
            return False
        return self._size >= self._at

    def run(self, connection: Connection) -> None:
        """Fold the log into the database, or let it grow further beside a reader that needs it."""
        # In the only thread that writes, never PASSIVE beside it; and never waiting for a long reader.
        cut = self._size >= self._cut_at
        try:
            [(busy, *_)] = connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if cut else 'RESTART'})")
        except Exception as error:
            if storage_error(error) is None:
                raise
            busy = 1
        if busy:
            self._at = self._size + CHECKPOINT_AT
        else:
            self._at = CHECKPOINT_AT if cut else self._size + 1
