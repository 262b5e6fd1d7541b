"""An enqueue outside of a transaction: what somebody else commits between two of its statements."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgeoutbox.connections import ANYWHERE, run_sync
from edgeoutbox.errors import DatabaseBusy, LaneBusy
from edgeoutbox.storage.protocol import Supersede
from edgeoutbox.storage.statements import enqueueing
from edgeoutbox.testing.conformance.story import a_request
from edgeoutbox.variants import ALWAYS
from tests.schema.database import SqliteDatabase
from tests.storage.interfering import interfering


@pytest.fixture
def other(database: Path) -> Iterator[SqliteDatabase]:
    """The session of somebody else."""
    with SqliteDatabase(sqlite3.connect(database, isolation_level=None)) as session:
        yield session


@pytest.fixture
def caller(database: Path, other: SqliteDatabase) -> Iterator[sqlite3.Connection]:
    """A connection in autocommit mode."""
    assert other
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        yield connection


def test_a_key_that_was_taken_and_is_free_again_is_enqueued(caller: sqlite3.Connection, other: SqliteDatabase) -> None:
    """Whoever held it was erased before it could be looked at: the enqueue tries again."""
    held = other.insert(idempotency_key="k")
    steps = interfering(
        enqueueing.enqueue(a_request("k")), enqueueing.HOLDER, lambda: other("DELETE FROM agent_action")
    )
    answer = run_sync(caller, steps, ANYWHERE)
    assert (answer.created, answer.id > held) == (True, True)
    assert other.one("SELECT id FROM agent_action WHERE idempotency_key = 'k'") == answer.id


def test_a_key_that_is_taken_and_freed_again_and_again_is_given_up() -> None:
    """The error says what happened how often, instead of trying for ever."""
    steps = enqueueing.enqueue(a_request("k"))
    asked = [next(steps)[0]] + [steps.send([])[0] for _ in range(2 * enqueueing.TRIES - 1)]
    assert asked == [enqueueing.INSERT, enqueueing.HOLDER] * enqueueing.TRIES
    with pytest.raises(DatabaseBusy, match=f"made and deleted {enqueueing.TRIES} times"):
        steps.send([])


@pytest.mark.parametrize("if_running", ["enqueue", "refuse"])
def test_an_action_that_was_claimed_just_now_is_not_superseded(
    caller: sqlite3.Connection, other: SqliteDatabase, if_running: str
) -> None:
    """It may be in the provider's hands: it goes on, and who must not enqueue behind it is told."""
    head = other.insert("lane")
    supersede = Supersede("refuse" if if_running == "refuse" else "enqueue", {"email": ALWAYS})
    steps = interfering(
        enqueueing.enqueue(a_request("new", "lane"), supersede=supersede),
        enqueueing.SUPERSEDE,
        lambda: other.claim(head),
    )
    if if_running == "refuse":
        with pytest.raises(LaneBusy, match=f"action {head} "):
            run_sync(caller, steps, ANYWHERE)
    else:
        assert run_sync(caller, steps, ANYWHERE).superseded == ()
    assert other.state(head) == "EXECUTING"
