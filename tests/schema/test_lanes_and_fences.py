"""P3, P4, P5 and P8 in the database: heads, fences, the dispatch log, the policy of kinds, and deletes."""

import pytest

from edgeoutbox.states import State
from edgeoutbox.storage.sqlite.spelling import NOW
from tests.schema.database import FAR, LONG_AGO, RECLAIM, Database, step_to

SQLITE_ALONE = pytest.mark.sqlite_alone

# --- lanes -----------------------------------------------------------------------------------------------------------


def test_p5_the_first_of_a_lane_is_its_head(db: Database) -> None:
    """Later actions of the lane wait behind it; other lanes and lone actions do not, from the insert on."""
    db("BEGIN")
    first, _, _ = (db.insert("lane") for _ in range(3))
    other, lone, lonely = db.insert("other"), db.insert(), db.insert()
    assert db.heads("lane") == [first]
    assert db.heads("other") == [other]
    assert db("SELECT is_head FROM agent_action WHERE id IN (?, ?)", lone, lonely) == [(1,), (1,)]


def test_p5_a_lane_that_was_over_begins_anew(db: Database) -> None:
    """What has ended is in nobody's way, from the insert on."""
    db.end(db.insert("lane"), State.CANCELLED)
    db("BEGIN")
    first = db.insert("lane")
    assert db.heads("lane") == [first]


def test_p5_what_comes_while_its_lane_executes_waits(db: Database) -> None:
    """The head stays the head while it executes."""
    first = db.insert("lane")
    db.claim(first)
    db.insert("lane")
    assert db.heads("lane") == [first]


def test_p5_a_proposal_heads_its_lane(db: Database) -> None:
    """What waits for approval holds its lane as much as what waits for its time."""
    proposal = db.insert("lane", state="PROPOSED")
    behind = db.insert("lane")
    assert db.heads("lane") == [proposal]
    db.refuses(
        "an earlier action of the lane has not ended",
        f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = {behind}",
    )


@pytest.mark.parametrize("follower", [State.PROPOSED, State.ADMITTED])
@pytest.mark.parametrize("state", [State.DONE, State.UNCERTAIN, State.FAILED, State.CANCELLED])
def test_p5_an_end_passes_the_head_on(db: Database, state: State, follower: State) -> None:
    """However the head ends, the lane's next open action follows it."""
    first, second, third = db.insert("lane"), db.insert("lane"), db.insert("lane", state=follower)
    db.end(second, State.CANCELLED)
    if state is not State.CANCELLED:
        db.claim(first)
    db.end(first, state)
    assert db.heads("lane") == [third]


def test_p5_an_end_behind_the_head_moves_nothing(db: Database) -> None:
    """An action withdrawn from the middle of a lane leaves the head where it is."""
    first, second, _ = (db.insert("lane") for _ in range(3))
    db.end(second, State.CANCELLED)
    assert db.heads("lane") == [first]


def test_p5_a_return_keeps_the_head(db: Database) -> None:
    """An action that waits for its retry still holds its lane."""
    first, second = db.insert("lane"), db.insert("lane")
    db.claim(first)
    db(f"UPDATE agent_action SET {step_to(State.ADMITTED)}, due_at = {FAR} WHERE id = {first}")
    assert db.heads("lane") == [first]
    db.refuses(
        "an earlier action of the lane", f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = {second}"
    )


@pytest.mark.parametrize("recursive", [0, pytest.param(1, marks=SQLITE_ALONE("a setting of SQLite"))])
@pytest.mark.parametrize("state", [State.PROPOSED, State.ADMITTED, State.EXECUTING])
def test_p5_a_deleted_head_passes_the_lane_on(db: Database, state: State, recursive: int) -> None:
    """Erasing a head, in any state, does not leave its lane without one."""
    if db.dialect == "sqlite":
        db(f"PRAGMA recursive_triggers = {recursive}")
    first = db.insert("lane", state="PROPOSED" if state is State.PROPOSED else "ADMITTED")
    second = db.insert("lane")
    if state is State.EXECUTING:
        db.claim(first)
    db("DELETE FROM agent_action WHERE id = ?", first)
    assert db.heads("lane") == [second]
    db.claim(second)


def test_p5_a_whole_lane_deleted_at_once_leaves_the_rest_in_order(db: Database) -> None:
    """Deleting several of a lane in one statement, the head among them, leaves one head: the earliest left."""
    ids = [db.insert("lane") for _ in range(6)]
    db("DELETE FROM agent_action WHERE id IN (?, ?, ?)", ids[0], ids[1], ids[3])
    assert db.heads("lane") == [ids[2]]


def test_p5_a_deleted_ended_action_changes_no_head(db: Database) -> None:
    """The sweep of what has ended leaves the lane as it is."""
    first, second, _ = (db.insert("lane") for _ in range(3))
    db.end(first, State.CANCELLED)
    db("DELETE FROM agent_action WHERE id = ?", first)
    assert db.heads("lane") == [second]


@pytest.mark.parametrize("state", [State.PROPOSED, State.ADMITTED, State.EXECUTING])
def test_p3_nobody_makes_himself_head(db: Database, state: State) -> None:
    """is_head cannot be set behind another, nor taken from the head, whatever that waits for."""
    first = db.insert("lane", state="PROPOSED" if state is State.PROPOSED else "ADMITTED")
    if state is State.EXECUTING:
        db.claim(first)
    second, lone = db.insert("lane"), db.insert()
    db.refuses("is_head is kept by the database", "UPDATE agent_action SET is_head = 1 WHERE id = ?", second)
    db.refuses("is_head is kept by the database", "UPDATE agent_action SET is_head = 0 WHERE id = ?", first)
    db.refuses("is_head is kept by the database", "UPDATE agent_action SET is_head = 0 WHERE id = ?", lone)
    db.refuses(
        "agent_action",
        f"UPDATE agent_action SET {step_to(State.EXECUTING)}, is_head = 1 WHERE id = {second}",
    )


def test_p4_only_the_head_of_a_lane_is_claimed(db: Database) -> None:
    """A claim behind the head is refused, also when the head executes."""
    first, second = db.insert("lane"), db.insert("lane")
    claim = f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = {second}"
    db.refuses("an earlier action of the lane has not ended", claim)
    db.claim(first)
    db.refuses("an earlier action of the lane has not ended", claim)


@SQLITE_ALONE("the guard's rules are triggers of their own; tests/postgres has its own")
@pytest.mark.parametrize("verb", ["UPDATE", "UPDATE OR REPLACE"])
def test_p4_two_executing_in_a_lane_break_the_index_too(db: Database, verb: str) -> None:
    """Without the guard of heads, the unique index still refuses a second executing action of a lane."""
    first, second = db.insert("lane"), db.insert("lane")
    db.claim(first)
    db("DROP TRIGGER guard_agent_action_claim_head")
    claim = f"{verb} agent_action SET {step_to(State.EXECUTING)} WHERE id = {second}"
    if verb == "UPDATE":
        db.refuses("UNIQUE constraint failed: agent_action.lane_key", claim)
    else:
        # This is why the guard of heads exists: REPLACE would satisfy the index by deleting the lane's other action.
        db(claim)
        assert db("SELECT id FROM agent_action") == [(second,)]


# --- the fence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
def test_p8_an_at_most_once_action_is_never_claimed_after_its_write(db: Database, declared: bool) -> None:
    """Once fenced it can only end; a kind that nobody declared counts as at most once, whatever others promise."""
    db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('other', 'repeatable')")
    if declared:
        db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('email', 'at_most_once')")
    action = db.insert()
    db.claim(action, LONG_AGO)
    db.fence(action)
    for claim in (f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = ?", RECLAIM):
        db.refuses("it is never claimed again", claim, action)
    db.end(action, State.UNCERTAIN)


@pytest.mark.parametrize("delivery", ["reads_back", "repeatable", "writes_nothing"])
def test_p8_other_kinds_are_claimed_again_with_their_fence(db: Database, delivery: str) -> None:
    """The fence of the earlier attempt stays, so that the next one knows to look first."""
    db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('email', ?)", delivery)
    action = db.insert()
    db.claim(action, LONG_AGO)
    db.fence(action)
    db.claim(action)
    assert db("SELECT epoch, write_started_at FROM agent_action") == [(2, 5)]


@pytest.mark.parametrize("state", [State.PROPOSED, State.ADMITTED])
def test_p8_only_a_holder_sets_the_fence(db: Database, state: State) -> None:
    """Without a claim there is nothing to fence."""
    action = db.bring_to(state)
    db.refuses(
        "write_started_at is set once by the holder",
        "UPDATE agent_action SET write_started_at = 5 WHERE id = ?",
        action,
    )


def test_p8_a_fence_does_not_come_with_a_claim_or_an_end(db: Database) -> None:
    """It is a step of its own: nobody has an attempt before the claim, or after the end."""
    action = db.insert()
    fence = ", write_started_at = 5 WHERE id = ?"
    why = "write_started_at is set once by the holder"
    db.refuses(why, f"UPDATE agent_action SET {step_to(State.EXECUTING)}{fence}", action)
    db.claim(action)
    by_hand = "state = 'UNCERTAIN', stop_reason = 'NO_CONFIRMATION', payload = NULL"
    db.refuses(why, f"UPDATE agent_action SET {by_hand}{fence}", action)


def test_p8_a_reread_without_an_owner_cannot_be_fenced(db: Database) -> None:
    """After the owner was cleared, the old attempt's fence is refused by the database too."""
    action = db.bring_to(State.EXECUTING)
    db("UPDATE agent_action SET lease_owner = NULL WHERE id = ?", action)
    db.refuses("set once by the holder", "UPDATE agent_action SET write_started_at = 5 WHERE id = ?", action)


def test_p8_a_fence_is_not_moved(db: Database) -> None:
    """The first unproven write keeps its time."""
    action = db.bring_to(State.EXECUTING)
    db.fence(action)
    db.refuses("set once by the holder", "UPDATE agent_action SET write_started_at = 6 WHERE id = ?", action)
    db("UPDATE agent_action SET write_started_at = 5 WHERE id = ?", action)


def test_p8_a_fence_is_not_cleared_while_the_action_executes(db: Database) -> None:
    """Neither alone nor in a claim; only the end or return that proves it empty clears it."""
    db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('email', 'reads_back')")
    action = db.bring_to(State.EXECUTING)
    db.fence(action)
    db.refuses(
        "cleared only by the result that proves", "UPDATE agent_action SET write_started_at = NULL WHERE id = ?", action
    )
    db.refuses(
        "cleared only by the result that proves",
        f"UPDATE agent_action SET {step_to(State.EXECUTING)}, write_started_at = NULL WHERE id = {action}",
    )
    db(f"UPDATE agent_action SET {step_to(State.ADMITTED)} WHERE id = {action}")
    assert db.one("SELECT write_started_at FROM agent_action") is None


def test_p8_a_fenced_action_does_not_go_back_with_its_fence(db: Database) -> None:
    """A return that forgets to say that nothing was written is refused."""
    action = db.bring_to(State.EXECUTING)
    db.fence(action)
    back = step_to(State.ADMITTED).replace(", write_started_at = NULL", "")
    db.refuses("an action that waits has no lease and no fence", f"UPDATE agent_action SET {back} WHERE id = {action}")


# --- the dispatch log ------------------------------------------------------------------------------------------------


def test_each_claim_is_logged_with_its_owner_and_fence(db: Database) -> None:
    """One row per epoch, filled by the claim and by its own first fence."""
    db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('email', 'reads_back')")
    action = db.insert(due_at=5)
    db.claim(action, LONG_AGO)
    db.fence(action)
    db.claim(action)
    rows = db(
        "SELECT epoch, attempt, owner, lease_expires_at, write_started_at IS NOT NULL, settled_at "
        "FROM agent_action_attempt ORDER BY epoch"
    )
    assert rows == [(1, 1, "me", LONG_AGO, 1, None), (2, 2, "me", FAR, 0, None)]
    [(started, wrote)] = db("SELECT started_at, write_started_at FROM agent_action_attempt WHERE epoch = 1")
    assert started <= wrote <= db.now() < started + 60_000


def test_a_claim_that_does_not_name_the_state_is_logged(db: Database) -> None:
    """The state is the same before and after."""
    action = db.bring_to(State.EXECUTING)
    db(RECLAIM, action)
    assert db("SELECT epoch, owner FROM agent_action_attempt ORDER BY epoch") == [(1, "me"), (2, "other")]


def test_an_attempt_keeps_the_time_of_its_first_write(db: Database) -> None:
    """A statement that names the fence and leaves it as it is writes nothing, in this attempt or in a later one."""
    db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('email', 'reads_back')")
    action = db.insert()
    db.claim(action, LONG_AGO)
    db.fence(action)
    db("UPDATE agent_action_attempt SET write_started_at = 7")
    db.fence(action)
    db.claim(action)
    db("UPDATE agent_action_attempt SET settled_at = 9 WHERE epoch = 2")
    db.fence(action)
    assert db("SELECT write_started_at FROM agent_action_attempt ORDER BY epoch") == [(7,), (None,)]


@pytest.mark.parametrize("verb", ["INSERT", pytest.param("REPLACE", marks=SQLITE_ALONE("a REPLACE"))])
def test_an_attempt_is_logged_once(db: Database, verb: str) -> None:
    """Nobody writes a second account of it."""
    action = db.bring_to(State.EXECUTING)
    db.refuses(
        "agent_action_attempt",
        f"{verb} INTO agent_action_attempt (action_id, epoch, attempt, owner, started_at, lease_expires_at) "
        "VALUES (?, 1, 7, 'x', 0, 0)",
        action,
    )


def test_a_fence_is_logged_with_the_attempt_that_set_it(db: Database) -> None:
    """An earlier attempt that never wrote is not said to have written."""
    action = db.bring_to(State.EXECUTING)
    db.claim(action)
    db.fence(action)
    rows = db("SELECT epoch, write_started_at IS NOT NULL FROM agent_action_attempt ORDER BY epoch")
    assert rows == [(1, 0), (2, 1)]


@pytest.mark.parametrize("column", ["action_id", "epoch", "attempt", "owner", "started_at", "lease_expires_at"])
def test_whose_attempt_it_is_never_changes(db: Database, column: str) -> None:
    """An attempt that runs can be settled, not given to somebody else."""
    db.bring_to(State.EXECUTING)
    value = "'x'" if column == "owner" else "77"
    db.refuses("nor does whose it is", f"UPDATE agent_action_attempt SET {column} = {value}")


def test_a_settled_attempt_never_changes(db: Database) -> None:
    """The log of a settled attempt is final."""
    db.bring_to(State.EXECUTING)
    db.refuses("recorded", "UPDATE agent_action_attempt SET recorded = 2")
    db("UPDATE agent_action_attempt SET settled_at = 9, result = 'Done', recorded = 1")
    for column in ("settled_at", "result", "reason", "evidence", "readback_ref", "recorded", "write_started_at"):
        db.refuses("a settled attempt never changes", f"UPDATE agent_action_attempt SET {column} = NULL")


def test_evidence_is_small_json(db: Database) -> None:
    """Up to 4 KiB, and readable."""
    db.bring_to(State.EXECUTING)
    db.refuses("evidence is JSON of at most 4 KiB", "UPDATE agent_action_attempt SET evidence = 'no'")
    for large in ("x" * 4095, "é" * 2048):
        db.refuses("evidence is JSON of at most 4 KiB", "UPDATE agent_action_attempt SET evidence = ?", f'"{large}"')
    db("UPDATE agent_action_attempt SET evidence = ?", '"' + "x" * 4094 + '"')


def test_p13_attempts_are_deleted_with_their_action_and_not_before(db: Database) -> None:
    """The log cannot be thinned out; with the action it goes, and so does the hook that it is owed."""
    db("INSERT INTO agent_action_kind (kind, has_ended_hook) VALUES ('email', 1)")
    action, other = db.bring_to(State.DONE), db.bring_to(State.DONE)
    db.refuses("attempts are deleted with their action", "DELETE FROM agent_action_attempt")
    db("DELETE FROM agent_action WHERE id = ?", action)
    assert db("SELECT action_id FROM agent_action_attempt") == [(other,)]
    assert db("SELECT action_id FROM agent_action_ended") == [(other,)]


@pytest.mark.parametrize("state", [State.DONE, State.UNCERTAIN, State.FAILED, State.CANCELLED])
def test_every_end_of_a_hooked_kind_owes_its_hook(db: Database, state: State) -> None:
    """Whoever ends it, by whatever statement; a kind without a hook owes nothing."""
    db("INSERT INTO agent_action_kind (kind, has_ended_hook) VALUES ('email', 1), ('other', 0)")
    action = db.bring_to(state)
    db.end(db.insert(kind="other"), State.CANCELLED)
    assert db("SELECT action_id, kind, tries, forget FROM agent_action_ended") == [(action, "email", 0, 0)]
    ended_at = db.one("SELECT ended_at FROM agent_action WHERE id = ?", action)
    assert db("SELECT due_at FROM agent_action_ended") == [(ended_at,)]
    db.refuses("forget", "UPDATE agent_action_ended SET forget = 2")


# --- kinds -----------------------------------------------------------------------------------------------------------


LOOSER = {
    "at_most_once": ("reads_back", "repeatable", "writes_nothing"),
    "reads_back": ("repeatable", "writes_nothing"),
    "repeatable": ("writes_nothing",),
}
"""The deliveries that promise less."""


@pytest.mark.parametrize(("delivery", "looser"), [(one, other) for one in LOOSER for other in LOOSER[one]])
def test_p8_a_kind_is_not_loosened_under_a_fence(db: Database, delivery: str, looser: str) -> None:
    """While a write of the kind may exist, its promise stands; a stricter one may take its place."""
    db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('email', ?)", delivery)
    action = db.bring_to(State.EXECUTING)
    db.fence(action)
    loosen = "UPDATE agent_action_kind SET delivery = ?"
    db.refuses("loosen it when none of its actions is fenced", loosen, looser)
    db.end(action, State.UNCERTAIN)
    db(loosen, looser)
    action = db.bring_to(State.EXECUTING)
    db.fence(action)
    db(loosen, delivery)


def test_p8_a_kind_keeps_its_approval_under_a_fence(db: Database) -> None:
    """While a write of the kind may exist, people go on approving."""
    db("INSERT INTO agent_action_kind (kind, requires_approval) VALUES ('email', 1)")
    action = db.insert(state="PROPOSED")
    db("UPDATE agent_action SET state = 'ADMITTED', decided_by = 'ann'")
    db.claim(action)
    db.fence(action)
    loosen = "UPDATE agent_action_kind SET requires_approval = 0"
    db.refuses("loosen it when none of its actions is fenced", loosen)
    db.end(action, State.UNCERTAIN)
    db(loosen)


@pytest.mark.parametrize("delivery", LOOSER["at_most_once"])
@pytest.mark.parametrize("verb", ["INSERT", pytest.param("REPLACE", marks=SQLITE_ALONE("a REPLACE"))])
def test_p8_a_kind_that_counted_as_at_most_once_is_not_declared_looser_under_a_fence(
    db: Database, verb: str, delivery: str
) -> None:
    """Neither as a new row nor in the place of the old one."""
    if verb == "REPLACE":
        db("INSERT INTO agent_action_kind (kind) VALUES ('email')")
    action = db.bring_to(State.EXECUTING)
    db.fence(action)
    why = "loosen it when none of its actions is fenced" if verb == "INSERT" else "agent_action_kind: "
    db.refuses(why, f"{verb} INTO agent_action_kind (kind, delivery) VALUES ('email', ?)", delivery)


@SQLITE_ALONE("a REPLACE")
def test_a_kind_is_neither_replaced_nor_deleted(db: Database) -> None:
    """What a kind promises and whether it is paused survives a REPLACE and a DELETE."""
    db("INSERT INTO agent_action_kind (kind, requires_approval, paused_by) VALUES ('email', 1, 'anna')")
    db.refuses("declared already", "INSERT OR REPLACE INTO agent_action_kind (kind) VALUES ('email')")
    db.refuses("is kept", "DELETE FROM agent_action_kind")
    assert db("SELECT requires_approval, paused_by FROM agent_action_kind") == [(1, "anna")]


def test_what_a_kind_promises_is_kept(db: Database) -> None:
    """Deleting a kind would make the guard forget it."""
    db("INSERT INTO agent_action_kind (kind, requires_approval, paused_by) VALUES ('email', 1, 'anna')")
    db.refuses("is kept", "DELETE FROM agent_action_kind")


@pytest.mark.parametrize("column", ["state", "is_head", "epoch", "attempt", "due_at", "forget_at_end", "created_at"])
@pytest.mark.parametrize("verb", ["", pytest.param("OR REPLACE", marks=SQLITE_ALONE("a REPLACE"))])
def test_p3_null_is_no_way_past_the_guard(db: Database, column: str, verb: str) -> None:
    """REPLACE puts a default in the place of NULL after the guard has looked, so NULL itself is refused."""
    action = db.bring_to(State.ADMITTED)
    # Another guard refuses a change of these to NULL too, and which of the two speaks is not defined.
    why = "agent_action: " if column in {"state", "created_at"} else "take no NULL"
    db.refuses(why, f"UPDATE {verb} agent_action SET {column} = NULL WHERE id = ?", action)
    columns = f"kind, idempotency_key, payload, {column}"
    db.refuses(why, f"INSERT {verb} INTO agent_action ({columns}) VALUES ('email', 'n', '{{}}', NULL)")


def test_p6_a_lease_changes_its_owner_only_with_a_claim(db: Database) -> None:
    """Nobody can take a lease over without a new epoch; giving it up is allowed, and taking it back then is not."""
    action = db.bring_to(State.EXECUTING)
    change = "UPDATE agent_action SET lease_owner = ? WHERE id = ?"
    db.refuses("only with a claim", change, "thief", action)
    db(change, None, action)
    db.refuses("only with a claim", change, "me", action)


@pytest.mark.parametrize("ended_at", [LONG_AGO, FAR])
def test_p3_the_end_of_an_action_is_now(db: Database, ended_at: int) -> None:
    """A forged time of its end would let the sweep delete an action at once, or never."""
    action = db.bring_to(State.EXECUTING)
    end = step_to(State.DONE).replace(NOW, str(ended_at))
    db.refuses("leave it out", f"UPDATE agent_action SET {end} WHERE id = ?", action)


def test_a_kind_is_loosened_while_none_of_its_own_actions_is_fenced(db: Database) -> None:
    """Neither an attempt that has not written nor another kind's fence stands in the way."""
    db("INSERT INTO agent_action_kind (kind) VALUES ('email')")
    db.bring_to(State.EXECUTING)
    other = db.insert(kind="other")
    db.claim(other)
    db.fence(other)
    db("UPDATE agent_action_kind SET delivery = 'repeatable'")
    assert db.one("SELECT delivery FROM agent_action_kind") == "repeatable"


def test_p8_a_kind_may_become_stricter_at_any_time(db: Database) -> None:
    """Also while its actions are fenced."""
    db("INSERT INTO agent_action_kind (kind, delivery) VALUES ('email', 'repeatable')")
    action = db.bring_to(State.EXECUTING)
    db.fence(action)
    db("UPDATE agent_action_kind SET delivery = 'at_most_once', requires_approval = 1")


def test_a_kind_keeps_its_name_and_its_rules(db: Database) -> None:
    """A policy row cannot become another kind's, and holds only known values."""
    db("INSERT INTO agent_action_kind (kind) VALUES ('email')")
    db.refuses("agent_action_kind", "INSERT INTO agent_action_kind (kind) VALUES ('email')")
    db.refuses("a kind keeps its name", "UPDATE agent_action_kind SET kind = 'other'")
    db.refuses("delivery is one of the four", "UPDATE agent_action_kind SET delivery = 'exactly_once'")
    db.refuses("retention_days", "UPDATE agent_action_kind SET retention_days = 0")
    for flag in ("instance_level", "requires_approval", "has_ended_hook"):
        db.refuses(flag, f"UPDATE agent_action_kind SET {flag} = 2")
    assert db("SELECT delivery, retention_days FROM agent_action_kind") == [("at_most_once", 30)]
