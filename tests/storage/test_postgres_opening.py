"""Opening a storage on Postgres: by which URL, into which schema, with which rights, through which pooler."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from edgeoutbox.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    NoSchema,
    SchemaTooNew,
    StorageError,
    WrongDatabase,
)
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.postgres.address import address_of
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.storage.postgres.sessions import Session, Sessions
from edgeoutbox.storage.protocol import PostgresFacts, SqliteFacts
from edgeoutbox.testing.conformance.story import DONE, a_request, claim, declare, enqueue, fence, served
from edgeoutbox.testing.postgres import PostgresServer, as_url

Open = Callable[..., Any]


@pytest.fixture
async def open_(postgres_server: PostgresServer) -> AsyncIterator[Open]:
    """Opens storages that are closed after the test."""
    del postgres_server
    async with AsyncExitStack() as stack:

        async def opened(url: str) -> PostgresStorage:
            storage = PostgresStorage(url)
            await storage.open()
            stack.push_async_callback(storage.close)
            return storage

        yield opened


@pytest.mark.parametrize(
    ("url", "conninfo", "schema", "prepare", "shown"),
    [
        (
            "postgres://ann:s%40cret@db.example:5433/app?sslmode=require&schema=jobs&prepare=off",
            {"user": "ann", "password": "s@cret", "host": "db.example", "port": "5433", "dbname": "app"},
            "jobs",
            False,
            "postgresql://ann@db.example:5433/app?sslmode=require&schema=jobs&prepare=off",
        ),
        (
            "postgresql:///app?host=/run/pg&password=secret&options=-c%20search_path%3Djobs",
            {"host": "/run/pg", "dbname": "app", "password": "secret", "options": "-c search_path=jobs"},
            None,
            True,
            "postgresql:///app?host=%2Frun%2Fpg",
        ),
    ],
)
def test_p12_a_url_is_libpqs_and_shows_no_password(
    url: str, conninfo: dict[str, str], schema: str | None, prepare: bool, shown: str
) -> None:
    """Our own parameters are taken out of it; what is shown has neither a password nor what may hold one."""
    address = address_of(url)
    found = conninfo_to_dict(address.conninfo)
    assert {name: found[name] for name in conninfo} == conninfo
    assert not {"schema", "prepare"} & set(found)
    assert (address.schema, address.prepare, address.shown) == (schema, prepare, shown)
    assert "cret" not in repr(address)
    assert open_storage(url).url == shown


@pytest.mark.parametrize(
    ("url", "because"),
    [
        ("postgresql://h/app?prepare=maybe", "prepare is 'on' or 'off'"),
        ("postgresql://h/app?schema=", "schema names"),
        ("postgresql://h/app?secret=hunter2", "libpq cannot read it"),
        ("postgresql://h/app?hunter2", "cannot be read"),
    ],
)
def test_p12_a_wrong_url_is_refused_without_its_values(url: str, because: str) -> None:
    """What is wrong is said at once, and not with what may be a secret."""
    with pytest.raises(ConfigurationError, match=because) as refusal:
        open_storage(url)
    assert "hunter2" not in str(refusal.value) + repr(refusal.value.__cause__)


def test_without_its_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who installed edgeoutbox alone learns what to install."""
    for name in [name for name in sys.modules if name.startswith(("psycopg", "edgeoutbox.storage.postgres."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'edgeoutbox\[postgres\]'"):
        open_storage("postgresql://h/app")


async def test_a_server_that_is_not_there_is_said(postgres_server: PostgresServer) -> None:
    """Not which address it has."""
    storage = PostgresStorage(as_url(make_conninfo(postgres_server.conninfo, host="/nowhere", user="ann-secret")))
    with pytest.raises(DatabaseUnavailable) as refusal:
        await storage.open()
    assert "nowhere" not in str(refusal.value)
    assert "ann-secret" not in str(refusal.value) + repr(refusal.value.__cause__)


async def test_the_tables_are_made_where_search_path_says_or_the_url(
    open_: Open, postgres_server: PostgresServer
) -> None:
    """A schema that the URL names is made when it is not there, and no search_path finds another's tables instead."""
    conninfo = postgres_server.fresh_schema()
    first = await open_(as_url(conninfo))
    named = f'{first.schema}_"of%us'
    second = await open_(f"{as_url(conninfo)}&schema={named.replace('%', '%25')}")
    assert second.schema == named
    await enqueue(first, "first")
    await enqueue(second, "second", "lane")
    await second.settle(await claim(second), DONE)
    assert await first.get(key="second") is None
    with postgres_server.connect() as connection:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(named)))


async def test_many_open_an_empty_schema_at_once(open_: Open, postgres_server: PostgresServer) -> None:
    """One makes the tables; the others find them."""
    url = as_url(postgres_server.fresh_schema())
    storages = await asyncio.gather(*(open_(url) for _ in range(5)))
    assert {storage.schema for storage in storages} == {storages[0].schema}
    await asyncio.gather(*(declare(storage) for storage in storages))


async def test_a_newer_schema_is_refused_and_left_alone(open_: Open, postgres_server: PostgresServer) -> None:
    """One that this build can read is worked with."""
    conninfo = postgres_server.fresh_schema(schema_sql())
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("UPDATE agent_action_schema SET version = 7, readable_from = 1")
        await enqueue(await open_(as_url(conninfo)))
        connection.execute("UPDATE agent_action_schema SET readable_from = 7")
    with pytest.raises(SchemaTooNew, match="schema 7"):
        await open_(as_url(conninfo))


@pytest.fixture
def role(postgres_server: PostgresServer) -> str:
    """A role that may only do what it was granted."""
    name = f"edgeoutbox_test_{id(object())}"
    with postgres_server.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    return name


@pytest.mark.parametrize("there", [True, False])
async def test_a_role_with_no_more_than_its_rows_suffices(
    open_: Open, postgres_server: PostgresServer, role: str, there: bool
) -> None:
    """Where the tables are it works; where they are not it is told who has to make them."""
    conninfo = postgres_server.fresh_schema(schema_sql() if there else "")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        grants = "GRANT USAGE ON SCHEMA {} TO {}"
        if there:
            grants += "; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {0} TO {1}"
            grants += "; GRANT USAGE ON ALL SEQUENCES IN SCHEMA {0} TO {1}"
        [(schema,)] = connection.execute("SELECT current_schema()").fetchall()
        names = [sql.Identifier(schema), sql.Identifier(role)]
        for grant in grants.replace("{}", "{0}", 1).replace("{}", "{1}", 1).split("; "):
            connection.execute(sql.SQL(grant).format(*names))
        opening = open_(as_url(make_conninfo(conninfo, user=role)))
        try:
            if there:
                storage = await opening
                await declare(storage, hook=True)
                await enqueue(storage, "k", "lane")
                held = await claim(storage)
                await fence(storage, held)
                assert await storage.settle(held, DONE)
                await storage.migrate()
            else:
                with pytest.raises(NoSchema, match="edgeoutbox migrate"):
                    await opening
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


async def test_nothing_is_expected_of_a_session(
    open_: Open, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler each transaction may run in another session: nothing is left in one, nothing looked for."""
    left: list[list[tuple[Any, ...]]] = []
    give_back = Sessions._give_back

    async def pooled(self: Sessions, session: Session) -> None:
        if session.idle:
            left.append(
                await session.execute(
                    "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name NOT IN ('client_encoding')"
                )
            )
            left.append(await session.execute("SELECT name, statement FROM pg_prepared_statements"))
            await session.execute("DISCARD ALL")
        await give_back(self, session)

    monkeypatch.setattr(Sessions, "_give_back", pooled)
    storage = await open_(f"{as_url(postgres_server.fresh_schema())}&prepare=off")
    for n in range(12):
        await enqueue(storage, f"k{n}", "lane")
        held = await claim(storage)
        await fence(storage, held)
        assert await storage.settle(held, DONE)
    assert await storage.claim([served()], 1, "one") == []
    assert len(left) > 80
    assert [rows for rows in left if rows] == []


async def test_a_callers_connection_must_lead_to_the_same_tables(open_: Open, postgres_server: PostgresServer) -> None:
    """Another database, another schema, a newer one or SQLite is refused, and said."""
    storage = await open_(as_url(postgres_server.fresh_schema()))
    ours = storage._facts
    storage.require_connection(ours)
    for facts, because in (
        (PostgresFacts("other:1", ours.schema, 1, 1), "another database"),
        (PostgresFacts(ours.database, "public", 1, 1), "in the schema public"),
        (SqliteFacts("stdlib", "/app.db", 1, 1), "SQLite"),
    ):
        with pytest.raises(WrongDatabase, match=because):
            storage.require_connection(facts)
    with pytest.raises(SchemaTooNew):
        storage.require_connection(PostgresFacts(ours.database, ours.schema, 9, 9))


async def test_a_storage_opens_once(open_: Open, postgres_server: PostgresServer) -> None:
    """Opening it again would leave connections behind; closed, it says so."""
    storage = await open_(as_url(postgres_server.fresh_schema()))
    with pytest.raises(StorageError, match="open already"):
        await storage.open()
    await storage.close()
    with pytest.raises(StorageError, match="closed"):
        await storage.enqueue([a_request()])
