"""Through a real pgbouncer that lends the server's sessions by the transaction, each to another in turn."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeAlias

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from edgeoutbox import Executor, Outbox
from edgeoutbox.errors import DatabaseUnavailable
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.watch import POLL_LISTENING
from edgeoutbox.testing import ScriptedAdapter, until
from edgeoutbox.testing.conformance.story import a_request
from edgeoutbox.testing.postgres import PostgresServer, as_url
from tests.postgres.database import PostgresDatabase
from tests.postgres.pgbouncer import PROGRAM, Pgbouncer
from tests.postgres.world import url_of

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no pgbouncer: install the package of that name")

OpenAt: TypeAlias = Callable[[str], Awaitable[Outbox]]
"""Opens an outbox of the kind `email`, which is closed after the test."""


@pytest.fixture(params=[3], ids=lambda sessions: f"of {sessions}")
def pgbouncer(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[Pgbouncer]:
    """A pooler with so many sessions."""
    with Pgbouncer(postgres_server, request.param) as started:
        yield started


@pytest.fixture
async def open_at() -> AsyncIterator[OpenAt]:
    """Outboxes by URL."""
    async with AsyncExitStack() as stack:

        async def opener(url: str) -> Outbox:
            return await stack.enter_async_context(Outbox(PostgresStorage(url), [ScriptedAdapter("email")]))

        yield opener


@pytest.mark.parametrize("pgbouncer", [1, 3], indirect=True, ids=["one session", "three sessions"])
async def test_the_whole_way_leads_through_it(pgbouncer: Pgbouncer, db: PostgresDatabase, open_at: OpenAt) -> None:
    """Two executors carry out what a third program enqueues; nothing is left in a session, and nothing is amiss."""
    carrying = [await open_at(pgbouncer.url(db.schema)) for _ in range(2)]
    producing = await open_at(pgbouncer.url(db.schema))
    async with Executor(carrying[0]), Executor(carrying[1]):
        enqueued = await asyncio.gather(*(producing.enqueue(a_request(f"k{n}", f"lane{n % 5}")) for n in range(40)))
        ended = await asyncio.gather(*(producing.wait(each.id, 30.0) for each in enqueued))
    assert {action.state.value for action in ended} == {"DONE"}
    with psycopg.connect(pgbouncer.conninfo, prepare_threshold=None) as looking:
        assert looking.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
        assert looking.execute("SELECT pg_listening_channels()").fetchall() == []
    assert pgbouncer.warnings() == []


async def test_what_is_enqueued_through_it_wakes_who_listens_past_it(
    pgbouncer: Pgbouncer, db: PostgresDatabase, open_at: OpenAt
) -> None:
    """An executor with a URL of the server's own hears it; one whose URL is the pooler's looks by itself."""
    past = await open_at(url_of(db.conninfo, db.schema))
    through = await open_at(pgbouncer.url(db.schema))
    loop = asyncio.get_running_loop()
    for waiting, by in ((past, through), (through, past)):
        asked = loop.time()
        hearing = asyncio.create_task(waiting.storage.changed(waiting.storage.mark(), 60.0))
        await by.enqueue(a_request(f"by {by.storage.url}"))
        assert await hearing is True
        assert loop.time() - asked < POLL_LISTENING


async def test_it_may_be_killed_at_any_moment(pgbouncer: Pgbouncer, db: PostgresDatabase, open_at: OpenAt) -> None:
    """What was answered is there, once, and nothing has to be opened again."""
    outbox = await open_at(pgbouncer.url(db.schema))
    answered: set[str] = set()
    over = asyncio.Event()

    async def produce(name: str) -> None:
        number = 0
        while not over.is_set():
            try:
                await outbox.enqueue(a_request(f"{name}{number}", name))
            except DatabaseUnavailable:
                await asyncio.sleep(0.01)
            else:
                answered.add(f"{name}{number}")
                number += 1

    producers = [asyncio.create_task(produce(name)) for name in "abcd"]
    for _ in range(3):
        await until(partial(lambda before: len(answered) >= before + 40, len(answered)))
        await asyncio.to_thread(pgbouncer.kill)
        await asyncio.to_thread(pgbouncer.start)
    over.set()
    await asyncio.gather(*producers)
    assert {row[0] for row in db("SELECT idempotency_key FROM agent_action")} == answered


async def test_what_it_does_not_pass_on_is_said(pgbouncer: Pgbouncer, db: PostgresDatabase) -> None:
    """It refuses a search_path of the URL; `schema=` takes its place."""
    url = as_url(make_conninfo(pgbouncer.conninfo, options=f"-c search_path={db.schema}"))
    with pytest.raises(DatabaseUnavailable, match="name the schema with schema= in the url"):
        await PostgresStorage(url).open()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_callers_own_connection_through_it_that_prepares_nothing(
    pgbouncer: Pgbouncer, db: PostgresDatabase, open_at: OpenAt, driver: str
) -> None:
    """It finds the tables wherever the outbox has them, in each of the sessions that its transactions are lent."""
    outbox = await open_at(pgbouncer.url(db.schema))
    for number in range(8):
        await _ENQUEUES[driver](pgbouncer.conninfo, outbox, f"k{number}")
    assert db.one("SELECT COUNT(*) FROM agent_action") == 8


async def _by_psycopg(conninfo: str, outbox: Outbox, key: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, prepare_threshold=None) as connection:
        await outbox.enqueue(a_request(key), connection=connection)


async def _by_asyncpg(conninfo: str, outbox: Outbox, key: str) -> None:
    given = conninfo_to_dict(conninfo)
    where = {name: given[name] for name in ("host", "port", "user")}
    connection = await asyncpg.connect(**where, database=given["dbname"], statement_cache_size=0)
    try:
        async with connection.transaction():
            await outbox.enqueue(a_request(key), connection=connection)
    finally:
        await connection.close()


_ENQUEUES: dict[str, Callable[..., Any]] = {"psycopg": _by_psycopg, "asyncpg": _by_asyncpg}
