from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgeoutbox.cli import copying
from edgeoutbox.cli.exits import Exit
from edgeoutbox.errors import DatabaseUnavailable, NotPossible
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.copying import Tally
from edgeoutbox.testing.postgres import PostgresServer, as_url
from tests.cli.terminal import Terminal
from tests.copying.world import Database, copied, enqueue, fill, make_database, taken
from tests.postgres.database import PostgresDatabase


async def test_not_while_an_executor_runs(way: tuple[Database, Database]) -> None:
    """An executor that was seen within a minute is named, and nothing is paused or copied."""
    source, destination = way
    storage = open_storage(source.url)
    await storage.open()
    await enqueue(storage, "waits")
    await storage.heartbeat("host:4711", "0.1.0", {})
    with pytest.raises(NotPossible, match=r"an executor works on the source: host:4711 \(0\.1\.0\), seen 0 s ago"):
        await copied(source, destination)
    assert source.sql("SELECT kind FROM agent_action_kind") == []
    assert destination.contents() == {}
    source.sql("UPDATE agent_action_executor SET seen_at = seen_at - 60001")
    await storage.close()
    assert (await copied(source, destination)).copied == 1


async def test_not_while_a_lease_lasts(way: tuple[Database, Database]) -> None:
    """Whoever holds a lease may still call the provider, though nobody has heard of it: nothing is copied."""
    source, destination = way
    storage = open_storage(source.url)
    await storage.open()
    await enqueue(storage, "held")
    await taken(storage, lease=60_000)
    await storage.close()
    with pytest.raises(NotPossible, match="action 1 of kind email is executing at the source"):
        await copied(source, destination)
    assert source.sql("SELECT kind FROM agent_action_kind") == []
    assert destination.contents() == {}


async def test_not_back_into_the_database_that_it_came_from(way: tuple[Database, Database]) -> None:
    """The old database still has its actions as they were, so what was carried out since would be sent again."""
    source, destination = way
    await fill(source)
    await copied(source, destination)
    before = source.contents()
    with pytest.raises(NotPossible, match="the destination is on hold: edgeoutbox copy to "):
        await copied(destination, source)
    assert source.contents() == before
    assert destination.column("SELECT COUNT(*) FROM agent_action_kind WHERE paused_by LIKE 'edgeoutbox copy%'") == [0]


async def test_only_the_owner_may_copy(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """A role that does not own the tables is told who may, and the source is not paused."""
    source = make_database("sqlite", tmp_path, postgres_server, "source")
    destination = make_database("postgres", tmp_path, postgres_server, "destination")
    with PostgresDatabase(destination.conninfo) as session:
        role = f"{session.schema}_clerk"
        session(f"CREATE ROLE {role} LOGIN")
        session(f"GRANT USAGE ON SCHEMA {session.schema} TO {role}")
        session(f"GRANT ALL ON ALL TABLES IN SCHEMA {session.schema} TO {role}")
    try:
        await fill(source)
        clerk = Database(as_url(f"{destination.conninfo} user={role}"), conninfo=destination.conninfo)
        with pytest.raises(NotPossible, match="belong to another role, and only their owner may put the guard aside"):
            await copied(source, clerk)
        assert source.column("SELECT COUNT(*) FROM agent_action_kind WHERE paused_by LIKE 'edgeoutbox copy%'") == [0]
    finally:
        with PostgresDatabase(destination.conninfo) as session:
            session(f"DROP OWNED BY {role}")
            session(f"DROP ROLE {role}")


async def test_a_writer_that_does_not_end_is_not_waited_for_long(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody's transaction is open at a Postgres source, its copy gives up, and changes nothing."""
    monkeypatch.setattr(
        "edgeoutbox.storage.postgres.copying.BEGIN", (("BEGIN", ()), ("SET LOCAL lock_timeout = 50", ()))
    )
    source = make_database("postgres", tmp_path, postgres_server, "source")
    destination = make_database("sqlite", tmp_path, postgres_server, "destination")
    with PostgresDatabase(source.conninfo) as writer:
        writer("BEGIN")
        writer("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'a', '{}')")
        with pytest.raises(Exception, match="another transaction held what this one needs for too long"):
            await copied(source, destination)
        writer("COMMIT")
    assert (await copied(source, destination)).copied == 1


@pytest.mark.parametrize(
    ("src", "dst", "exit_code", "said"),
    [
        ("nowhere.db", "new.db", 3, "src: there is no database"),
        ("edgeoutbox.db", "edgeoutbox.db", 2, "dst: it is the database that src names"),
        ("edgeoutbox.db", "sqlite:///edgeoutbox.db", 2, "dst: it is the database that src names"),
        ("mysql://host/app", "new.db", 2, "url: write sqlite:///app.db"),
        ("edgeoutbox.db", "postgresql://me:geheim@127.0.0.1:1/shop", 3, "dst: the server cannot be reached"),
        ("postgresql://me:geheim@127.0.0.1:1/shop", "new.db", 3, "src: the server cannot be reached"),
        ("edgeoutbox.db", "no/such/folder/new.db", 3, "dst: the database file new.db cannot be created"),
        ("edgeoutbox.toml", "new.db", 3, "src: edgeoutbox.toml is not an SQLite database"),
        ("edgeoutbox.db", "postgresql://h/a?schema=", 2, "url: schema names the Postgres schema"),
    ],
)
def test_bad_databases(ready: Terminal, src: str, dst: str, exit_code: int, said: str) -> None:
    """What is wrong with which of the two is said, without a secret, and nothing is paused."""
    ready.run("enqueue", "email", "k", '{"notice":"message","to":"a@b.c","subject":"s","text":"t"}')
    ready.run("copy", src, dst, exit_code=exit_code)
    assert said in ready.said
    assert "geheim" not in ready.said
    assert "paused" not in ready.run("kind")


def test_database_is_not_an_option_of_copy(ready: Terminal) -> None:
    """`--database` would be a third database, so it is refused."""
    ready.run("copy", "a.db", "b.db", "--database", "c.db", exit_code=2)
    assert "copy is told its two databases as SRC and DST" in ready.said


def test_a_database_that_fails_midway_says_how_to_go_on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is on hold by then, and what went over stays; before, nothing is said of that."""
    fails_at = 0

    async def copy(*_: object, **__: object) -> AsyncIterator[Tally]:
        for _batch in range(fails_at):
            yield Tally(2)
        raise DatabaseUnavailable("the server is gone")

    monkeypatch.setattr(copying, "copy", copy)
    terminal.run("migrate", "--database", "src.db")
    terminal.run("copy", "src.db", "dst.db", exit_code=Exit.DATABASE)
    assert "on hold" not in terminal.said
    fails_at = 2
    terminal.run("copy", "src.db", "dst.db", exit_code=Exit.DATABASE)
    assert "the source is on hold; run the same again to go on" in terminal.said
    assert "the server is gone" in terminal.said
