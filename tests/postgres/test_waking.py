"""What is notified: that an action can run now, that one ended, that a kind was resumed; and nothing else."""

# ruff: noqa: S608 - statements of the test's own making

from collections.abc import Callable, Iterator
from typing import TypeAlias

import psycopg
import pytest

from edgeoutbox.states import State
from tests.postgres.database import PostgresDatabase
from tests.schema.database import FAR, LONG_AGO, step_to

Heard: TypeAlias = Callable[[], int]
"""How many notifications came from the test's schema since it was last asked."""


@pytest.fixture
def heard(db: PostgresDatabase) -> Iterator[Heard]:
    """Another session that listens."""
    with psycopg.connect(db.conninfo, autocommit=True) as listening:
        listening.execute("LISTEN edgeoutbox")

        def counted() -> int:
            # What was committed before this one was sent before it too.
            db("SELECT pg_notify('edgeoutbox', 'that is all')")
            count = 0
            for notice in listening.notifies(timeout=20):
                if notice.payload == "that is all":
                    return count
                count += notice.payload == db.schema
            raise AssertionError("nothing is heard")

        yield counted


PLAIN = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', '{}')"
REPEAT = f"{PLAIN} ON CONFLICT (idempotency_key) DO NOTHING"


def test_an_insert_of_what_can_run_wakes(db: PostgresDatabase, heard: Heard) -> None:
    """Once per transaction, however many it inserts, and not for the repeat of a key."""
    db(PLAIN)
    assert heard() == 1
    db(REPEAT)
    assert heard() == 0
    db("BEGIN")
    for _ in range(5):
        db.insert()
    db("COMMIT")
    assert heard() == 1


def test_an_insert_of_what_has_to_wait_wakes_nobody(db: PostgresDatabase, heard: Heard) -> None:
    """A proposal waits for a person, an action behind another for its turn."""
    db.insert(state="PROPOSED")
    head = db.insert("lane", state="PROPOSED")
    db.insert("lane")
    assert heard() == 0
    db("UPDATE agent_action SET state = 'ADMITTED' WHERE id = ?", head)
    assert heard() == 1


def test_what_changes_behind_a_head_wakes_nobody(db: PostgresDatabase, heard: Heard) -> None:
    """Neither its admission nor an earlier time lets it run."""
    db.insert("lane")
    behind = db.insert("lane", state="PROPOSED")
    heard()
    db("UPDATE agent_action SET state = 'ADMITTED' WHERE id = ?", behind)
    db("UPDATE agent_action SET due_at = due_at - 1 WHERE id = ?", behind)
    assert heard() == 0


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "ended"])
def test_the_next_of_a_lane_wakes(db: PostgresDatabase, heard: Heard, deleted: bool) -> None:
    """Whoever became head can run now."""
    head, _ = db.insert("lane"), db.insert("lane")
    heard()
    db("BEGIN")
    db("SET LOCAL edgeoutbox.quiet = 'on'")
    if deleted:
        db("DELETE FROM agent_action WHERE id = ?", head)
    else:
        db.end(head, State.CANCELLED)
    db("SET LOCAL edgeoutbox.quiet = 'off'")
    db("COMMIT")
    assert heard() == 1


@pytest.mark.parametrize("state", [State.DONE, State.UNCERTAIN, State.FAILED, State.CANCELLED])
def test_an_end_wakes_who_waits_for_it(db: PostgresDatabase, heard: Heard, state: State) -> None:
    """Programs wait for an action to end, in whichever state."""
    action = db.bring_to(State.EXECUTING)
    heard()
    db.end(action, state)
    assert heard() == 1


def test_a_claim_and_a_fence_wake_nobody(db: PostgresDatabase, heard: Heard) -> None:
    """They give nobody anything to do, nor does the claim of a lost lease."""
    action = db.insert()
    heard()
    db.claim(action, LONG_AGO)
    db.claim(action)
    db.fence(action)
    assert heard() == 0


def test_what_is_given_back_or_becomes_due_earlier_wakes(db: PostgresDatabase, heard: Heard) -> None:
    """Another executor may take it now; what is put off concerns nobody."""
    action = db.bring_to(State.EXECUTING)
    heard()
    db(f"UPDATE agent_action SET {step_to(State.ADMITTED)}, due_at = {FAR} WHERE id = {action}")
    assert heard() == 1
    db("UPDATE agent_action SET due_at = due_at - 1")
    assert heard() == 1
    db("UPDATE agent_action SET due_at = due_at + 1")
    assert heard() == 0


@pytest.mark.parametrize(
    ("column", "was", "becomes", "wakes"),
    [
        ("paused_by", "'ann'", "NULL", 1),
        ("paused_by", "NULL", "'ann'", 0),
        ("cooling_until", "5000", "NULL", 1),
        ("cooling_until", "5000", "4000", 1),
        ("cooling_until", "5000", "6000", 0),
        ("cooling_until", "NULL", "5000", 0),
    ],
)
def test_a_kind_that_goes_on_wakes(
    db: PostgresDatabase, heard: Heard, column: str, was: str, becomes: str, wakes: int
) -> None:
    """A resumed kind and an earlier end of its cooling; a pause or a longer cooling wakes nobody."""
    db(f"INSERT INTO agent_action_kind (kind, {column}) VALUES ('email', {was})")
    db(f"UPDATE agent_action_kind SET {column} = {becomes}")
    assert heard() == wakes


def test_a_quiet_transaction_wakes_nobody(db: PostgresDatabase, heard: Heard) -> None:
    """Nothing of it is notified, its deferred promotions included; the next transaction is heard again."""
    db("BEGIN")
    db("SET LOCAL edgeoutbox.quiet = 'on'")
    head, _ = db.insert("lane"), db.insert("lane")
    db.end(head, State.CANCELLED)
    db("COMMIT")
    assert heard() == 0
    db.insert()
    assert heard() == 1
