"""How SQLite spells the words of shared statements."""

import sqlite3

import pytest

from edgeoutbox.storage.sqlite.spelling import COLUMNS, NOW, spell
from edgeoutbox.storage.statements import rows


@pytest.mark.parametrize(
    ("shared", "spelled"),
    [
        ("SELECT edgeoutbox_now()", f"SELECT {NOW}"),
        ("SELECT edgeoutbox_text(payload)", "SELECT CAST(payload AS BLOB)"),
        ("SELECT edgeoutbox_text(action.payload), 1", "SELECT CAST(action.payload AS BLOB), 1"),
        ("UPDATE t SET a = ? WHERE b < edgeoutbox_now() + ?", f"UPDATE t SET a = ? WHERE b < {NOW} + ?"),
        ("SELECT 1 FROM t AS a WHERE edgeoutbox_open(a)", "SELECT 1 FROM t AS a WHERE a.stop_reason IS NULL"),
        ("SELECT 'edgeoutbox_now()'", "SELECT 'edgeoutbox_now()'"),
        ("SELECT 'it''s', edgeoutbox_now()", f"SELECT 'it''s', {NOW}"),
    ],
)
def test_the_words_are_spelled_and_values_are_not(shared: str, spelled: str) -> None:
    """A word in quotes is a value, for example of a condition; what was spelled before stays as it is."""
    assert spell(shared) == spelled
    assert spell(spelled) == spelled


def test_every_column_of_an_action_can_be_read_whatever_its_encoding() -> None:
    """SQLite's own statements read the shared columns, in their order, with free text as bytes."""
    assert COLUMNS.count("AS BLOB") == len(rows.FREE_TEXT)
    assert "edgeoutbox_" not in COLUMNS
    assert len(COLUMNS.split(", ")) == len(rows.NAMES)


def test_sqlite_runs_what_was_spelled() -> None:
    """The clock is a whole number of milliseconds, and text that is not UTF-8 is read."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (said TEXT)")
    connection.execute("INSERT INTO t VALUES (CAST(x'ff41' AS TEXT))")
    [(now, said)] = connection.execute(spell("SELECT edgeoutbox_now(), edgeoutbox_text(t.said) FROM t")).fetchall()
    connection.close()
    assert isinstance(now, int)
    assert now > 1_700_000_000_000
    assert rows.text(said) == r"\xffA"
    assert rows.text("as Postgres reads it") == "as Postgres reads it"
