"""P1: the caller's own transaction on Postgres, of every library that is known; nothing is committed for the caller."""

import asyncio
import select
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from psycopg.conninfo import make_conninfo

from edgeoutbox import (
    InvalidRequest,
    KeyOfAnotherKind,
    LaneBusy,
    NotPossible,
    Outbox,
    StorageError,
    UnsupportedConnection,
    enqueue_sync,
    prepare,
    prepare_async,
)
from edgeoutbox.connections import run_sync
from edgeoutbox.connections.postgres import recognise
from edgeoutbox.errors import (
    DatabaseUnavailable,
    ForbiddenByGuard,
    NoSchema,
    SchemaTooNew,
    UndecodableInLane,
    WrongDatabase,
)
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import ConnectionFacts, PostgresFacts, SqliteFacts
from edgeoutbox.storage.statements.steps import Steps
from edgeoutbox.testing.conformance.story import a_request
from edgeoutbox.testing.postgres import PostgresServer
from tests.postgres.callers import ASYNCHRONOUS, EVERY, SYNCHRONOUS
from tests.postgres.database import POSTGRES_SCHEMA, PostgresDatabase
from tests.postgres.world import ORDER, World


@pytest.fixture(params=EVERY)
async def world(
    request: pytest.FixtureRequest, outbox: Outbox, db: PostgresDatabase, shop: str
) -> AsyncIterator[World]:
    """Every known kind of connection in turn."""
    async with EVERY[request.param](shop) as caller:
        yield World(outbox, caller, db, shop, request.param)


# --- the caller's transaction ----------------------------------------------------------------------------------------


async def test_p1_an_enqueue_is_committed_with_the_callers_change(world: World) -> None:
    """Before the caller's commit nobody sees it; after it both are there, in the outbox's own schema."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    answer = await world.outbox.enqueue(a_request("k"), connection=world.connection)
    assert (answer.created, answer.validated) == (True, True)
    assert (world.committed(), world.orders()) == (set(), 0)
    await world.caller.commit()
    assert (world.committed(), world.orders()) == ({"k"}, 1)
    assert world.db.one("SELECT payload FROM agent_action") == '{"notice":"receipt"}'


async def test_p1_an_enqueue_is_rolled_back_with_the_callers_change(world: World) -> None:
    """Neither of the two is there afterwards, and the key is free."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    await world.outbox.enqueue(a_request("k"), connection=world.connection)
    await world.caller.rollback()
    assert (world.committed(), world.orders()) == (set(), 0)
    await world.caller.begin()
    assert (await world.outbox.enqueue(a_request("k"), connection=world.connection)).created
    await world.caller.rollback()


async def test_p1_the_first_statement_of_a_transaction_may_be_the_enqueue(world: World) -> None:
    """Nothing is committed for the caller, also when the library begins its transaction by itself."""
    await world.caller.begin()
    await world.outbox.enqueue(a_request("k"), connection=world.connection)
    assert world.committed() == set()
    await world.caller.rollback()
    assert world.committed() == set()


async def test_p1_an_enqueue_inside_a_savepoint_goes_with_it(world: World) -> None:
    """Nested savepoints that are undone undo the enqueue, and what came before stays."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    await world.caller.execute("SAVEPOINT outer_one")
    await world.outbox.enqueue(a_request("kept", "lane"), connection=world.connection)
    await world.caller.execute("SAVEPOINT inner_one")
    await world.outbox.enqueue(a_request("undone", "lane"), connection=world.connection)
    await world.caller.execute("ROLLBACK TO inner_one")
    await world.outbox.enqueue(a_request("later", "lane"), connection=world.connection)
    await world.caller.execute("RELEASE outer_one")
    await world.caller.commit()
    assert (world.committed(), world.orders()) == ({"kept", "later"}, 1)


@pytest.mark.parametrize("name", ["psycopg", "psycopg async", "asyncpg", "asyncpg pool"])
async def test_p1_an_enqueue_goes_with_the_librarys_own_nested_block(
    outbox: Outbox, db: PostgresDatabase, shop: str, name: str
) -> None:
    """The transaction blocks of psycopg and asyncpg, of which the inner one is a savepoint."""
    async with EVERY[name](shop) as caller:
        world = World(outbox, caller, db, shop)
        async with AsyncExitStack() as stack:
            await _entered(stack, caller.connection.transaction())
            await outbox.enqueue(a_request("kept"), connection=caller.connection)
            with pytest.raises(ZeroDivisionError):
                await _undone(outbox, caller.connection)
            assert world.committed() == set()
        assert world.committed() == {"kept"}


async def _undone(outbox: Outbox, connection: Any) -> None:
    async with AsyncExitStack() as stack:
        await _entered(stack, connection.transaction())
        await outbox.enqueue(a_request("undone"), connection=connection)
        raise ZeroDivisionError


async def _entered(stack: AsyncExitStack, block: Any) -> None:
    if hasattr(block, "__aenter__"):
        await stack.enter_async_context(block)
    else:
        stack.enter_context(block)


@pytest.mark.parametrize("name", ["psycopg autocommit", "asyncpg", "asyncpg pool"])
async def test_p1_outside_of_a_transaction_an_enqueue_commits_by_itself(
    outbox: Outbox, db: PostgresDatabase, shop: str, name: str
) -> None:
    """A connection that commits each statement of the caller's commits ours too."""
    async with EVERY[name](shop) as caller:
        world = World(outbox, caller, db, shop)
        await outbox.enqueue(a_request("k"), connection=caller.connection)
        assert world.committed() == {"k"}


@pytest.mark.parametrize("name", ["psycopg autocommit", "asyncpg", "asyncpg pool"])
async def test_p1_outside_of_a_transaction_an_enqueue_is_whole(outbox: Outbox, shop: str, name: str) -> None:
    """A supersede whose new action is refused ends nothing; of many, none is stored when one is refused."""
    refused = a_request("refused", "lane", workspace_id=None)
    await outbox.enqueue(a_request("old", "lane"))
    async with EVERY[name](shop) as caller:
        with pytest.raises(ForbiddenByGuard):
            await outbox.enqueue(refused, supersede=True, connection=caller.connection)
        with pytest.raises(ForbiddenByGuard):
            await outbox.enqueue_many([a_request("first"), refused], connection=caller.connection)
        await outbox.enqueue(a_request("afterwards"), connection=caller.connection)
        found = {action.idempotency_key: action.state for action in (await outbox.list()).actions}
    assert found == {"old": State.ADMITTED, "afterwards": State.ADMITTED}


async def test_p1_an_enqueue_in_a_pipeline_goes_with_it(outbox: Outbox, conninfo: str, shop: str) -> None:
    """There, psycopg sends statements ahead without waiting; ours are answered all the same."""
    with psycopg.connect(conninfo) as connection, connection.pipeline():
        assert enqueue_sync(a_request("k"), connection).created
        assert not enqueue_sync(a_request("k"), connection).created
        connection.rollback()
        assert enqueue_sync(a_request("k"), connection).created
    async with await psycopg.AsyncConnection.connect(shop) as other, other.pipeline():
        await other.execute(ORDER)
        assert (await outbox.enqueue(a_request("also"), connection=other)).created
        with pytest.raises(ForbiddenByGuard, match="ROLLBACK"):
            await outbox.enqueue(a_request("refused", workspace_id=None), connection=other)
        await other.rollback()
        assert (await outbox.enqueue(a_request("also"), connection=other)).created
    assert [action.idempotency_key for action in (await outbox.list()).actions] == ["also", "k"]


class Late(psycopg.Connection[tuple[Any, ...]]):
    """Begins to ask only when the server has said something, which in a pipeline it does by itself for an error."""

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Wait for the server's word, and begin."""
        select.select([self], [], [], 5.0)
        with super().pipeline() as pipeline:
            yield pipeline


class LateAsync(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same."""

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        """Wait for the server's word, and begin."""
        select.select([self], [], [], 5.0)
        async with super().pipeline() as pipeline:
            yield pipeline


async def test_an_error_that_comes_early_in_a_pipeline_says_what_it_made_of_the_transaction(conninfo: str) -> None:
    """It comes before the answer that ends the pipeline, and so before the driver knows that all is aborted."""
    with Late.connect(conninfo) as connection, psycopg.Connection.pipeline(connection):
        recognised = recognise(connection)
        assert recognised is not None
        with pytest.raises(psycopg.errors.DivisionByZero) as raised:
            recognised.execute("SELECT 1 / 0", ())
        assert "ROLLBACK" in str(recognised.error(raised.value))
        connection.rollback()
    async with await LateAsync.connect(conninfo) as other, psycopg.AsyncConnection.pipeline(other):
        recognised = recognise(other)
        assert recognised is not None
        asked = recognised.execute("SELECT 1 / 0", ())
        assert not isinstance(asked, list)
        with pytest.raises(psycopg.errors.DivisionByZero) as raised:
            await asked
        assert "ROLLBACK" in str(recognised.error(raised.value))
        await other.rollback()


async def test_p1_many_are_enqueued_in_the_callers_transaction(world: World) -> None:
    """All of them wait for the one commit, and have ids in the order in which they were given."""
    await world.caller.begin()
    requests = [a_request(f"k{n}", f"lane:{2 - n}") for n in range(3)]
    answers = await world.outbox.enqueue_many(requests, connection=world.connection)
    assert [answer.created for answer in answers] == [True, True, True]
    assert sorted(answer.id for answer in answers) == [answer.id for answer in answers]
    assert world.committed() == set()
    await world.caller.commit()
    assert world.committed() == {"k0", "k1", "k2"}


async def test_p2_a_repeat_on_the_callers_connection_finds_the_first(world: World) -> None:
    """Committed or of the same transaction."""
    await world.caller.begin()
    await world.outbox.enqueue(a_request("old"), connection=world.connection)
    await world.caller.commit()
    await world.caller.begin()
    old = await world.outbox.enqueue(a_request("old", "other"), connection=world.connection)
    new = await world.outbox.enqueue(a_request("new"), connection=world.connection)
    again = await world.outbox.enqueue(a_request("new"), connection=world.connection)
    assert (old.created, old.same_content, again.created, again.id) == (False, False, False, new.id)
    assert again.same_content
    await world.caller.rollback()


async def test_reads_on_the_callers_connection_see_its_transaction(world: World) -> None:
    """Reads by id, key and lane show what is not committed yet, whatever the caller's rows look like."""
    await world.caller.begin()
    answer = await world.outbox.enqueue(a_request("k", "lane"), connection=world.connection)
    by_id = await world.outbox.get(answer.id, connection=world.connection)
    by_key = await world.outbox.get(key="k", connection=world.connection)
    [in_lane] = await world.outbox.lane("lane", connection=world.connection)
    assert by_id is not None
    assert by_id == by_key == in_lane
    assert (by_id.state, by_id.payload, by_id.is_head) == (State.ADMITTED, '{"notice":"receipt"}', True)
    await world.caller.rollback()


async def test_a_proposal_on_the_callers_connection_goes_with_its_transaction(world: World) -> None:
    """It waits for a decision once the caller commits."""
    await world.caller.begin()
    answer = await world.outbox.propose(a_request("k"), connection=world.connection)
    assert (answer.state, world.committed()) == (State.PROPOSED, set())
    await world.caller.commit()
    assert world.db.state(answer.id) == "PROPOSED"


async def test_p1_a_withdrawal_on_the_callers_connection_goes_with_its_transaction(world: World) -> None:
    """Undone with it, committed with it; what has ended cannot be withdrawn, and the transaction goes on."""
    action = world.db.insert("lane")
    behind = world.db.insert("lane")
    for end, state in ((world.caller.rollback, "ADMITTED"), (world.caller.commit, "CANCELLED")):
        await world.caller.begin()
        withdrawn = await world.outbox.withdraw(action, by="ann", connection=world.connection)
        assert withdrawn.state is State.CANCELLED
        await end()
        assert world.db.state(action) == state
    assert world.db.heads("lane") == [behind]
    await world.caller.begin()
    await world.caller.execute(ORDER)
    with pytest.raises(NotPossible):
        await world.outbox.withdraw(action, connection=world.connection)
    await world.caller.commit()
    assert world.orders() == 1


async def test_a_supersede_on_the_callers_connection_goes_with_its_transaction(world: World) -> None:
    """What it ended is open again after a rollback; after a commit the new action heads the lane."""
    old = world.db.insert("lane", payload='{"notice":"receipt"}')
    for end in (world.caller.rollback, world.caller.commit):
        await world.caller.begin()
        answer = await world.outbox.enqueue(a_request("new", "lane"), connection=world.connection, supersede=True)
        assert answer.superseded == (old,)
        await end()
        assert world.db.heads("lane") == [old if end == world.caller.rollback else answer.id]


async def test_a_refusal_of_ours_leaves_the_callers_transaction_open(world: World) -> None:
    """Another kind's key, a lane that runs and a row that cannot be decoded: what the caller wrote can be committed."""
    running = world.db.insert("running", payload='{"notice":"receipt"}')
    world.db.claim(running)
    world.db.insert("strange", payload='{"notice":"of a later build"}')
    held = world.db.insert(kind="post", idempotency_key="held")
    outbox, connection = world.outbox, world.connection
    await world.caller.begin()
    await world.caller.execute(ORDER)
    with pytest.raises(KeyOfAnotherKind, match=f"action {held} of kind post"):
        await outbox.enqueue(a_request("held"), connection=connection)
    with pytest.raises(LaneBusy):
        await outbox.enqueue(a_request("a", "running"), connection=connection, supersede=True, if_running="refuse")
    with pytest.raises(UndecodableInLane):
        await outbox.enqueue(a_request("b", "strange"), connection=connection, supersede=True)
    await outbox.enqueue(a_request("k"), connection=connection)
    await world.caller.commit()
    assert "k" in world.committed()
    assert world.orders() == 1


async def test_a_refusal_of_the_guard_says_how_the_callers_transaction_goes_on(world: World) -> None:
    """Postgres aborts the transaction: the error says so, until a savepoint from before is gone back to."""
    await world.caller.begin()
    await world.caller.execute(ORDER)
    await world.caller.execute("SAVEPOINT mine")
    with pytest.raises(
        ForbiddenByGuard, match=r"workspace_id.*; your transaction is aborted: ROLLBACK it, or ROLLBACK TO"
    ):
        await world.outbox.enqueue(a_request("k", workspace_id=None), connection=world.connection)
    with pytest.raises(StorageError, match=r"25P02.*your transaction is aborted: ROLLBACK"):
        await world.outbox.enqueue(a_request("k"), connection=world.connection)
    await world.caller.execute("ROLLBACK TO mine")
    await world.outbox.enqueue(a_request("k"), connection=world.connection)
    await world.caller.commit()
    assert (world.committed(), world.orders()) == ({"k"}, 1)


@pytest.mark.parametrize("name", ["psycopg autocommit", "asyncpg"])
async def test_a_refusal_of_the_guard_outside_of_a_transaction_asks_for_no_rollback(
    outbox: Outbox, shop: str, name: str
) -> None:
    """There is none to roll back."""
    async with EVERY[name](shop) as caller:
        with pytest.raises(ForbiddenByGuard) as refusal:
            await outbox.enqueue(a_request("k", workspace_id=None), connection=caller.connection)
        assert "ROLLBACK" not in str(refusal.value)


async def test_p12_a_refusal_shows_no_payload(world: World) -> None:
    """Neither its text nor what a log shows of it: drivers and SQLAlchemy put rows and parameters into their errors."""
    await world.caller.begin()
    with pytest.raises(ForbiddenByGuard) as refusal:
        await world.outbox.enqueue(a_request("k", workspace_id=None), connection=world.connection)
    await world.caller.rollback()
    assert "receipt" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("name", ["psycopg", "psycopg async", "asyncpg"])
async def test_a_connection_that_was_lost_says_so(outbox: Outbox, db: PostgresDatabase, shop: str, name: str) -> None:
    """There is no transaction any more that could be rolled back."""
    async with EVERY[name](shop) as caller:
        await caller.begin()
        await caller.execute(ORDER)
        db("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE state = 'idle in transaction'")
        with pytest.raises(DatabaseUnavailable) as lost:
            await outbox.enqueue(a_request("k"), connection=caller.connection)
        assert "ROLLBACK" not in str(lost.value)


async def test_a_connection_in_the_middle_of_a_statement_says_so(
    outbox: Outbox, db: PostgresDatabase, shop: str
) -> None:
    """A second statement beside the first is refused by asyncpg, and the server is not to blame."""
    async with EVERY["asyncpg"](shop) as caller:
        db("SELECT pg_advisory_lock(4711)")
        waiting = asyncio.ensure_future(caller.execute("SELECT pg_advisory_lock(4711)"))
        await asyncio.sleep(0)  # its statement is on the way
        with pytest.raises(StorageError, match="another statement of yours") as refused:
            await outbox.enqueue(a_request("k"), connection=caller.connection)
        assert not isinstance(refused.value, DatabaseUnavailable)
        db("SELECT pg_advisory_unlock(4711)")
        await waiting


# --- without an open outbox ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYNCHRONOUS)
async def test_p1_enqueue_sync_goes_with_the_callers_transaction(
    conninfo: str, db: PostgresDatabase, name: str
) -> None:
    """It needs no open outbox, finds our tables by the connection's search_path, and commits nothing."""
    async with SYNCHRONOUS[name](conninfo) as caller:
        for end, expected in ((caller.rollback, 0), (caller.commit, 1)):
            await caller.begin()
            answer = enqueue_sync(a_request("k"), caller.connection)
            assert (answer.created, answer.validated) == (True, False)
            assert db("SELECT id FROM agent_action") == []
            await end()
            assert db.one("SELECT COUNT(*) FROM agent_action") == expected


def test_tables_among_the_temporary_ones_are_not_ours(conninfo: str, db: PostgresDatabase) -> None:
    """Where the schema was found is where every statement goes, whatever else search_path would find first."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TEMP TABLE agent_action (LIKE agent_action)")
        enqueue_sync(a_request("k"), connection)
    assert db.one("SELECT idempotency_key FROM agent_action") == "k"


@pytest.mark.parametrize("name", SYNCHRONOUS)
async def test_a_database_without_our_tables_is_refused(postgres_server: PostgresServer, name: str) -> None:
    """The error says that there are none, and what the caller's transaction needs now."""
    async with SYNCHRONOUS[name](postgres_server.fresh_schema()) as caller:
        await caller.begin()
        with pytest.raises(NoSchema, match=r"finds no edgeoutbox tables.*; your transaction is aborted: ROLLBACK"):
            enqueue_sync(a_request(), caller.connection)
        await caller.rollback()


def test_a_schema_of_a_newer_build_is_refused(conninfo: str, db: PostgresDatabase) -> None:
    """Both versions are named, and the caller's transaction is untouched."""
    db("UPDATE agent_action_schema SET version = 9, readable_from = 8")
    with psycopg.connect(conninfo) as connection:
        with pytest.raises(SchemaTooNew, match="schema 9, readable by builds of schema 8"):
            enqueue_sync(a_request(), connection)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_schema_without_its_version_is_refused(conninfo: str, db: PostgresDatabase) -> None:
    """Somebody emptied the table: nothing tells whether this build fits."""
    db("DELETE FROM agent_action_schema")
    with psycopg.connect(conninfo) as connection, pytest.raises(NoSchema, match="no edgeoutbox schema version"):
        enqueue_sync(a_request(), connection)


# --- whose connection it is ------------------------------------------------------------------------------------------


def test_a_connection_says_where_it_leads(conninfo: str, shop: str, db: PostgresDatabase) -> None:
    """A role without any privilege but ours may ask; the schema that is asked for is the one that answers."""
    seen: list[ConnectionFacts] = []

    class Asked:
        schema: str | None = None

        def require_connection(self, facts: ConnectionFacts) -> None:
            seen.append(facts)

    asked = Asked()
    db(f"GRANT USAGE ON SCHEMA {db.schema} TO pg_monitor")  # a role that every server has and nobody logs in as
    db("GRANT SELECT ON agent_action_schema TO pg_monitor")
    system = db.one("SELECT system_identifier FROM pg_control_system()")
    oid = db.one("SELECT oid FROM pg_database WHERE datname = current_database()")
    with psycopg.connect(conninfo) as connection:
        connection.execute("SET ROLE pg_monitor")
        run_sync(connection, _nothing(), asked)
    asked.schema = db.schema
    with psycopg.connect(shop) as connection:
        run_sync(connection, _nothing(), asked)
    expected = PostgresFacts(f"{system}:{oid}", db.schema, 1, 1)
    assert seen == [expected, expected]


def _nothing() -> Steps[None]:
    yield from ()


async def test_p1_a_connection_to_another_database_is_refused(
    postgres_server: PostgresServer, outbox: Outbox, db: PostgresDatabase
) -> None:
    """Whatever the names of its schemas: the action would not commit with the change. The transaction is untouched."""
    if not postgres_server.private:
        pytest.skip("another's server: no databases are made on it")
    db("CREATE DATABASE another")
    elsewhere = make_conninfo(db.conninfo, dbname="another")
    try:
        with psycopg.connect(elsewhere, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(db.schema)))
            connection.execute(POSTGRES_SCHEMA.encode())
        with psycopg.connect(elsewhere) as connection:
            with pytest.raises(WrongDatabase, match="another database"):
                await outbox.enqueue(a_request(), connection=connection)
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        db("DROP DATABASE another")


async def test_a_database_without_the_outboxs_schema_is_refused(outbox: Outbox, db: PostgresDatabase) -> None:
    """There is nothing to compare with."""
    with (
        psycopg.connect(make_conninfo(db.conninfo, dbname="template1")) as connection,
        pytest.raises(NoSchema, match="finds no edgeoutbox tables in its database"),
    ):
        await outbox.enqueue(a_request(), connection=connection)


async def test_sqlite_outboxes_and_postgres_connections_do_not_mix(outbox: Outbox) -> None:
    """What SQLite says of itself is none of an outbox on Postgres."""
    with pytest.raises(WrongDatabase):
        outbox.storage.require_connection(SqliteFacts("stdlib", "app.db", 1, 1))


@pytest.mark.parametrize("name", ASYNCHRONOUS)
async def test_an_asynchronous_connection_needs_the_asynchronous_door(shop: str, name: str) -> None:
    """enqueue_sync cannot await, and says so."""
    async with ASYNCHRONOUS[name](shop) as caller:
        with pytest.raises(UnsupportedConnection, match="asynchronous"):
            enqueue_sync(a_request(), caller.connection)


def test_psycopg2_is_not_known() -> None:
    """SQLAlchemy's dialect on it is named, and what to use in its place."""

    class Dialect:
        name, driver = "postgresql", "psycopg2"

    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.dialect = Dialect()  # type: ignore[assignment]  # all that is asked of it is what it is
        with pytest.raises(
            UnsupportedConnection, match=r"postgresql\+psycopg2 is not known; use postgresql\+psycopg or"
        ):
            enqueue_sync(a_request(), connection)
    engine.dispose()


async def test_an_invalid_request_touches_no_connection(outbox: Outbox) -> None:
    """A payload that its adapter refuses never reaches the caller's transaction."""
    with pytest.raises(InvalidRequest, match="payload: notice"):
        await outbox.enqueue(a_request(payload={"notice": "of a later build"}), connection=object())


async def test_recognising_psycopg_imports_neither_asyncpg_nor_sqlalchemy(conninfo: str) -> None:
    """A program needs the one driver that it uses."""
    script = (
        "import sys, psycopg; from edgeoutbox import enqueue_sync, ActionRequest\n"
        "request = ActionRequest(kind='email', idempotency_key='k', payload={})\n"
        "print(enqueue_sync(request, psycopg.connect(sys.argv[1])).created)\n"
        "print([name for name in ('sqlalchemy', 'asyncpg', 'psycopg_pool') if name in sys.modules])\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", script, conninfo, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert said.decode().splitlines() == ["True", "[]"]


async def test_preparing_a_connection_changes_nothing(world: World) -> None:
    """Postgres needs nothing, so a program may prepare its connections whatever database it works on."""
    await world.caller.begin()
    if world.name in SYNCHRONOUS:
        prepare(world.connection)
    else:
        await prepare_async(world.connection)
    await world.outbox.enqueue(a_request("k"), connection=world.connection)
    await world.caller.rollback()
    assert world.committed() == set()
