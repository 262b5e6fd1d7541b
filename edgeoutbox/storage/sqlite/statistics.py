"""Statistics: what ANALYZE notes about our tables is forgotten.

Our statements need none: they name their indexes, or go by id. But a table that was noted as nearly empty is walked
from end to end, for each action of a batch, when it has long grown: beside 100,000 ended actions, 64 settlements then
take seconds.
"""

from edgeoutbox.storage.sqlite.spelling import Connection

NOTED = "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"

FORGET = "DELETE FROM sqlite_stat1 WHERE tbl LIKE 'agent\\_action%' ESCAPE '\\' RETURNING tbl"

# It reads again what is noted, and analyzes nothing.
READ_AGAIN = "ANALYZE sqlite_master"


class Statistics:
    """What one connection has read of our tables. It reads that with the schema, so we look when that has changed."""

    def __init__(self) -> None:
        self._schema: int | None = None

    def forget(self, connection: Connection) -> None:
        """Forget them, in the open transaction."""
        [(schema,)] = connection.execute("PRAGMA schema_version")
        if schema == self._schema:
            return
        forgotten = []
        if connection.execute(NOTED):
            forgotten = connection.execute(FORGET)
            connection.execute(READ_AGAIN)
        # What was forgotten can still be rolled back: then it is seen again.
        self._schema = None if forgotten else schema
