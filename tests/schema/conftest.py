"""A database with nothing but `schema.sql` in it, worked on by plain SQL through either copy of SQLite."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from edgeoutbox.states import ENDED, STOP_REASONS, State
from edgeoutbox.storage.sqlite.steps import NOW

SCHEMA = (Path(__file__).parents[2] / "schema.sql").read_text(encoding="utf-8")

FAR = 9_000_000_000_000
"""A lease that does not end, in milliseconds."""

LONG_AGO = 1
"""A lease or an expiry that has passed."""

TABLES = ("agent_action", "agent_action_attempt", "agent_action_kind", "agent_action_ended")


class Database:
    """A connection in autocommit mode: call it with SQL and parameters."""

    def __init__(self, raw: sqlite3.Connection | apsw.Connection) -> None:
        self.raw = raw
        self._keys = 0
        self.script(SCHEMA)

    def script(self, text: str) -> None:
        """Run a script of many statements."""
        if isinstance(self.raw, apsw.Connection):
            self.raw.execute(text)
        else:
            self.raw.executescript(text)

    def __call__(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return [tuple(row) for row in self.raw.execute(sql, parameters).fetchall()]

    def one(self, sql: str, *parameters: Any) -> Any:
        """The one value of the one row."""
        [(value,)] = self(sql, *parameters)
        return value

    def everything(self) -> list[list[tuple[Any, ...]]]:
        """Every row of every table that a caller could change."""
        return [self(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES]

    def refuses(self, because: str, sql: str, *parameters: Any) -> None:
        """The database refuses the statement, says why in these words, and nothing has changed."""
        before = self.everything()
        with pytest.raises((sqlite3.IntegrityError, apsw.ConstraintError)) as refusal:
            self(sql, *parameters)
        assert because in str(refusal.value)
        assert self.everything() == before

    def insert(self, lane: str | None = None, *, kind: str = "email", **columns: Any) -> int:
        """Insert an action as any program would, and return its id."""
        self._keys += 1
        values = {"idempotency_key": f"key:{self._keys}", "payload": "{}", **columns, "kind": kind, "lane_key": lane}
        marks = ", ".join("?" * len(values))
        return int(
            self.one(f"INSERT INTO agent_action ({', '.join(values)}) VALUES ({marks}) RETURNING id", *values.values())
        )

    def claim(self, action: int, lease_expires_at: int = FAR) -> None:
        """Take an action as an executor does."""
        self(
            "UPDATE agent_action SET state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, "
            "lease_owner = 'me', lease_expires_at = ? WHERE id = ?",
            lease_expires_at,
            action,
        )

    def fence(self, action: int) -> None:
        """Mark that a write may exist."""
        self("UPDATE agent_action SET write_started_at = 5 WHERE id = ?", action)

    def end(self, action: int, state: State = State.DONE) -> None:
        """End an action that executes, or cancel one that waits."""
        self(f"UPDATE agent_action SET {step_to(state)} WHERE id = ?", action)

    def bring_to(self, state: State) -> int:
        """An action in this state; an executing one has lost its lease."""
        action = self.insert(state="PROPOSED" if state is State.PROPOSED else "ADMITTED")
        if state is State.EXECUTING or (state in ENDED and state is not State.CANCELLED):
            self.claim(action, LONG_AGO)
        if state in ENDED:
            self.end(action, state)
        return action

    def state(self, action: int) -> str:
        """The action's state."""
        return str(self.one("SELECT state FROM agent_action WHERE id = ?", action))

    def heads(self, lane: str) -> list[int]:
        """The ids marked as head in a lane."""
        return [
            row[0] for row in self("SELECT id FROM agent_action WHERE lane_key = ? AND is_head = 1 ORDER BY id", lane)
        ]


def step_to(state: State) -> str:
    """The assignments of a step into a state, with everything else as that state needs it."""
    if state is State.EXECUTING:
        return (
            "state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, "
            f"lease_owner = 'me', lease_expires_at = {FAR}, stop_reason = NULL, ended_at = NULL"
        )
    waiting = "lease_owner = NULL, lease_expires_at = NULL, write_started_at = NULL"
    if state in ENDED:
        reason = min(STOP_REASONS[state])
        return (
            f"state = '{state}', stop_reason = '{reason}', payload = NULL, ended_at = {NOW}, is_head = 0, "
            "lease_owner = NULL, lease_expires_at = NULL"
        )
    return f"state = '{state}', stop_reason = NULL, ended_at = NULL, {waiting}"


OpenPlain = Callable[[str], Database]


@pytest.fixture(params=["sqlite3", "apsw"])
def open_plain(request: pytest.FixtureRequest) -> Iterator[OpenPlain]:
    """Opens databases through one library, without edgeoutbox."""
    opened: list[Database] = []

    def opener(path: str) -> Database:
        raw = apsw.Connection(path) if request.param == "apsw" else sqlite3.connect(path, isolation_level=None)
        opened.append(Database(raw))
        return opened[-1]

    yield opener
    for database in opened:
        database.raw.close()


@pytest.fixture
def db(open_plain: OpenPlain) -> Database:
    """A new database in memory."""
    return open_plain(":memory:")
