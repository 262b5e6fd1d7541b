"""A connection between a test and the database."""

from collections.abc import Sequence
from typing import Any

from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.steps import Row


class Passing:
    """Passes everything on."""

    def __init__(self, inner: Connection) -> None:
        self.inner = inner

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement."""
        return self.inner.execute(sql, parameters)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.inner.in_transaction

    def close(self) -> None:
        """Close the connection."""
        self.inner.close()
