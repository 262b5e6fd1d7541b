"""P3: the lifecycle, tried pair by pair against the triggers, by SQL."""

import itertools

import pytest

from edgeoutbox.states import BORN, ENDED, OPEN, STOP_REASONS, TRANSITIONS, State, StopReason
from edgeoutbox.storage.sqlite.spelling import NOW
from edgeoutbox.testing import MovableClock
from tests.schema.database import FAR, LONG_AGO, RECLAIM, Database, step_to

PAIRS = list(itertools.product(State, State))


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_p3_every_pair_of_states_is_allowed_exactly_as_the_table_says(
    db: Database, before: State, after: State
) -> None:
    """With every other column as the new state needs it, the step alone decides."""
    action = db.bring_to(before)
    sql = f"UPDATE agent_action SET {step_to(after)} WHERE id = {action}"
    if (before, after) in TRANSITIONS:
        db(sql)
        assert db.state(action) == after
    else:
        db.refuses("agent_action", sql)
        assert db.state(action) == before


@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in PAIRS if pair[0] in OPEN and pair not in TRANSITIONS], ids=str
)
def test_p3_a_step_that_is_not_in_the_table_is_named_as_such(db: Database, before: State, after: State) -> None:
    """Whoever tries a forbidden step is sent to the table of the steps."""
    action = db.bring_to(before)
    db.refuses("the lifecycle has no such step", f"UPDATE agent_action SET {step_to(after)} WHERE id = {action}")


def test_p3_the_transitions_in_the_database_are_those_of_the_package(db: Database) -> None:
    """One lifecycle, in two places, equal."""
    assert set(db("SELECT from_state, to_state FROM agent_action_transition")) == {
        (str(before), str(after)) for before, after in TRANSITIONS
    }


def test_p3_the_stop_reasons_in_the_database_are_those_of_the_package(db: Database) -> None:
    """Each stop reason belongs to one ended state, in both places."""
    assert set(db("SELECT state, stop_reason FROM agent_action_stop_reason")) == {
        (str(state), str(reason)) for state, reasons in STOP_REASONS.items() for reason in reasons
    }


def test_p3_every_stop_reason_belongs_to_one_state() -> None:
    """The table of the package covers each reason once, and only for ended states."""
    listed = [reason for reasons in STOP_REASONS.values() for reason in reasons]
    assert sorted(listed) == sorted(StopReason)
    assert set(STOP_REASONS) == ENDED


@pytest.mark.parametrize("state", sorted(State))
def test_p3_an_action_is_born_waiting(db: Database, state: State) -> None:
    """Nothing is inserted as already executing or ended."""
    if state in BORN:
        assert db.state(db.insert(state=state)) == state
    else:
        db.refuses(
            "a new action is PROPOSED or ADMITTED",
            "INSERT INTO agent_action (kind, idempotency_key, payload, state, lease_expires_at, stop_reason) "
            "VALUES ('email', 'k', ?, ?, ?, ?)",
            None if state in ENDED else "{}",
            state,
            FAR if state is State.EXECUTING else None,
            min(STOP_REASONS[state]) if state in ENDED else None,
        )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("epoch", 1),
        ("attempt", 1),
        ("is_head", 0),
        ("readback_ref", "'x'"),
        ("last_error", "'x'"),
        ("decided_by", "'the proposer'"),
        ("decided_at", 1),
    ],
)
def test_p3_a_new_action_has_no_past(db: Database, column: str, value: object) -> None:
    """What the database keeps cannot be given at insert, not even who approved it."""
    db.refuses(
        "leave them out",
        f"INSERT INTO agent_action (kind, idempotency_key, payload, {column}) VALUES ('email', 'k', '{{}}', {value})",
    )


@pytest.mark.parametrize("state", sorted(BORN))
@pytest.mark.parametrize("column", ["lease_owner", "lease_expires_at", "write_started_at"])
def test_p3_a_new_action_is_held_by_nobody(db: Database, column: str, state: State) -> None:
    """Neither a lease nor a fence can be inserted."""
    db.refuses(
        "an action that waits has no lease and no fence",
        f"INSERT INTO agent_action (kind, idempotency_key, payload, state, {column}) "
        f"VALUES ('email', 'k', '{{}}', '{state}', '1')",
    )


@pytest.mark.parametrize("state", sorted(ENDED))
def test_p3_an_ended_action_never_changes(db: Database, state: State) -> None:
    """No column of an ended action can be written, not even to the same value."""
    action = db.bring_to(state)
    columns = db.columns("agent_action")
    assert len(columns) == 30
    for column in columns:
        db.refuses("agent_action", f"UPDATE agent_action SET {column} = {column} WHERE id = {action}")


@pytest.mark.parametrize("state", sorted(ENDED))
def test_p3_an_ended_action_keeps_no_payload(db: Database, state: State) -> None:
    """An end that leaves the payload behind is refused."""
    action = db.bring_to(State.ADMITTED if state is State.CANCELLED else State.EXECUTING)
    with_payload = step_to(state).replace("payload = NULL, ", "")
    db.refuses("an ended action has no payload", f"UPDATE agent_action SET {with_payload} WHERE id = {action}")


@pytest.mark.parametrize("state", sorted(ENDED))
def test_p3_an_ended_action_has_a_stop_reason(db: Database, state: State) -> None:
    """An end without a reason is refused."""
    action = db.bring_to(State.ADMITTED if state is State.CANCELLED else State.EXECUTING)
    without = step_to(state).replace(f"stop_reason = '{min(STOP_REASONS[state])}', ", "")
    db.refuses("an ended action has a stop_reason", f"UPDATE agent_action SET {without} WHERE id = {action}")


@pytest.mark.parametrize(
    ("state", "reason"),
    [(s, r) for s in sorted(ENDED) for r in [*StopReason, "BECAUSE"] if r not in STOP_REASONS[s]],
    ids=str,
)
def test_p3_a_stop_reason_belongs_to_its_state(db: Database, state: State, reason: str) -> None:
    """A reason of another state, or of none, is refused."""
    action = db.bring_to(State.ADMITTED if state is State.CANCELLED else State.EXECUTING)
    foreign = step_to(state).replace(f"'{min(STOP_REASONS[state])}'", f"'{reason}'")
    db.refuses("this stop_reason does not belong", f"UPDATE agent_action SET {foreign} WHERE id = {action}")


@pytest.mark.parametrize("state", sorted(OPEN))
def test_p3_an_open_action_has_no_end(db: Database, state: State) -> None:
    """Neither a stop reason, an end time nor a missing payload fits an action that is not over."""
    action = db.bring_to(state)
    reason = "'CONFIRMED'"
    db.refuses("agent_action", f"UPDATE agent_action SET stop_reason = {reason} WHERE id = {action}")
    db.refuses("only an ended action has ended_at", f"UPDATE agent_action SET ended_at = 7 WHERE id = {action}")
    db.refuses(
        "an ended action has no payload, others have one", f"UPDATE agent_action SET payload = NULL WHERE id = {action}"
    )


@pytest.mark.parametrize("epoch", ["epoch - 1", "epoch", "epoch + 2", "0", "epoch + 1000"])
def test_p3_a_claim_raises_the_epoch_by_exactly_one(db: Database, epoch: str) -> None:
    """A claim that goes back, sideways or leaps is refused."""
    action = db.bring_to(State.EXECUTING)
    # Sideways, the guard of the attempt refuses it too, and SQLite does not say which of the two comes first.
    db.refuses(
        "attempt" if epoch == "epoch" else "a claim raises epoch and attempt by one",
        f"UPDATE agent_action SET state = 'EXECUTING', epoch = {epoch}, attempt = attempt + 1, lease_owner = 'x', "
        f"lease_expires_at = {FAR} WHERE id = {action}",
    )


@pytest.mark.parametrize("which", ["the head", "behind it", "a lost lease"])
def test_p6_a_claim_that_leaves_the_epoch_out_is_refused(db: Database, which: str) -> None:
    """A statement that names the state alone makes nobody the holder."""
    actions = {
        "the head": db.insert("lane"),
        "behind it": db.insert("lane"),
        "a lost lease": db.bring_to(State.EXECUTING),
    }
    db.refuses(
        "a claim raises epoch and attempt by one",
        f"UPDATE agent_action SET state = 'EXECUTING', lease_expires_at = {FAR} WHERE id = {actions[which]}",
    )


@pytest.mark.parametrize("attempt", ["attempt", "attempt - 1", "attempt + 2"])
def test_p3_a_claim_raises_the_attempt_by_exactly_one(db: Database, attempt: str) -> None:
    """No attempt is claimed without being counted."""
    action = db.insert()
    db.refuses(
        "a claim raises epoch and attempt by one",
        f"UPDATE agent_action SET state = 'EXECUTING', epoch = epoch + 1, attempt = {attempt}, lease_owner = 'x', "
        f"lease_expires_at = {FAR} WHERE id = {action}",
    )


@pytest.mark.parametrize("state", [State.PROPOSED, State.ADMITTED, State.EXECUTING])
@pytest.mark.parametrize("epoch", ["epoch - 1", "epoch + 1", "epoch + 2"])
def test_p3_the_epoch_changes_only_with_a_claim(db: Database, state: State, epoch: str) -> None:
    """The epoch alone cannot be written, in any state."""
    action = db.bring_to(state)
    db.refuses("agent_action", f"UPDATE agent_action SET epoch = {epoch} WHERE id = {action}")


@pytest.mark.parametrize("epoch", ["epoch - 1", "epoch + 1"])
@pytest.mark.parametrize("state", [State.ADMITTED, State.DONE, State.UNCERTAIN, State.FAILED, State.CANCELLED])
def test_p3_an_end_and_a_return_leave_the_epoch(db: Database, state: State, epoch: str) -> None:
    """What ends an attempt or gives it back cannot smuggle in another epoch."""
    action = db.bring_to(State.EXECUTING)
    db.refuses(
        "epoch changes only with a claim",
        f"UPDATE agent_action SET {step_to(state)}, epoch = {epoch} WHERE id = {action}",
    )


def test_p3_an_attempt_falls_by_one_when_it_does_not_count_and_no_further(db: Database) -> None:
    """Attempts are given back one at a time, and only while the action executes or returns."""
    action = db.bring_to(State.EXECUTING)
    db.refuses("agent_action.attempt", f"UPDATE agent_action SET attempt = attempt + 1 WHERE id = {action}")
    db(f"UPDATE agent_action SET {step_to(State.ADMITTED)}, attempt = attempt - 1 WHERE id = {action}")
    assert db.one("SELECT attempt FROM agent_action") == 0
    db.refuses("attempt", f"UPDATE agent_action SET attempt = attempt - 1 WHERE id = {action}")
    db.refuses("attempt", f"UPDATE agent_action SET attempt = attempt + 1 WHERE id = {action}")


def test_p3_an_attempt_that_counted_is_not_given_back_later(db: Database) -> None:
    """What executes is given back its own attempt alone, what waits none, and nothing has fewer than none."""
    action = db.bring_to(State.EXECUTING)
    db.claim(action)
    db.refuses("agent_action.attempt", f"UPDATE agent_action SET attempt = attempt - 2 WHERE id = {action}")
    db(f"UPDATE agent_action SET {step_to(State.ADMITTED)} WHERE id = {action}")
    db.refuses("agent_action.attempt", f"UPDATE agent_action SET attempt = attempt - 1 WHERE id = {action}")
    other = db.bring_to(State.EXECUTING)
    db(f"UPDATE agent_action SET attempt = attempt - 1 WHERE id = {other}")
    db.refuses("attempt is not below 0", f"UPDATE agent_action SET attempt = attempt - 1 WHERE id = {other}")


def test_p3_a_claim_names_its_owner_and_has_a_lease(db: Database) -> None:
    """A claim by nobody, or for ever, is refused."""
    action = db.insert()
    claim = "UPDATE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = ?, lease_expires_at = ?"
    db.refuses("names its owner", claim, None, FAR)
    db.refuses("only an executing action has a lease", claim, "me", None)
    db(claim, "me", FAR)
    assert db.state(action) == "EXECUTING"


def test_p3_a_lease_that_has_not_ended_is_not_taken(db: Database) -> None:
    """An executing action is claimed again only after its lease."""
    action = db.insert()
    db.claim(action, FAR)
    for claim in (f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = ?", RECLAIM):
        db.refuses("the lease has not ended", claim, action)


@pytest.mark.parametrize("state", [State.PROPOSED, State.ADMITTED])
def test_p3_an_expired_action_is_neither_claimed_nor_admitted(db: Database, state: State) -> None:
    """What has expired can only be cancelled."""
    action = db.insert(state=state, expires_at=LONG_AGO)
    further = State.ADMITTED if state is State.PROPOSED else State.EXECUTING
    db.refuses("the action has expired", f"UPDATE agent_action SET {step_to(further)} WHERE id = {action}")
    db.end(action, State.CANCELLED)


@pytest.mark.parametrize(("before", "after"), [(State.PROPOSED, State.ADMITTED), (State.ADMITTED, State.EXECUTING)])
def test_p3_an_action_expires_to_the_millisecond(
    db: Database, stopped: MovableClock, before: State, after: State
) -> None:
    """A millisecond before it may go on, at its time it is too late."""
    early, late = (db.insert(state=before, expires_at=stopped.milliseconds + more) for more in (1, 0))
    db(f"UPDATE agent_action SET {step_to(after)} WHERE id = {early}")
    db.refuses("the action has expired", f"UPDATE agent_action SET {step_to(after)} WHERE id = {late}")


def test_p3_a_lease_ends_to_the_millisecond(db: Database, stopped: MovableClock) -> None:
    """A millisecond before nobody may take it, at its time anybody."""
    action = db.insert()
    db.claim(action, stopped.milliseconds + 1)
    db.refuses("the lease has not ended", f"UPDATE agent_action SET {step_to(State.EXECUTING)} WHERE id = {action}")
    stopped.advance(0.001)
    db.claim(action)


@pytest.mark.parametrize("after", [State.EXECUTING, State.ADMITTED])
def test_what_expires_while_it_executes_can_be_claimed_again_and_given_back(
    db: Database, stopped: MovableClock, after: State
) -> None:
    """Somebody has to look what became of its write."""
    action = db.insert(expires_at=stopped.milliseconds + 1)
    db.claim(action, LONG_AGO)
    stopped.advance(0.001)
    db(f"UPDATE agent_action SET {step_to(after)} WHERE id = {action}")
    assert db.state(action) == after


def test_an_end_by_hand_need_not_know_the_other_columns(db: Database) -> None:
    """The documented UPDATE of three columns ends an action completely."""
    action = db.insert("lane", created_at=5, due_at=6)
    behind = db.insert("lane")
    db("UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL WHERE id = ?", action)
    [(is_head, ended_at)] = db("SELECT is_head, ended_at FROM agent_action WHERE id = ?", action)
    assert is_head == 0
    assert abs(ended_at - db.now()) < 60_000
    assert db.heads("lane") == [behind]


def test_an_end_by_hand_ends_the_lease(db: Database) -> None:
    """Whoever ends an executing action by the documented columns takes it from its holder."""
    action = db.bring_to(State.EXECUTING)
    db("UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL WHERE id = ?", action)
    assert db("SELECT lease_owner, lease_expires_at, is_head FROM agent_action") == [(None, None, 0)]


def test_p3_an_end_by_hand_leaves_no_head_and_no_lease(db: Database) -> None:
    """An end that gives ended_at but forgets the head or the lease is refused."""
    action = db.insert("lane")
    db.claim(action)
    by_hand = f"UPDATE agent_action SET state = 'DONE', stop_reason = 'CONFIRMED', payload = NULL, ended_at = {NOW}"
    because = "leave it out, and the database also clears is_head and the lease"
    forgotten = ("is_head = 0", "lease_owner = NULL", "lease_expires_at = NULL")
    for one in forgotten:
        db.refuses(because, ", ".join([by_hand, *(other for other in forgotten if other != one)]))
    db(", ".join([by_hand, *forgotten]))
    assert db.state(action) == "DONE"
