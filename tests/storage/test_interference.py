"""What somebody else commits between two statements of an enqueue."""

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
    """The session of somebody else, who does not wait for locks."""
    with SqliteDatabase(sqlite3.connect(database, isolation_level=None, timeout=0)) as session:
        yield session


@pytest.fixture
def caller(database: Path, other: SqliteDatabase) -> Iterator[sqlite3.Connection]:
    """A connection that begins a transaction by itself, with the first change and not with what is read before."""
    assert other
    with closing(sqlite3.connect(database)) as connection:
        yield connection


@pytest.fixture
def autocommit(database: Path, other: SqliteDatabase) -> Iterator[sqlite3.Connection]:
    """A connection whose statements commit by themselves."""
    assert other
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        yield connection


def test_a_key_that_was_taken_and_is_free_again_is_enqueued() -> None:
    """Whoever held it was erased before it could be looked at: the enqueue tries again."""
    steps = enqueueing.enqueue(a_request("k"))
    asked = [next(steps)[0], steps.send([])[0], steps.send([])[0]]
    assert asked == [enqueueing.INSERT, enqueueing.HOLDER, enqueueing.INSERT]
    with pytest.raises(StopIteration) as done:
        steps.send([(7,)])
    assert (done.value.value.id, done.value.value.created) == (7, True)


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


def test_nobody_claims_between_the_statements_of_a_supersede(
    autocommit: sqlite3.Connection, other: SqliteDatabase
) -> None:
    """Where each statement would commit by itself it has a transaction of its own, which keeps others out."""
    head = other.insert("lane")
    refused = []

    def claim() -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.claim(head)
        refused.append(head)

    supersede = Supersede("enqueue", {"email": ALWAYS})
    steps = interfering(enqueueing.enqueue(a_request("new", "lane"), supersede=supersede), enqueueing.SUPERSEDE, claim)
    assert run_sync(autocommit, steps, ANYWHERE).superseded == (head,)
    assert (refused, other.state(head)) == ([head], "CANCELLED")
