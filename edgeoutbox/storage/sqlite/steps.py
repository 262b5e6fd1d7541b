"""State changes as statements without a driver: a generator yields SQL and is sent the rows.

The same steps run in the writer thread, on a connection of the caller's own (sync or async) and in a test.
"""

from collections.abc import Generator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]
Statement: TypeAlias = tuple[str, Sequence[Any]]
Steps: TypeAlias = Generator[Statement, list[Row], T]

NOW = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
"""The database's clock in milliseconds, constant within a statement; `unixepoch('subsec')` needs SQLite 3.42."""


class Connection(Protocol):
    """What the steps need of an open connection."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement to its end and return its rows."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def close(self) -> None:
        """Close the connection."""


def run(connection: Connection, steps: Steps[T]) -> T:
    """Take every step on the connection and return what the steps return."""
    rows: list[Row] | None = None
    try:
        while True:
            sql, parameters = next(steps) if rows is None else steps.send(rows)
            rows = connection.execute(sql, parameters)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def fields(*names: str) -> str:
    """A parameter that is a JSON array of arrays, as rows of these columns: one statement for many operations."""
    columns = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(names))
    return f"(SELECT {columns} FROM json_each(?))"
