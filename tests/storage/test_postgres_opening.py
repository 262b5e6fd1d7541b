"""Opening a storage on Postgres: by which URL, into which schema, with which rights, through which pooler."""

import asyncio
import logging
import sys
import traceback
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
from edgeoutbox.sidecar.health import check_database
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.postgres import watch
from edgeoutbox.storage.postgres.address import address_of
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.errors import storage_error
from edgeoutbox.storage.postgres.schema import grants, schema_sql
from edgeoutbox.storage.postgres.sessions import PREPARE_AFTER, Session, Sessions
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
            None,
            "postgresql:///app?host=%2Frun%2Fpg",
        ),
    ],
)
def test_p12_a_url_is_libpqs_and_shows_no_password(
    url: str, conninfo: dict[str, str], schema: str | None, prepare: bool | None, shown: str
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
        ("postgresql://h/app?scheme=hunter2", "libpq does not know parameter scheme; ours are schema and prepare"),
        ("postgresql://u:a?hunter2=b@h/app", "libpq does not know one of its parameters"),
        ("postgresql://h/app?hunter2", "cannot be read"),
        ("postgresql://u:[hunter2@h/app", "cannot be read"),
        ("postgresql://u:hun]ter2@h/app", "cannot be read"),
        ("postgresql://u:hunter2%@h/app", "cannot be read"),
        ("sqlite://[hunter2/app.db", "cannot be read"),
        ("postgresql://h:hunter2/app", "port is a number"),
        ("postgresql://h/app?connect_timeout=hunter2", "connect_timeout is a number"),
        (f"postgresql://h/app?schema=hunter2{'x' * 57}", "schema has at most 63 bytes"),
        (f"postgresql://h/app?schema=hunter2{'%C3%A4' * 29}", "schema has at most 63 bytes"),
        ("postgresql://h/app?schema=pg_hunter2", "schema does not begin with pg_"),
        ("postgresql://h/app?schema=$user", r"neither \$user"),
        ("postgresql://h/app?schema=a$edgeoutbox$b", r"nor \$edgeoutbox\$"),
    ],
)
def test_p12_a_wrong_url_is_refused_without_its_values(url: str, because: str) -> None:
    """What is wrong is said at once, and not with what may be a secret."""
    with pytest.raises(ConfigurationError, match=because) as refusal:
        open_storage(url)
    assert "hunter2" not in str(refusal.value) + repr(refusal.value.__cause__)
    if "%" not in url:
        assert "hunter2" not in "".join(traceback.format_exception(refusal.value)).replace(url, "")


@pytest.mark.parametrize("url", ["postgresql://h1:1,h2/app", "postgresql://h/app?ssl=true&connect_timeout=3"])
def test_what_libpq_knows_is_let_through(url: str) -> None:
    """Several hosts and ports, and the parameters that it has other names for."""
    assert address_of(url).conninfo == url


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"host": "127.0.0.1", "port": 1}, "check that it runs, and the host and the port"),
        ({"host": "/nowhere-hunter2"}, "check that it runs, and the host and the port"),
        ({"user": "hunter2"}, "has no such role"),
        ({"dbname": "hunter2"}, "has no such database"),
        ({"user": "database hunter2"}, "has no such role"),
        ({"sslmode": "hunter2"}, "does not take a value of one of the url's parameters"),
    ],
)
async def test_p12_why_there_is_no_connection_is_told_apart(
    postgres_server: PostgresServer, changed: dict[str, Any], said: str
) -> None:
    """By the words of libpq, of which none is shown."""
    storage = PostgresStorage(as_url(make_conninfo(postgres_server.conninfo, **changed)))
    with pytest.raises(DatabaseUnavailable, match=said) as refusal:
        await storage.open()
    assert "hunter2" not in str(refusal.value) + repr(refusal.value.__cause__)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            'connection to server on socket "/refused" failed: FATAL:  password authentication failed for user "a"',
            "login",
        ),
        ('FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "a", database "b", no encryption', "login"),
        ("fe_sendauth: no password supplied", "login"),
        ('FATAL:  role "a" is not permitted to log in', "it needs LOGIN"),
        ("FATAL:  sorry, too many clients already", "no connection left"),
        ("FATAL:  the database system is starting up", "starting, stopping"),
        ("server does not support SSL, but SSL was required", "TLS"),
        ("session is read-only", "takes no writes"),
        ("die Verbindung schlug fehl", "cannot be reached, or it refused the login, or has no such database"),
    ],
)
def test_p12_the_words_of_a_connection_that_was_not_made(words: str, said: str) -> None:
    """What cannot be read, as in another language, gets a sentence that names every reason."""
    assert said in str(storage_error(psycopg.OperationalError(words)))


async def test_a_server_that_is_too_old_is_refused(
    open_: Open, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the storage, and by `doctor`."""
    url = as_url(postgres_server.fresh_schema(schema_sql()))
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 130023)
    with pytest.raises(StorageError, match="Postgres 13 is too old: 14 or later is needed"):
        await open_(url)
    [check] = check_database(url)
    assert (check.ok, "Postgres 13 is too old" in check.detail) == (False, True)


async def test_a_database_that_does_not_store_every_text_is_refused(
    open_: Open, postgres_server: PostgresServer, role: str
) -> None:
    """Before there is anything in it: later each enqueue of such a text would fail."""
    with postgres_server.connect() as connection:
        connection.execute(f"CREATE DATABASE {role} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0".encode())
        try:
            with pytest.raises(StorageError, match="stores text as LATIN1"):
                await open_(as_url(make_conninfo(postgres_server.conninfo, dbname=role)))
        finally:
            connection.execute(f"DROP DATABASE {role} WITH (FORCE)".encode())
            connection.execute(f"DROP ROLE {role}".encode())


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
        [(schema,)] = connection.execute("SELECT current_schema()").fetchall()
        script = grants(schema, role) if there else f"GRANT USAGE ON SCHEMA {schema} TO {role}"
        connection.execute(script.encode())
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


@pytest.fixture
def pooler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows that a pooler stands between: the process that it names is not the one that serves us."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 0)


@pytest.mark.usefixtures("pooler")
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
    storage = await open_(as_url(postgres_server.fresh_schema()))
    for n in range(12):
        await enqueue(storage, f"k{n}", "lane")
        held = await claim(storage)
        await fence(storage, held)
        assert await storage.settle(held, DONE)
    assert await storage.claim([served()], 1, "one") == []
    assert len(left) > 80
    assert [rows for rows in left if rows] == []


@pytest.mark.usefixtures("pooler")
async def test_through_a_pooler_nobody_listens(
    open_: Open, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and what another program commits is found by polling, as when nobody can listen."""
    with caplog.at_level(logging.INFO, "edgeoutbox"):
        storage = await open_(as_url(postgres_server.fresh_schema()))
    assert [record.__dict__.get("event") for record in caplog.records] == ["storage.listen.pooled"]
    assert not storage._watch.listening
    loop = asyncio.get_running_loop()
    asked = loop.time()
    assert await storage.changed(storage.mark(), 60.0) is True
    assert loop.time() - asked < watch.POLL_LISTENING


@pytest.mark.parametrize(
    ("url", "direct", "through"),
    [("", True, False), ("&prepare=on", True, True), ("&prepare=off", False, False)],
    ids=["unsaid", "on", "off"],
)
async def test_through_a_pooler_nothing_is_prepared_unless_it_is_told_to(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, url: str, direct: bool, through: bool
) -> None:
    """A name of ours would be another program's statement in the session that it is lent."""
    sessions = Sessions(address_of(as_url(postgres_server.fresh_schema()) + url))
    for prepares in (direct, through):
        session = await sessions.connect()
        for _ in range(PREPARE_AFTER + 1):
            await session.execute("SELECT 1")
        assert bool(await session.execute("SELECT name FROM pg_prepared_statements")) is prepares
        assert session.idle
        await session.close()
        request.getfixturevalue("pooler")


def test_a_poolers_refusals_say_what_to_do() -> None:
    """Of a parameter that it does not pass on, and of a statement that was prepared in another session."""
    refused = storage_error(psycopg.OperationalError("FATAL:  unsupported startup parameter: options"))
    assert "name the schema with schema= in the url" in str(refused)
    for error in (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement):
        assert "prepare=off" in str(storage_error(error()))


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
