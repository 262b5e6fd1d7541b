"""A database with nothing but its schema in it, worked on by plain SQL: the same calls whichever database it is."""

import sqlite3
from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import apsw
import pytest

from edgeoutbox.states import ENDED, STOP_REASONS, State
from edgeoutbox.storage.sqlite.spelling import NOW

SCHEMA = (Path(__file__).parents[2] / "schema.sql").read_text(encoding="utf-8")

FAR = 9_000_000_000_000
"""A lease that does not end, in milliseconds."""

LONG_AGO = 1
"""A lease or an expiry that has passed."""

RECLAIM = "UPDATE agent_action SET epoch = epoch + 1, attempt = attempt + 1, lease_owner = 'other' WHERE id = ?"
"""A claim of what executes need not name its state, which stays."""

TABLES = ("agent_action", "agent_action_attempt", "agent_action_kind", "agent_action_ended")


class Database:
    """A connection in autocommit mode: call it with SQL, `?` for each parameter, and parameters."""

    dialect: str
    refusals: tuple[type[Exception], ...]
    """What the driver raises when the database refuses a statement."""

    def __init__(self) -> None:
        self._keys = 0

    @abstractmethod
    def script(self, text: str) -> None:
        """Run a script of many statements."""

    @abstractmethod
    def __call__(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""

    @abstractmethod
    def columns(self, table: str) -> list[str]:
        """The names of the table's columns."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def words(self, because: str) -> list[str]:
        """How this database may say it: ours are the same everywhere, its own are not."""
        return [because]

    def one(self, sql: str, *parameters: Any) -> Any:
        """The one value of the one row."""
        [(value,)] = self(sql, *parameters)
        return value

    def now(self) -> int:
        """The database's clock, in milliseconds."""
        return int(self.one(f"SELECT {NOW}"))

    def everything(self) -> list[list[tuple[Any, ...]]]:
        """Every row of every table that a caller could change."""
        return [self(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES]

    def refuses(self, because: str, sql: str, *parameters: Any) -> None:
        """The database refuses the statement, says why in these words, and nothing has changed."""
        before = self.everything()
        with pytest.raises(self.refusals) as refusal:
            self(sql, *parameters)
        assert any(words in str(refusal.value) for words in self.words(because)), str(refusal.value)
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


class SqliteDatabase(Database):
    """A new or an older file, or memory, through either copy of SQLite."""

    dialect = "sqlite"
    refusals = (sqlite3.IntegrityError, apsw.ConstraintError)

    def __init__(self, raw: sqlite3.Connection | apsw.Connection) -> None:
        super().__init__()
        self.raw = raw
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

    def columns(self, table: str) -> list[str]:
        """The names of the table's columns."""
        return [row[1] for row in self(f"PRAGMA table_info({table})")]

    def close(self) -> None:
        """Close the connection."""
        self.raw.close()


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
