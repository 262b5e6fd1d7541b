"""The caller's own connection, of every library that is known: P1, and that nothing is committed for the caller."""

import asyncio
import logging
import sqlite3
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiosqlite
import apsw
import pytest
import sqlalchemy
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from edgeoutbox import (
    Adapter,
    InvalidRequest,
    KeyOfAnotherKind,
    LaneBusy,
    NotPossible,
    Outbox,
    StorageError,
    UnsupportedConnection,
    enqueue_sync,
    one,
    prepare,
    prepare_async,
)
from edgeoutbox.errors import DatabaseBusy, MixedSqliteCopies, WrongDatabase
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import PostgresFacts
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver
from edgeoutbox.testing import ScriptedAdapter
from edgeoutbox.testing.conformance.story import a_request, claim

Run = Callable[[str], Awaitable[None]]


@dataclass
class Caller:
    """A connection of the application's, and how it begins, commits, rolls back and runs a statement."""

    connection: Any
    begin: Callable[[], Awaitable[None]]
    execute: Run
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


async def _of_itself() -> None:
    """The library begins a transaction with the first change."""


def _later(function: Callable[..., Any], *before: Any) -> Callable[..., Awaitable[None]]:
    async def call(*given: Any) -> None:
        function(*before, *given)

    return call


@asynccontextmanager
async def of_sqlite3(path: Path) -> AsyncIterator[Caller]:
    raw = sqlite3.connect(path)
    raw.row_factory = sqlite3.Row
    raw.text_factory = bytes
    yield Caller(raw, _of_itself, _later(raw.execute), _later(raw.commit), _later(raw.rollback))
    raw.close()


@asynccontextmanager
async def of_sqlite3_autocommit(path: Path) -> AsyncIterator[Caller]:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }
    yield Caller(
        raw,
        _later(raw.execute, "BEGIN IMMEDIATE"),
        _later(raw.execute),
        _later(raw.execute, "COMMIT"),
        _later(raw.execute, "ROLLBACK"),
    )
    raw.close()


@asynccontextmanager
async def of_apsw(path: Path) -> AsyncIterator[Caller]:
    raw = apsw.Connection(str(path))
    raw.row_trace = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.get_description(), row, strict=True)
    }
    yield Caller(
        raw,
        _later(raw.execute, "BEGIN IMMEDIATE"),
        _later(raw.execute),
        _later(raw.execute, "COMMIT"),
        _later(raw.execute, "ROLLBACK"),
    )
    raw.close()


@asynccontextmanager
async def of_aiosqlite(path: Path) -> AsyncIterator[Caller]:
    async with aiosqlite.connect(path) as raw:
        raw.row_factory = aiosqlite.Row

        async def execute(sql: str) -> None:
            await raw.execute(sql)

        yield Caller(raw, _of_itself, execute, raw.commit, raw.rollback)


@asynccontextmanager
async def of_sqlalchemy_connection(path: Path) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.connect() as raw:
        yield Caller(raw, _of_itself, _later(raw.exec_driver_sql), _later(raw.commit), _later(raw.rollback))
    engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_session(path: Path) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as raw:
        yield Caller(
            raw,
            _of_itself,
            _later(lambda sql: raw.execute(sqlalchemy.text(sql))),
            _later(raw.commit),
            _later(raw.rollback),
        )
    engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_async_connection(path: Path) -> AsyncIterator[Caller]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with engine.connect() as raw:

        async def execute(sql: str) -> None:
            await raw.exec_driver_sql(sql)

        yield Caller(raw, _of_itself, execute, raw.commit, raw.rollback)
    await engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_async_session(path: Path) -> AsyncIterator[Caller]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as raw:

        async def execute(sql: str) -> None:
            await raw.execute(sqlalchemy.text(sql))

        yield Caller(raw, _of_itself, execute, raw.commit, raw.rollback)
    await engine.dispose()


SYNCHRONOUS = {
    "sqlite3": of_sqlite3,
    "sqlite3 autocommit": of_sqlite3_autocommit,
    "apsw": of_apsw,
    "SQLAlchemy Connection": of_sqlalchemy_connection,
    "SQLAlchemy Session": of_sqlalchemy_session,
}
EVERY = {
    **SYNCHRONOUS,
    "aiosqlite": of_aiosqlite,
    "SQLAlchemy AsyncConnection": of_sqlalchemy_async_connection,
    "SQLAlchemy AsyncSession": of_sqlalchemy_async_session,
}


class World:
    """An outbox, one caller's connection of the same copy to the same file, and a table of the application's."""

    def __init__(self, outbox: Outbox, caller: Caller) -> None:
        self.outbox = outbox
        self.caller = caller

    async def committed(self) -> set[str]:
        """The keys that another connection sees."""
        return {action.idempotency_key for action in (await self.outbox.list()).actions}

    async def orders(self) -> int:
        """The application's rows that another connection sees."""
        storage = self.outbox.storage
        assert isinstance(storage, SqliteStorage)
        assert storage._reader is not None
        [(count,)] = await storage._reader.fetch("SELECT COUNT(*) FROM orders", ())
        return int(count)


async def _world(stack: AsyncExitStack, path: Path, name: str, *adapters: Adapter[Any]) -> World:
    driver = ApswDriver() if name == "apsw" else StdlibDriver()
    storage = SqliteStorage(path, driver, busy_timeout=100)
    outbox = await stack.enter_async_context(Outbox(storage, adapters))
    await storage._committer.submit(lambda connection: connection.execute("CREATE TABLE orders (id INTEGER)"))
    caller = await stack.enter_async_context(EVERY[name](path))
    return World(outbox, caller)


class Email(BaseModel):
    """What the tests enqueue."""

    notice: Literal["receipt", "reminder"]


def an_adapter() -> ScriptedAdapter:
    return ScriptedAdapter("email", variants=one(Email))


@pytest.fixture(params=EVERY)
async def world(request: pytest.FixtureRequest, database: Path) -> AsyncIterator[World]:
    """Every known kind of connection in turn."""
    async with AsyncExitStack() as stack:
        yield await _world(stack, database, request.param, an_adapter())


ORDER = "INSERT INTO orders (id) VALUES (42)"


async def test_p1_an_enqueue_is_committed_with_the_callers_change(world: World) -> None:
    """Before the caller's commit nobody sees it; after it both are there."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    answer = await world.outbox.enqueue(a_request("k"), connection=world.caller.connection)
    assert (answer.created, answer.validated) == (True, True)
    assert (await world.committed(), await world.orders()) == (set(), 0)
    await world.caller.commit()
    assert (await world.committed(), await world.orders()) == ({"k"}, 1)


async def test_p1_an_enqueue_is_rolled_back_with_the_callers_change(world: World) -> None:
    """Neither of the two is there afterwards, and the key is free."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    await world.outbox.enqueue(a_request("k"), connection=world.caller.connection)
    await world.caller.rollback()
    assert (await world.committed(), await world.orders()) == (set(), 0)
    assert (await world.outbox.enqueue(a_request("k"))).created


@pytest.mark.parametrize("name", ["sqlite3 autocommit", "apsw"])
async def test_p1_outside_of_a_transaction_an_enqueue_is_whole(database: Path, name: str) -> None:
    """A supersede whose new action is refused ends nothing; of many, none is stored when one is refused."""
    refused = a_request("refused", "lane", workspace_id=None)
    async with AsyncExitStack() as stack:
        world = await _world(stack, database, name, an_adapter())
        outbox, connection = world.outbox, world.caller.connection
        await outbox.enqueue(a_request("old", "lane"))
        with pytest.raises(StorageError, match="workspace_id"):
            await outbox.enqueue(refused, supersede=True, connection=connection)
        with pytest.raises(StorageError, match="workspace_id"):
            await outbox.enqueue_many([a_request("first"), refused], connection=connection)
        await outbox.enqueue(a_request("afterwards"), connection=connection)
        found = {action.idempotency_key: action.state for action in (await outbox.list()).actions}
    assert found == {"old": State.ADMITTED, "afterwards": State.ADMITTED}


async def test_p1_a_registry_of_sessions_stands_for_its_session(database: Path) -> None:
    """SQLAlchemy's scoped sessions, which web frameworks hand out, are taken for the one of the thread or task."""
    async with Outbox(SqliteStorage(database, StdlibDriver()), [an_adapter()]) as outbox:
        engine = sqlalchemy.create_engine(f"sqlite:///{database}")
        session = scoped_session(sessionmaker(engine))
        await outbox.enqueue(a_request("rolled back"), connection=session)
        session.rollback()
        enqueue_sync(a_request("k"), session)
        session.commit()
        session.remove()
        engine.dispose()
        asynchronous = create_async_engine(f"sqlite+aiosqlite:///{database}")
        of_task = async_scoped_session(async_sessionmaker(asynchronous), asyncio.current_task)
        await outbox.enqueue(a_request("also"), connection=of_task)
        await of_task.commit()
        await of_task.remove()
        await asynchronous.dispose()
        assert [action.idempotency_key for action in (await outbox.list()).actions] == ["also", "k"]


async def test_p1_the_first_statement_of_a_transaction_may_be_the_enqueue(world: World) -> None:
    """Nothing is committed for the caller, also when the library begins its transaction by itself."""
    await world.caller.begin()
    await world.outbox.enqueue(a_request("k"), connection=world.caller.connection)
    assert await world.committed() == set()
    await world.caller.rollback()
    assert await world.committed() == set()


async def test_p1_an_enqueue_inside_a_savepoint_goes_with_it(world: World) -> None:
    """A savepoint of the caller's that is undone undoes the enqueue, and what came before it stays."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    await world.caller.execute("SAVEPOINT mine")
    await world.outbox.enqueue(a_request("undone"), connection=world.caller.connection)
    await world.caller.execute("ROLLBACK TO mine")
    await world.outbox.enqueue(a_request("kept"), connection=world.caller.connection)
    await world.caller.execute("RELEASE mine")
    await world.caller.commit()
    assert (await world.committed(), await world.orders()) == ({"kept"}, 1)


async def test_p1_many_are_enqueued_in_the_callers_transaction(world: World) -> None:
    """All of them wait for the one commit."""
    await world.caller.begin()
    requests = [a_request(f"k{n}", "lane") for n in range(3)]
    answers = await world.outbox.enqueue_many(requests, connection=world.caller.connection)
    assert [answer.created for answer in answers] == [True, True, True]
    await world.caller.commit()
    assert await world.committed() == {"k0", "k1", "k2"}


async def test_p2_a_repeat_on_the_callers_connection_finds_the_first(world: World) -> None:
    """Committed or of the same transaction."""
    await world.caller.begin()
    await world.outbox.enqueue(a_request("old"), connection=world.caller.connection)
    await world.caller.commit()
    await world.caller.begin()
    old = await world.outbox.enqueue(a_request("old", "other"), connection=world.caller.connection)
    new = await world.outbox.enqueue(a_request("new"), connection=world.caller.connection)
    again = await world.outbox.enqueue(a_request("new"), connection=world.caller.connection)
    assert (old.created, old.same_content, again.created, again.id) == (False, False, False, new.id)
    await world.caller.rollback()


async def test_a_refused_enqueue_leaves_the_callers_transaction_open(world: World) -> None:
    """What the caller wrote before can still be committed."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    await world.outbox.enqueue(a_request("k", kind="post"), connection=world.caller.connection)
    with pytest.raises(KeyOfAnotherKind):
        await world.outbox.enqueue(a_request("k"), connection=world.caller.connection)
    with pytest.raises(StorageError, match="workspace_id"):
        await world.outbox.enqueue(a_request("other", workspace_id=None), connection=world.caller.connection)
    await world.caller.commit()
    assert (await world.committed(), await world.orders()) == ({"k"}, 1)


async def test_p12_a_refusal_shows_no_payload(world: World) -> None:
    """Neither its text nor what a log shows of it: SQLAlchemy puts the parameters into its errors."""
    await world.caller.begin()
    with pytest.raises(StorageError, match="workspace_id") as refusal:
        await world.outbox.enqueue(a_request("k", workspace_id=None), connection=world.caller.connection)
    await world.caller.rollback()
    assert "receipt" not in "".join(traceback.format_exception(refusal.value))


async def test_p12_aiosqlite_logs_no_parameter_of_ours(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG it writes down what it executes: statements, but no payload, subject or key."""
    request = a_request("the key", subject_account_id="jane")
    async with Outbox(SqliteStorage(database, StdlibDriver())) as outbox, aiosqlite.connect(database) as connection:
        with caplog.at_level(logging.DEBUG, "aiosqlite"):
            await outbox.enqueue(request, connection=connection)
            await outbox.get(key="the key", connection=connection)
            await connection.commit()
            assert await outbox.list(subject_account_id="jane")
    assert "INSERT INTO agent_action" in caplog.text
    assert {word for word in ("receipt", "jane", "the key") if word in caplog.text} == set()


async def test_reads_on_the_callers_connection_see_its_transaction(world: World) -> None:
    """Reads by id, key and lane show what is not committed yet, whatever row factory the connection has."""
    await world.caller.begin()
    answer = await world.outbox.enqueue(a_request("k", "lane"), connection=world.caller.connection)
    by_id = await world.outbox.get(answer.id, connection=world.caller.connection)
    by_key = await world.outbox.get(key="k", connection=world.caller.connection)
    [in_lane] = await world.outbox.lane("lane", connection=world.caller.connection)
    assert by_id is not None
    assert by_id == by_key == in_lane
    assert (by_id.state, by_id.payload) == (State.ADMITTED, '{"notice":"receipt"}')
    assert await world.outbox.get(answer.id) is None
    await world.caller.rollback()


async def test_p1_a_withdrawal_on_the_callers_connection_goes_with_its_transaction(world: World) -> None:
    """Undone with it, committed with it."""
    answer = await world.outbox.enqueue(a_request("k"))
    for end, state in ((world.caller.rollback, State.ADMITTED), (world.caller.commit, State.CANCELLED)):
        await world.caller.begin()
        withdrawn = await world.outbox.withdraw(answer.id, by="ann", connection=world.caller.connection)
        assert withdrawn.state is State.CANCELLED
        await end()
        action = await world.outbox.get(answer.id)
        assert action is not None
        assert action.state is state
    with pytest.raises(NotPossible):
        await world.outbox.withdraw(answer.id, connection=world.caller.connection)


async def test_a_supersede_on_the_callers_connection_goes_with_its_transaction(world: World) -> None:
    """What it ended is open again after a rollback."""
    await world.outbox.enqueue(a_request("old", "lane"))
    await world.caller.begin()
    answer = await world.outbox.enqueue(a_request("new", "lane"), connection=world.caller.connection, supersede=True)
    assert len(answer.superseded) == 1
    await world.caller.rollback()
    assert [action.idempotency_key for action in await world.outbox.lane("lane")] == ["old"]


async def test_a_lane_that_runs_is_refused_on_the_callers_connection(world: World) -> None:
    """And the caller's transaction goes on."""
    await world.outbox.enqueue(a_request("running", "lane"))
    await claim(world.outbox.storage)
    await world.caller.begin()
    await world.caller.execute(ORDER)
    with pytest.raises(LaneBusy):
        await world.outbox.enqueue(
            a_request("new", "lane"), connection=world.caller.connection, supersede=True, if_running="refuse"
        )
    await world.caller.commit()
    assert await world.orders() == 1


async def test_an_enqueue_beside_an_own_open_transaction_names_the_likely_cause(world: World) -> None:
    """Who forgets `connection=` is told so, instead of waiting for ever."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    with pytest.raises(DatabaseBusy, match="your own transaction is open, give it as connection="):
        await world.outbox.enqueue(a_request("k"))
    await world.caller.rollback()


@pytest.mark.parametrize("name", SYNCHRONOUS)
async def test_p1_enqueue_sync_goes_with_the_callers_transaction(database: Path, name: str) -> None:
    """It needs no open outbox, and commits nothing."""
    async with AsyncExitStack() as stack:
        world = await _world(stack, database, name)
        for end, expected in ((world.caller.rollback, False), (world.caller.commit, True)):
            await world.caller.begin()
            await world.caller.execute(ORDER)
            answer = enqueue_sync(a_request("k"), world.caller.connection)
            assert (answer.created, answer.validated) == (True, False)
            assert await world.committed() == set()
            await end()
            assert ("k" in await world.committed(), await world.orders() == 1) == (expected, expected)


def test_an_unknown_connection_is_refused_by_its_type(database: Path) -> None:
    """The answer says what is known."""
    for strange in (object(), database, None, 7):
        with pytest.raises(UnsupportedConnection, match="is not known; give sqlite3, aiosqlite, apsw"):
            enqueue_sync(a_request(), strange)


async def test_an_async_connection_needs_the_async_door(database: Path) -> None:
    """enqueue_sync cannot await, and says so."""
    async with Outbox(SqliteStorage(database, StdlibDriver())), aiosqlite.connect(database) as connection:
        with pytest.raises(UnsupportedConnection, match="asynchronous"):
            enqueue_sync(a_request(), connection)


def test_another_database_of_sqlalchemy_is_refused() -> None:
    """A dialect that is not SQLite is named."""

    class Elsewhere:
        name = "mysql"

    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.dialect = Elsewhere()  # type: ignore[assignment]  # all that is asked of it is its name
        with pytest.raises(UnsupportedConnection, match="dialect mysql"):
            enqueue_sync(a_request(), connection)
    engine.dispose()


async def test_p1_a_connection_to_another_kind_of_database_is_refused(database: Path) -> None:
    """What a connection to Postgres says of itself never fits an outbox on a file."""
    facts = PostgresFacts("7301443721:16384", "public", 1, 1)
    async with Outbox(SqliteStorage(database, StdlibDriver())) as outbox:
        with pytest.raises(WrongDatabase, match="Postgres"):
            outbox.storage.require_connection(facts)


async def test_recognising_a_connection_imports_no_library() -> None:
    """Who uses sqlite3 alone never pays for SQLAlchemy, nor needs a driver of Postgres."""
    script = (
        "import sqlite3, sys; from edgeoutbox import enqueue_sync, ActionRequest, UnsupportedConnection\n"
        "request = ActionRequest(kind='email', idempotency_key='k', payload={})\n"
        "for connection in (sqlite3.connect(':memory:'), object()):\n"
        "    try: enqueue_sync(request, connection)\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "print([name for name in ('sqlalchemy', 'psycopg', 'asyncpg') if name in sys.modules])\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert said.decode().splitlines() == ["NoSchema", "UnsupportedConnection", "[]"]


async def test_an_invalid_request_touches_no_connection(database: Path) -> None:
    """A payload that its adapter refuses never reaches the caller's transaction."""
    async with Outbox(SqliteStorage(database, StdlibDriver()), [an_adapter()]) as outbox:
        with pytest.raises(InvalidRequest, match="payload: notice"):
            await outbox.enqueue(a_request(payload={"notice": "of a later build"}), connection=object())


@pytest.mark.parametrize("name", ["sqlite3 autocommit", "apsw", "aiosqlite", "SQLAlchemy Connection"])
async def test_prepare_sets_what_is_recommended(database: Path, name: str) -> None:
    """Durable commits, patience, delete triggers for REPLACE, and no checkpoints beside the executor's."""
    async with EVERY[name](database) as caller:
        if name == "aiosqlite":
            await prepare_async(caller.connection)
        else:
            prepare(caller.connection)
        wanted = {
            "journal_mode": "wal",
            "synchronous": 2,
            "recursive_triggers": 1,
            "wal_autocheckpoint": 0,
            "busy_timeout": 5000,
        }
        for pragma, value in wanted.items():
            if name == "aiosqlite":
                rows = await caller.connection.execute_fetchall(f"PRAGMA {pragma}")
            elif "SQLAlchemy" in name:
                rows = caller.connection.exec_driver_sql(f"PRAGMA {pragma}").fetchall()
            else:
                rows = caller.connection.execute(f"PRAGMA {pragma}").fetchall()
            assert next(iter(rows[0].values() if isinstance(rows[0], dict) else tuple(rows[0]))) == value, pragma


async def test_sqlalchemy_through_apsw_is_refused(database: Path) -> None:
    """Two copies would be in play, whatever the outbox uses."""

    class Pool:
        driver_connection = apsw.Connection(":memory:")

    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    with engine.connect() as connection:
        connection._dbapi_connection = Pool()  # type: ignore[assignment]  # stands for a dialect on apsw
        with pytest.raises(MixedSqliteCopies, match="SQLAlchemy through apsw"):
            enqueue_sync(a_request(), connection)
        connection._dbapi_connection = None
    Pool.driver_connection.close()
    engine.dispose()
