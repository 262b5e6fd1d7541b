"""What `docs/sql.md` says in SQL runs as it stands there, on every database."""

import re
import sqlite3

import pytest

from tests.docs.blocks import blocks, part
from tests.schema.database import Database

PAGE = "docs/sql.md"


def spelled(db: Database, statement: str, library: str) -> str:
    """A statement as the page says that it is written for this database."""
    times = part(PAGE, "Times")
    [older] = re.findall(r"before that it is `(.*?)`", times)
    [postgres] = re.findall(r"On Postgres it is\n`(.*?)`", times)
    if db.dialect == "postgres":
        return statement.replace("(unixepoch() + 3600) * 1000", postgres)
    if library == "sqlite3" and sqlite3.sqlite_version_info < (3, 38):
        return statement.replace("unixepoch()", older)
    return statement


def test_the_page_about_sql_runs(db: Database, library: str) -> None:
    """Each statement does what it says, and the second run of an INSERT changes nothing."""
    for statement in blocks(part(PAGE, "Enqueue") + part(PAGE, "Times"), "sql") * 2:
        db.script(spelled(db, statement, library))
    for query in blocks(part(PAGE, "Read"), "sql")[0].splitlines():
        db(query.rstrip(";"))
    ahead = db("SELECT (due_at - created_at + 30000) / 60000 FROM agent_action ORDER BY id")
    assert ahead == [(0,), (60,)]  # minutes
    [withdraw] = blocks(part(PAGE, "Withdraw"), "sql")
    db.script(withdraw)
    assert db("SELECT state FROM agent_action ORDER BY id") == [("ADMITTED",), ("CANCELLED",)]


def test_seconds_are_refused(db: Database) -> None:
    """With the words that the page quotes."""
    [statement] = blocks(part(PAGE, "Times"), "sql")
    [says] = re.findall(r"are refused: `(.*?)`", part(PAGE, "Times"))
    db.refuses(says, statement.replace("(unixepoch() + 3600) * 1000", "1764520000").rstrip(";\n"))


@pytest.mark.sqlite_alone("Postgres has neither form")
def test_unixepoch_has_an_older_form(db: Database) -> None:
    """What the page names for an older SQLite is the same moment."""
    [older] = re.findall(r"before that it is `(.*?)`", part(PAGE, "Times"))
    assert abs(db.one(f"SELECT {older}") * 1000 - db.now()) < 60_000
