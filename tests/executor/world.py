"""One database, its movable clock, and whoever works on it: what most tests of the executor start from."""

import sqlite3
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import psycopg
import pytest

from edgeoutbox import Action, ActionRequest, Adapter, AttemptRecord, Executor, Outbox
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver
from edgeoutbox.testing import MovableClock, until

DriverType: TypeAlias = type[StdlibDriver] | type[ApswDriver]
DRIVERS: tuple[DriverType, ...] = (StdlibDriver, ApswDriver)


def sqlite_only(why: str, fixture: str = "world") -> pytest.MarkDecorator:
    """Run a test on both copies of SQLite and not on Postgres, for this reason."""
    assert why
    return pytest.mark.parametrize(fixture, DRIVERS, indirect=True, ids=lambda driver: driver.copy)


DATABASE_ERRORS = (sqlite3.Error, apsw.Error, psycopg.Error)
"""What a connection of our own raises, whichever copy of SQLite it is of."""


@dataclass
class World:
    """Opens outboxes and executors over one file and closes them, last first, at the end of the test."""

    path: Path
    driver: DriverType
    clock: MovableClock = field(default_factory=MovableClock)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    executors: list[Executor] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The database as a program of its own would open it: with the machine's clock."""
        return f"sqlite{'+apsw' if self.driver is ApswDriver else ''}:///{self.path}"

    async def outbox(self, *adapters: Adapter[Any], busy_timeout: int = 5000) -> Outbox:
        """An open outbox; moving the clock wakes its executors."""
        storage = SqliteStorage(self.path, self.driver(), busy_timeout=busy_timeout, on_connect=self.clock.register)
        outbox = await self.stack.enter_async_context(Outbox(storage, adapters))
        self.clock.on_move(outbox.wake)
        return outbox

    async def executor(self, outbox: Outbox, *, grace: float = 1.0, concurrency: int = 64) -> Executor:
        """A running executor of the outbox's adapters."""
        executor = Executor(outbox, grace=grace, concurrency=concurrency, clock=self.clock)
        self.executors.append(executor)
        return await self.stack.enter_async_context(executor)

    async def running(self, *adapters: Adapter[Any], grace: float = 1.0) -> tuple[Outbox, Executor]:
        """An outbox with a running executor of these adapters."""
        outbox = await self.outbox(*adapters)
        return outbox, await self.executor(outbox, grace=grace)

    async def passes(self, seconds: float) -> None:
        """Let time pass while no claim is under way: a claim that takes minutes is a machine that slept."""
        await until(lambda: not any(executor._taking for executor in self.executors))
        self.clock.advance(seconds)

    def connect(self) -> "Foreign":
        """A connection that is not the outbox's: another program's, as far as the database can tell."""
        return Foreign(self.driver().open(str(self.path), 5000, self.clock.register))

    def stores(self, payload: str) -> bool:
        """Whether the database takes any payload that looks like this."""
        del payload
        return True

    def trap(self) -> None:
        """Make a table `traps` of which a trigger lets no row in, and undoes as much as a trigger can."""
        self.sql("CREATE TABLE traps (one INTEGER)")
        self.sql("CREATE TRIGGER sprung AFTER INSERT ON traps BEGIN SELECT RAISE(ROLLBACK, 'sprung'); END")

    def refuses_done(self) -> None:
        """Let a trigger of the application's, `no_done`, refuse every end as DONE."""
        self.sql(
            "CREATE TRIGGER no_done BEFORE UPDATE OF state ON agent_action WHEN NEW.state = 'DONE' "
            "BEGIN SELECT RAISE(ABORT, 'not today'); END"
        )

    async def allows_done(self) -> None:
        """Drop that trigger."""
        self.sql("DROP TRIGGER no_done")

    def taken(self, owner: str, lease: int, which: str = "TRUE") -> None:
        """Let another process hold actions that wait, for so many milliseconds."""
        set_to = "state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = ?, lease_expires_at = ?"
        claim = f"UPDATE agent_action SET {set_to} WHERE {which}"  # noqa: S608 - the tests' own words
        self.sql(claim, owner, self.clock.milliseconds + lease)

    @staticmethod
    def sql_now() -> int:
        """The machine's time in milliseconds, for programs on the machine's clock."""
        return round(time.time() * 1000)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement by another program."""
        foreign = self.connect()
        try:
            return foreign.execute(statement, *parameters)
        finally:
            foreign.close()


@dataclass
class Foreign:
    """Another program's connection."""

    raw: Any

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement."""
        rows: list[tuple[Any, ...]] = self.raw.execute(statement, parameters)
        return rows

    def close(self) -> None:
        """Close the connection; what it had open is rolled back."""
        self.raw.close()


def request(key: str = "a", *, kind: str = "scripted", **fields: Any) -> ActionRequest:
    """A request with as little in it as a request can have."""
    return ActionRequest(kind=kind, idempotency_key=key, **{"payload": {}, **fields})


async def ended(outbox: Outbox, action_id: int) -> Action:
    """The action once it has ended."""
    return await outbox.wait(action_id, timeout=10.0)


async def the(outbox: Outbox, action_id: int) -> Action:
    """The action as it stands, which must be there."""
    action = await outbox.get(action_id)
    assert action is not None
    return action


async def last_attempt(outbox: Outbox, action_id: int) -> AttemptRecord:
    """The latest row of an action's dispatch log."""
    return (await outbox.attempts(action_id))[-1]


def outcome(action: Action) -> tuple[str, str | None]:
    """State and stop reason, to compare both at once."""
    return action.state.value, action.stop_reason.value if action.stop_reason else None
