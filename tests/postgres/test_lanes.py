"""P4, P5: heads and ids of lanes while several sessions write, in each order in which they can commit."""

# ruff: noqa: S608 - statements of the test's own making

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from edgeoutbox.states import State
from tests.postgres.database import Connect, PostgresDatabase
from tests.postgres.sessions import PATIENCE, meanwhile, until_blocked_by
from tests.schema.database import FAR, step_to

INSERT = "INSERT INTO agent_action (kind, idempotency_key, payload, lane_key) VALUES ('email', ?, '{}', ?) RETURNING id"
CANCEL = f"UPDATE agent_action SET {step_to(State.CANCELLED)} WHERE id = ?"
DELETE = "DELETE FROM agent_action WHERE id = ?"
ENDS = pytest.mark.parametrize("leave", [CANCEL, DELETE], ids=["ended", "deleted"])
"""Both ways in which a head leaves its lane."""

NOW_PLEASE = {
    CANCEL: "SET CONSTRAINTS agent_action_lane_head IMMEDIATE",
    DELETE: "SET CONSTRAINTS agent_action_lane_head_deleted IMMEDIATE",
    INSERT: "SET CONSTRAINTS agent_action_lane_head_inserted IMMEDIATE",
}


# --- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_p5_within_a_lane_the_order_of_ids_is_the_order_of_commits(connect: Connect, how: str) -> None:
    """A second INSERT into the lane gets its id only when the first transaction is over, however it ended."""
    one, two = connect(), connect()
    one("BEGIN")
    first = one.insert("lane", idempotency_key="first")
    with meanwhile(two, INSERT, "second", "lane") as inserting:
        one(how)
    [(second,)] = inserting.result()
    assert second > first
    assert two.heads("lane") == [first if how == "COMMIT" else second]


def test_p5_other_lanes_and_lone_actions_wait_for_nobody(connect: Connect) -> None:
    """An open transaction holds up its own lane only."""
    one, two = connect(), connect()
    one("BEGIN")
    one.insert("lane", idempotency_key="a")
    two("SET lock_timeout = '100ms'")
    two.insert("other", idempotency_key="b")
    two.insert(idempotency_key="c")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        two.insert("lane", idempotency_key="d")


def test_p5_one_insert_of_many_rows_makes_one_head(db: PostgresDatabase) -> None:
    """The rows of a statement see those before them."""
    db(
        "INSERT INTO agent_action (kind, idempotency_key, payload, lane_key) "
        "SELECT 'email', 'k' || n, '{}', 'lane' || n % 2 FROM generate_series(1, 6) AS n"
    )
    assert (db.heads("lane0"), db.heads("lane1")) == ([2], [1])


# --- the head's end and an insert behind it --------------------------------------------------------------------------


@ENDS
def test_p5_an_insert_that_commits_before_the_end_of_the_head_it_saw_becomes_head(connect: Connect, leave: str) -> None:
    """The end looks again at its commit, and passes the lane on to what it could not see before."""
    one, two = connect(), connect()
    head = one.insert("lane")
    one("BEGIN")
    one(leave, head)
    behind = two.insert("lane", idempotency_key="behind")
    assert two.heads("lane") == [head]
    one("COMMIT")
    assert two.heads("lane") == [behind]


@ENDS
def test_p5_an_insert_that_commits_after_the_end_of_the_head_it_saw_becomes_head(connect: Connect, leave: str) -> None:
    """The insert looks again at its commit, and finds that nobody is ahead any more."""
    one, two = connect(), connect()
    head = one.insert("lane")
    two("BEGIN")
    behind = two.insert("lane", idempotency_key="behind")
    one(leave, head)
    assert one.heads("lane") == []
    two("COMMIT")
    assert one.heads("lane") == [behind]


@ENDS
def test_p5_an_insert_that_commits_while_the_end_commits_waits_and_becomes_head(connect: Connect, leave: str) -> None:
    """The end was first to look and found nobody; the insert looks when the end is there to see."""
    one, two = connect(), connect()
    head = one.insert("lane")
    two("BEGIN")
    behind = two.insert("lane", idempotency_key="behind")
    one("BEGIN")
    one(leave, head)
    one(NOW_PLEASE[leave])
    with meanwhile(two, "COMMIT"):
        one("COMMIT")
    assert one.heads("lane") == [behind]


@ENDS
def test_p5_an_end_that_commits_while_the_insert_commits_waits_and_passes_the_lane_on(
    connect: Connect, leave: str
) -> None:
    """The insert was first to look and found the head open; the end looks when the insert is there to see."""
    one, two = connect(), connect()
    head = one.insert("lane")
    two("BEGIN")
    behind = two.insert("lane", idempotency_key="behind")
    two(NOW_PLEASE[INSERT])
    with meanwhile(one, leave, head):
        two("COMMIT")
    assert one.heads("lane") == [behind]


@ENDS
def test_p5_a_transaction_can_see_the_new_head_before_it_commits(db: PostgresDatabase, leave: str) -> None:
    """SET CONSTRAINTS makes the lane pass on at once, so that an executor settles and claims in one transaction."""
    head, behind = db.insert("lane"), db.insert("lane")
    db("BEGIN")
    db(leave, head)
    assert db.heads("lane") == []
    db(NOW_PLEASE[leave])
    assert db.heads("lane") == [behind]
    db.claim(behind)
    db("COMMIT")
    assert db.state(behind) == "EXECUTING"


def test_p5_an_end_that_is_rolled_back_to_a_savepoint_leaves_the_head(db: PostgresDatabase) -> None:
    """What did not happen passes nothing on."""
    head, _ = db.insert("lane"), db.insert("lane")
    db("BEGIN")
    db("SAVEPOINT before")
    db(CANCEL, head)
    db("ROLLBACK TO before")
    db("COMMIT")
    assert db.heads("lane") == [head]


# --- the one that follows is busy ------------------------------------------------------------------------------------


@ENDS
def test_p5_a_follower_that_leaves_meanwhile_is_passed_over(connect: Connect, leave: str) -> None:
    """The lane goes to the third when the second is withdrawn while the first ends."""
    one, two = connect(), connect()
    first, second, third = (one.insert("lane") for _ in range(3))
    one("BEGIN")
    one(leave, second)
    with meanwhile(two, CANCEL, first):
        one("COMMIT")
    assert two.heads("lane") == [third]


@ENDS
def test_p5_a_lane_whose_waiting_actions_are_superseded_while_its_head_ends_does_not_deadlock(
    connect: Connect, leave: str
) -> None:
    """Whoever ends a head waits for the follower before it takes the lane, which the other needs to commit."""
    one, two = connect(), connect()
    head, waiting = one.insert("lane"), one.insert("lane")
    one("BEGIN")
    one(CANCEL, waiting)
    new = one.insert("lane")
    with meanwhile(two, leave, head) as ending:
        one("COMMIT")
    assert ending.exception() is None
    assert two.heads("lane") == [new]


def test_p5_a_follower_that_came_and_left_while_the_end_waited_for_the_lane_is_passed_over(connect: Connect) -> None:
    """The end finds a follower that it could not see at first, waits for its withdrawal, and goes on to the next."""
    ending, inserting, holding, withdrawing = (connect() for _ in range(4))
    head = ending.insert("lane")
    inserting("BEGIN")
    second = inserting.insert("lane", idempotency_key="second")
    third = inserting.insert("lane", idempotency_key="third")
    inserting(NOW_PLEASE[INSERT])
    holding("BEGIN")
    hold = "SELECT pg_advisory_xact_lock(hashtextextended('lane', -('agent_action'::regclass::oid::bigint)))::text"
    with meanwhile(holding, hold) as held, meanwhile(ending, CANCEL, head):
        inserting("COMMIT")
        held.result(PATIENCE)
        withdrawing("BEGIN")
        withdrawing(CANCEL, second)
        holding("COMMIT")
        until_blocked_by(ending, withdrawing)
        withdrawing("COMMIT")
    assert ending.heads("lane") == [third]


# --- snapshots that are too old --------------------------------------------------------------------------------------

OLD_SNAPSHOTS = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])


def _begin(session: PostgresDatabase, level: str) -> None:
    session(f"BEGIN ISOLATION LEVEL {level}")
    session("SELECT COUNT(*) FROM agent_action")


@OLD_SNAPSHOTS
def test_p5_an_old_snapshot_may_insert_behind_a_head_that_stays(connect: Connect, level: str) -> None:
    """Whoever is ahead was not touched, and passes the lane on when it ends."""
    one, two = connect(), connect()
    head = one.insert("lane")
    _begin(two, level)
    behind = two.insert("lane", idempotency_key="behind")
    two("COMMIT")
    assert one.heads("lane") == [head]
    one.end(head, State.CANCELLED)
    assert one.heads("lane") == [behind]


@OLD_SNAPSHOTS
def test_p5_an_old_snapshot_fills_a_lane_of_its_own(connect: Connect, level: str) -> None:
    """Its own rows are no reason to fail."""
    one, two = connect(), connect()
    _begin(two, level)
    first, _, _ = (two.insert("lane") for _ in range(3))
    two("COMMIT")
    assert one.heads("lane") == [first]


@OLD_SNAPSHOTS
def test_p5_an_end_waits_for_the_old_snapshot_that_counts_on_its_head(connect: Connect, level: str) -> None:
    """From its look at the head until its commit, the insert holds the head."""
    one, two = connect(), connect()
    head = one.insert("lane")
    _begin(two, level)
    behind = two.insert("lane", idempotency_key="behind")
    two(NOW_PLEASE[INSERT])
    with meanwhile(one, CANCEL, head):
        two("COMMIT")
    assert one.heads("lane") == [behind]


@OLD_SNAPSHOTS
@pytest.mark.parametrize(
    "change", [CANCEL, DELETE, f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = ?"], ids=str.split
)
def test_p5_an_old_snapshot_does_not_insert_behind_a_head_that_changed(
    connect: Connect, level: str, change: str
) -> None:
    """It fails as any transaction does that has to be run again, and leaves no stalled lane."""
    one, two = connect(), connect()
    head = one.insert("lane")
    _begin(two, level)
    one(change, head)
    two.insert("lane", idempotency_key="behind")
    with pytest.raises(psycopg.errors.SerializationFailure):
        two("COMMIT")
    assert one("SELECT idempotency_key FROM agent_action WHERE idempotency_key = 'behind'") == []
    _begin(two, level)
    two.insert("lane", idempotency_key="behind")
    two("COMMIT")
    assert len(one.heads("lane")) == 1


@OLD_SNAPSHOTS
def test_p5_an_old_snapshot_makes_no_second_head(connect: Connect, level: str) -> None:
    """A head that it cannot see is there all the same."""
    one, two = connect(), connect()
    _begin(two, level)
    head = one.insert("lane")
    with pytest.raises(psycopg.errors.UniqueViolation, match="ux_agent_action_lane_head"):
        two.insert("lane", idempotency_key="second head")
    two("ROLLBACK")
    assert one.heads("lane") == [head]


@OLD_SNAPSHOTS
@ENDS
def test_p5_an_old_snapshot_takes_no_head_from_its_lane(connect: Connect, level: str, leave: str) -> None:
    """It could not see what was inserted behind, and the lane would stall."""
    one, two = connect(), connect()
    head = one.insert("lane")
    _begin(two, level)
    one.insert("lane")
    two(leave, head)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="use READ COMMITTED"):
        two("COMMIT")
    assert one.heads("lane") == [head]


@OLD_SNAPSHOTS
@ENDS
def test_an_old_snapshot_ends_and_deletes_what_heads_no_lane(connect: Connect, level: str, leave: str) -> None:
    """Lone actions and those behind a head concern nobody else."""
    one, two = connect(), connect()
    head, behind, lone = one.insert("lane"), one.insert("lane"), one.insert()
    _begin(two, level)
    two(leave, behind)
    two(leave, lone)
    two("COMMIT")
    assert one.heads("lane") == [head]


# --- one key, two transactions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["lane", None])
@pytest.mark.parametrize(("how", "kept"), [("COMMIT", "first"), ("ROLLBACK", "second")])
def test_p2_a_key_that_two_transactions_enqueue_at_once_is_stored_once(
    connect: Connect, lane: str | None, how: str, kept: str
) -> None:
    """The second waits for the first, and inserts only if that was rolled back."""
    one, two = connect(), connect()
    one("BEGIN")
    one.insert(lane, idempotency_key="key", run_id="first")
    repeat = (
        "INSERT INTO agent_action (kind, idempotency_key, payload, lane_key, run_id) "
        "VALUES ('email', 'key', '{}', ?, 'second') ON CONFLICT (idempotency_key) DO NOTHING"
    )
    with meanwhile(two, repeat, lane):
        one(how)
    assert two("SELECT run_id, is_head FROM agent_action") == [(kept, 1)]


def test_p1_an_insert_exists_exactly_when_its_transaction_commits(connect: Connect) -> None:
    """Rolled back it leaves nothing, committed it is there."""
    one, two = connect(), connect()
    for key, how in (("lost", "ROLLBACK"), ("kept", "COMMIT")):
        one("BEGIN")
        one.insert("lane", idempotency_key=key)
        assert two("SELECT 1 FROM agent_action") == []
        one(how)
    assert two("SELECT idempotency_key FROM agent_action") == [("kept",)]


# --- without the guard -----------------------------------------------------------------------------------------------


def test_p4_two_executing_in_a_lane_break_the_index_too(db: PostgresDatabase) -> None:
    """Without the guard of the steps, the unique index still refuses a second executing action of a lane."""
    first, second = db.insert("lane"), db.insert("lane")
    db.claim(first)
    db("ALTER TABLE agent_action DISABLE TRIGGER guard_agent_action_step")
    db.refuses(
        "ux_agent_action_lane_executing", f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = {second}"
    )


def test_p5_two_heads_in_a_lane_break_the_index_too(db: PostgresDatabase) -> None:
    """Without the guard of heads, the unique index still refuses a second one."""
    _, second = db.insert("lane"), db.insert("lane")
    db("ALTER TABLE agent_action DISABLE TRIGGER guard_agent_action")
    db.refuses("ux_agent_action_lane_head", "UPDATE agent_action SET is_head = 1 WHERE id = ?", second)


# --- all at once -----------------------------------------------------------------------------------------------------


def test_p5_whatever_several_sessions_do_each_lane_has_its_earliest_as_head(connect: Connect) -> None:
    """Inserts, ends and deletes of four sessions in three lanes leave every lane with one head, the earliest."""
    sessions = [connect() for _ in range(4)]
    earliest = "SELECT MIN(id) FROM agent_action WHERE lane_key = ?"
    # Locked before it is ended: two sessions may choose the same one.
    earliest_waiting = (
        "SELECT id FROM agent_action WHERE lane_key = ? AND state = 'ADMITTED' ORDER BY id LIMIT 1 FOR NO KEY UPDATE"
    )

    def work(session: PostgresDatabase, chance: random.Random) -> None:
        for turn in range(100):
            lane = f"lane{chance.randrange(3)}"
            match chance.choices(["insert", "end", "delete"], (5, 3, 1))[0]:
                case "insert":
                    session(INSERT, f"{session.pid}:{turn}", lane)
                case "end":
                    session(f"UPDATE agent_action SET {step_to(State.CANCELLED)} WHERE id = ({earliest_waiting})", lane)
                case _:
                    session(f"DELETE FROM agent_action WHERE id = ({earliest})", lane)

    with ThreadPoolExecutor(len(sessions)) as pool:
        for done in [pool.submit(work, session, random.Random(seed)) for seed, session in enumerate(sessions)]:  # noqa: S311 - a seeded order of steps
            done.result(60)
    lanes = sessions[0](
        "SELECT lane_key, MIN(id), MIN(id) FILTER (WHERE is_head = 1), COUNT(*) FILTER (WHERE is_head = 1) "
        "FROM agent_action WHERE state = 'ADMITTED' GROUP BY lane_key"
    )
    assert lanes
    assert [(head, heads) for _, _, head, heads in lanes] == [(earliest, 1) for _, earliest, _, _ in lanes]
    for lane, earliest, _, _ in lanes:
        sessions[0].claim(earliest, FAR)
        assert sessions[0].heads(lane) == [earliest]
