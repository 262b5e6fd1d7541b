"""How SQLite spells the shared statements, and how steps run on a connection of ours.

The vocabulary stands in `edgeoutbox.storage.statements.steps`. SQL that an ended hook executes is never spelled.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from edgeoutbox.storage.statements import rows
from edgeoutbox.storage.statements.steps import Row, Steps, take

T = TypeVar("T")

NOW = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
"""The database's clock in milliseconds, constant within a statement; `unixepoch('subsec')` needs SQLite 3.42."""

# What stands in quotes is a value, whatever it says.
_WORDS = re.compile(
    r"'(?:[^']|'')*'|edgeoutbox_now\(\)|AS JSON\)|"
    r"edgeoutbox_text\((?P<column>[\w.]+)\)|edgeoutbox_open\((?P<table>\w+)\)"
)


@lru_cache(maxsize=256)
def spell(sql: str) -> str:
    """A shared statement as SQLite reads it. SQL that has none of our words stays as it is."""
    return _WORDS.sub(_spelled, sql)


def _spelled(found: re.Match[str]) -> str:
    if found[0].startswith("'"):
        return found[0]
    if found[0] == "AS JSON)":
        return "AS TEXT)"
    if found["table"]:
        return f"{found['table']}.stop_reason IS NULL"
    # As bytes: a driver that cannot decode one row's text would give us none.
    return f"CAST({found['column']} AS BLOB)" if found["column"] else NOW


COLUMNS = spell(rows.COLUMNS)
"""Every column of an action, for the statements that are SQLite's own."""


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
    return take(steps, lambda statement: connection.execute(spell(statement[0]), statement[1]))


def fields(*names: str) -> str:
    """A parameter that is a JSON array of arrays, as rows of these columns, and `place`, their index in the array.

    So one statement serves many operations.
    """
    columns = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(names))
    return f"(SELECT key AS place, {columns} FROM json_each(?))"


IN_IDS = "id IN (SELECT value FROM json_each(?))"
"""Of a parameter that is a JSON array of ids: the actions in it."""
