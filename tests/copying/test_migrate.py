import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from edgeoutbox import Executor, Outbox
from edgeoutbox.cli.copying import said
from edgeoutbox.states import State
from edgeoutbox.storage.postgres.schema import grants, schema_sql
from edgeoutbox.storage.protocol import Migrated
from edgeoutbox.testing import ScriptedAdapter
from edgeoutbox.testing.postgres import PostgresServer, as_url
from tests.cli.terminal import Terminal
from tests.copying.world import Database, a_request, make_database
from tests.postgres.database import PostgresDatabase

PAGE = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text(encoding="utf-8")

TABLES = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name LIKE 'agent_action%'"


@pytest.fixture
def empty(tmp_path: Path, postgres_server: PostgresServer) -> Database:
    """A schema without tables."""
    return make_database("postgres", tmp_path, postgres_server, "", empty=True)


def test_what_it_says(terminal: Terminal, empty: Database) -> None:
    """The first run says what it created, the second that nothing was to be done; both name the database."""
    for url, shown in (("new.db", str(terminal.folder / "new.db")), (empty.url, empty.url.partition("&options")[0])):
        assert f"{shown}" in terminal.run("migrate", "--database", url)
        assert terminal.run("migrate", "--database", url).endswith(": already has schema 1; nothing was changed\n")
    assert "GRANT USAGE ON SEQUENCE" in terminal.said


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (None, "created the tables of schema 2"),
        (1, "brought from schema 1 to 2"),
        (2, "already has schema 2; nothing was changed"),
        (3, "already has schema 3; nothing was changed"),
    ],
)
def test_every_migration_has_its_words(before: int | None, words: str) -> None:
    """What was found and what is there now become a sentence."""
    assert said(Migrated(before, max(2, before or 0))) == words


def test_it_makes_the_schema_of_the_url(terminal: Terminal, empty: Database) -> None:
    """A schema that the URL names is made, whatever its name."""
    with PostgresDatabase(empty.conninfo) as session:
        name = f"{session.schema} \"odd' name"
        url = as_url(psycopg.conninfo.make_conninfo(empty.conninfo, options="")) + f"&schema={quote(name)}"
        try:
            assert terminal.run("migrate", "--database", url).endswith("created the tables of schema 1\n")
            assert session.one(TABLES, name) == 8
            script = terminal.run("migrate", "--sql", "--database", url)
            session.script(script)
            session('DROP SCHEMA "' + name.replace('"', '""') + '" CASCADE')
            session.script(script)
            session.script(script)
            assert session.one(TABLES, name) == 8
            assert session.one(TABLES, session.schema) == 0
            assert session.one("SHOW search_path") != name, "the script leaves the session as it was"
        finally:
            session('DROP SCHEMA IF EXISTS "' + name.replace('"', '""') + '" CASCADE')


def test_sql_connects_to_nothing(terminal: Terminal) -> None:
    """`--sql` prints the statements of a database that cannot be reached, and those of a file that is not there."""
    printed = terminal.run("migrate", "--sql", "--database", "postgresql://nobody@127.0.0.1:1/x?schema=shop")
    assert printed.index('SET LOCAL search_path = "shop"') < printed.index("CREATE TABLE")
    assert printed.count("\nCOMMIT;") == 1
    terminal.run("migrate", "--sql", "--database", "new.db")
    assert not (terminal.folder / "new.db").exists()


def test_the_printed_statements_make_a_database(terminal: Terminal) -> None:
    """Applied by another program, they make one that the commands work with."""
    with closing(sqlite3.connect("edgeoutbox.db")) as database:
        database.executescript(terminal.run("migrate", "--sql"))
        database.execute("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', '{}')")
        database.commit()
    assert [action["idempotency_key"] for action in terminal.json("list")["actions"]] == ["k"]


def test_who_may_not_is_told(terminal: Terminal, empty: Database) -> None:
    """A role that may not create tables is told what to do."""
    with PostgresDatabase(empty.conninfo) as session:
        role = f"{session.schema}_clerk"
        session(f"CREATE ROLE {role} LOGIN")
        session(f"GRANT USAGE ON SCHEMA {session.schema} TO {role}")
        try:
            terminal.run("migrate", "--database", as_url(f"{empty.conninfo} user={role}"), exit_code=3)
            assert "this role may not make them; run 'edgeoutbox migrate' once with a role that may" in terminal.said
            assert session.one(TABLES, session.schema) == 0
        finally:
            session(f"DROP OWNED BY {role}")
            session(f"DROP ROLE {role}")


@pytest.mark.parametrize("kind", ["sqlite", "sqlite+apsw", "postgres"])
def test_two_at_once(tmp_path: Path, postgres_server: PostgresServer, kind: str) -> None:
    """Of processes that migrate at the same time one creates the tables, and the others find them."""
    database = make_database(kind, tmp_path, postgres_server, "new", empty=True)
    command = [sys.executable, "-m", "edgeoutbox", "migrate", "--database", database.url]
    running = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own
        for _ in range(3)
    ]
    outputs = [(process.communicate(timeout=60), process.returncode) for process in running]
    assert [code for _, code in outputs] == [0, 0, 0], outputs
    told = sorted(out.rpartition(": ")[2].strip() for (out, _), _ in outputs)
    assert told == ["already has schema 1; nothing was changed"] * 2 + ["created the tables of schema 1"]
    database.sql("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'a', '{}')")
    assert database.column("SELECT version FROM agent_action_schema") == [1]


def test_two_that_find_no_tables_take_turns(tmp_path: Path, empty: Database) -> None:
    """Two that both saw an empty schema wait for the same lock, and the second sees what the first made."""
    waiting = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    lock = "hashtextextended('edgeoutbox migration', 0)"
    command = [sys.executable, "-m", "edgeoutbox", "migrate", "--database", empty.url]
    with PostgresDatabase(empty.conninfo) as session:
        session(f"SELECT pg_advisory_lock({lock})")
        running = [
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own
            for _ in range(2)
        ]
        try:
            while session.one(waiting) < 2:
                assert all(process.poll() is None for process in running), "one of them does not wait"
                time.sleep(0.02)
        finally:
            session(f"SELECT pg_advisory_unlock({lock})")
            outputs = [process.communicate(timeout=60)[0] for process in running]
    assert sorted("created" in output for output in outputs) == [False, True]
    assert [process.returncode for process in running] == [0, 0]


def test_where_everything_is_current_it_waits_for_nobody(terminal: Terminal, empty: Database) -> None:
    """An open transaction that wrote keeps only a real migration waiting."""
    terminal.run("migrate", "--database", empty.url)
    with PostgresDatabase(empty.conninfo) as session:
        session("BEGIN")
        session("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', '{}')")
        assert "nothing was changed" in terminal.run("migrate", "--database", empty.url)
        session("ROLLBACK")


def test_a_schema_of_any_name_has_its_grants(empty: Database) -> None:
    """Also one whose name is a word of SQL, or has a capital letter."""
    with PostgresDatabase(empty.conninfo) as session:
        role = f"{session.schema}_reads"
        session(f"CREATE ROLE {role}")
        for name in ("select", "Shop"):
            session("BEGIN")
            session(f'CREATE SCHEMA "{name}"')
            session(f'SET LOCAL search_path = "{name}"')
            session.script(
                schema_sql().replace("\nBEGIN ISOLATION LEVEL READ COMMITTED;\n", "\n").removesuffix("COMMIT;\n")
            )
            session.script(grants(name, role))
            session("ROLLBACK")
        session(f"DROP ROLE {role}")


def test_p12_a_file_with_a_password_is_its_owners_alone(terminal: Terminal, empty: Database) -> None:
    """`init` lets nobody else read the URL that it was given; without a password it asks for no more than any file."""
    before = os.umask(0o022)
    try:
        for password, others in (("&password=x", 0), ("", 0o044)):
            terminal.run("init", "--database", empty.url + password)
            file = terminal.folder / "edgeoutbox.toml"
            assert file.stat().st_mode & 0o077 == others
            file.unlink()
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("database", "words"),
    [
        ("host=h password=hunter2", "write postgresql://user@host/name"),
        ("postgresql://u:[hunter2@h/x", "it cannot be read"),
        ("postgresql://h/x?scheme=hunter2", "libpq does not know parameter scheme"),
        ("postgresql://h:hunter2/x", "port is a number"),
    ],
)
def test_p12_a_database_that_cannot_be_meant_is_refused_without_its_values(
    terminal: Terminal, database: str, words: str
) -> None:
    """By whichever command, and no file of that name is made."""
    for command in (["run"], ["migrate", "--sql"], ["init"], ["doctor"]):
        terminal.run(*command, "--database", database, exit_code=2)
        assert words in terminal.said
        assert "hunter2" not in terminal.said
    assert list(terminal.folder.iterdir()) == []


async def test_the_grants_of_the_page_suffice(empty: Database, terminal: Terminal) -> None:
    """A role with what the page grants, and nothing more, enqueues and carries out; `migrate` says the same."""
    [statements] = re.findall(r"```sql\n(GRANT .*?)```", PAGE, re.DOTALL)
    assert statements == grants("edgeoutbox", "shop")
    with PostgresDatabase(empty.conninfo) as session:
        role, schema = f"{session.schema}_runs", session.schema
        terminal.process("migrate", "--database", empty.url, check=True)
        session(f"CREATE ROLE {role} LOGIN")
        session.script(statements.replace("edgeoutbox", schema).replace("TO shop", f"TO {role}"))
        try:
            hooked = ScriptedAdapter("email")
            async with Outbox(as_url(f"{empty.conninfo} user={role}"), [hooked]) as outbox, Executor(outbox):
                enqueued = await outbox.enqueue(a_request("a", "lane"))
                assert (await outbox.wait(enqueued.id, timeout=20)).state is State.DONE
                await outbox.erase("nobody")
                await outbox.pause("email", "anna")
            with (
                PostgresDatabase(f"{empty.conninfo} user={role}") as plain,
                pytest.raises(psycopg.Error, match="permission denied"),
            ):
                plain("CREATE TABLE mine (id int)")
        finally:
            session(f"DROP OWNED BY {role}")
            session(f"DROP ROLE {role}")


def test_copy_says_what_it_did(ready: Terminal, empty: Database) -> None:
    """The command's words and its JSON: what was copied, what was there, what is paused, how to go back."""
    for key in ("a", "b"):
        ready.run("enqueue", "email", key, '{"notice":"message","to":"a@b.c","subject":"s","text":"t"}')
    printed = ready.run("copy", "edgeoutbox.db", empty.url)
    assert printed.startswith("copied 2 actions to postgresql:")
    assert "created the tables of schema 1" in ready.said
    assert f"paused at {ready.folder / 'edgeoutbox.db'}: email." in ready.said
    assert "edgeoutbox resume KIND" in ready.said
    assert json.loads(ready.run("copy", "edgeoutbox.db", empty.url, "--json")) == {
        "copied": 0,
        "present": 2,
        "left": [],
        "paused": ["email"],
    }
    assert ready.json("list", "--database", empty.url)["actions"][0]["idempotency_key"] == "b"
    empty.sql("DELETE FROM agent_action WHERE idempotency_key = 'a'")
    empty.sql("DELETE FROM agent_action_copied")
    empty.sql("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('slack', 'a', '{}')")
    ready.run("copy", "edgeoutbox.db", empty.url, exit_code=1)
    assert "action 1 of kind email: the destination has an action of another kind or payload" in ready.said


def test_doctor_does_not_advise_to_resume_what_was_copied(ready: Terminal, empty: Database) -> None:
    """At the source `doctor` says where the actions are carried out; at the destination it looks at Postgres."""
    ready.run("enqueue", "email", "a", '{"notice":"message","to":"a@b.c","subject":"s","text":"t"}')
    ready.run("copy", "edgeoutbox.db", empty.url)
    found = {check["name"]: check for check in json.loads(ready.run("doctor", "--json", exit_code=1))["checks"]}
    assert "would be sent a second time here" in found["kind email"]["detail"]
    assert "resume" not in found["kind email"]["detail"]
    ready.run("run", "--until-idle", "--database", empty.url)
    assert "1 ended; nothing waits" in ready.said
    checks = json.loads(ready.run("doctor", "--json", "--database", empty.url))["checks"]
    assert [check["name"] for check in checks[:4]] == ["database", "schema", "postgres", "executors"]


def test_other_commands_make_no_tables(terminal: Terminal, empty: Database) -> None:
    """A command that only asks refuses a database without tables, and says how to make them."""
    terminal.run("list", "--database", empty.url, exit_code=3)
    assert "the database has no edgeoutbox tables in the schema" in terminal.said
    assert "make them with 'edgeoutbox migrate'" in terminal.said
    with PostgresDatabase(empty.conninfo) as session:
        assert session.one(TABLES, session.schema) == 0
    assert "created the tables" in terminal.run("init", "--database", empty.url) + terminal.said
