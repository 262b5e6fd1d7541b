"""Checkpoints: the write-ahead log is folded into the database by the one thread that writes."""

import os
from pathlib import Path

from edgeoutbox.storage.sqlite.drivers import storage_error
from edgeoutbox.storage.sqlite.spelling import Connection

CHECKPOINT_AT = 8 * 1024 * 1024
"""The size in bytes of the write-ahead log past which it is folded into the database."""


class Checkpoints:
    """The checkpoints of one database file; they need a connection that does not wait for locks."""

    def __init__(self, path: Path) -> None:
        self._log = f"{path}-wal"
        self._size = 0
        self._at = CHECKPOINT_AT

    def due(self) -> bool:
        """Whether the log has grown far enough."""
        try:
            self._size = os.stat(self._log).st_size  # noqa: PTH116 - once a batch; Path.stat takes twice as long
        except OSError:
            return False
        return self._size >= self._at

    def run(self, connection: Connection) -> None:
        """Fold the log into the database, or let it grow further beside a reader that needs it."""
        # TRUNCATE, in the only thread that writes, never PASSIVE beside it; and never waiting for a long reader.
        try:
            [(busy, *_)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except Exception as error:
            if storage_error(error) is None:
                raise
            busy = 1
        self._at = self._size + CHECKPOINT_AT if busy else CHECKPOINT_AT
