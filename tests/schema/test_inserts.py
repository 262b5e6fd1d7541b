"""P3 and the schema as an interface: what one INSERT of any program may do, and what it is told when it may not."""

from pathlib import Path
from typing import Any

import pytest

from edgeoutbox.states import State
from tests.schema.conftest import OpenPlain
from tests.schema.database import LONG_AGO, Database, step_to

SQLITE_ALONE = pytest.mark.sqlite_alone

PLAIN = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', ?, '{}')"


def test_an_insert_of_three_columns_is_a_whole_action(db: Database) -> None:
    """Kind, key and payload are enough: lane, workspace, digest and times follow."""
    db(PLAIN, "k")
    [row] = db(
        "SELECT id, workspace_id, lane_key, payload_digest, state, is_head, epoch, attempt, forget_at_end "
        "FROM agent_action"
    )
    assert row == (1, "default", None, None, "ADMITTED", 1, 0, 0, 0)
    [(created, due, admitted)] = db("SELECT created_at, due_at, admitted_at FROM agent_action")
    assert created == due == admitted
    assert abs(created - db.now()) < 60_000


def test_a_proposal_is_admitted_at_no_time_yet(db: Database) -> None:
    """The time of admission belongs to what is admitted."""
    db.insert(state="PROPOSED")
    assert db.one("SELECT admitted_at FROM agent_action") is None


def test_a_time_of_admission_that_is_given_stays(db: Database) -> None:
    """Left out, it is that of the creation."""
    given, left_out = db.insert(created_at=5, admitted_at=7), db.insert(created_at=5)
    assert db("SELECT id, admitted_at FROM agent_action ORDER BY id") == [(given, 7), (left_out, 5)]


ALIASES = [pytest.param(name, marks=SQLITE_ALONE("another name of the id")) for name in ("rowid", "_rowid_", "oid")]


@pytest.mark.parametrize("id_", [1, 7, 0, -1, -7, 9_223_372_036_854_775_807])
@pytest.mark.parametrize("column", ["id", *ALIASES])
def test_p3_nobody_chooses_an_id(db: Database, id_: int, column: str) -> None:
    """An id of the caller's choice is refused, under each of its names."""
    db.refuses(
        "id",
        f"INSERT INTO agent_action ({column}, kind, idempotency_key, payload) VALUES (?, 'email', 'k', '{{}}')",
        id_,
    )


@pytest.mark.parametrize("column", ["id", *ALIASES])
@pytest.mark.parametrize("verb", ["UPDATE", pytest.param("UPDATE OR REPLACE", marks=SQLITE_ALONE("a REPLACE"))])
def test_p3_an_id_never_changes(db: Database, column: str, verb: str) -> None:
    """Moving a row to another id, or over another row, is refused."""
    first, second = db.insert(), db.insert()
    for other in (-3, 0, 99, second):
        db.refuses("id never changes", f"{verb} agent_action SET {column} = ? WHERE id = ?", other, first)


def test_p3_ids_are_never_used_again(db: Database) -> None:
    """The id of a deleted action, the last one too, names nothing else afterwards."""
    ids = [db.insert() for _ in range(3)]
    db("DELETE FROM agent_action")
    assert db.insert() > max(ids)


GIVEN: dict[str, Any] = {
    "kind": "other",
    "workspace_id": "other",
    "lane_key": "other",
    "idempotency_key": "other",
    "run_id": "other",
    "subject_account_id": "other",
    "max_attempts": 9,
    "expires_at": 9_100_000_000_000,
    "trace_parent": "other",
    "created_at": 5,
    "payload": '{"other":1}',
    "payload_digest": "sha256:" + "0" * 64,
}


@pytest.mark.parametrize("column", GIVEN)
@pytest.mark.parametrize("state", ["PROPOSED", "ADMITTED", "EXECUTING"])
def test_p3_what_was_given_at_enqueue_never_changes(db: Database, column: str, state: str) -> None:
    """Each column given at enqueue is as it was until the end: neither set, changed nor removed."""
    action = db.insert(
        "lane",
        state="PROPOSED" if state == "PROPOSED" else "ADMITTED",
        run_id="r",
        subject_account_id="s",
        max_attempts=3,
        expires_at=9_000_000_000_000,
        trace_parent="t",
        payload_digest="sha256:" + "1" * 64,
    )
    if state == "EXECUTING":
        db.claim(action)
    db.refuses("never change", f"UPDATE agent_action SET {column} = ? WHERE id = ?", GIVEN[column], action)
    if column not in {"payload", "created_at", "kind", "idempotency_key"}:
        db.refuses("never change", f"UPDATE agent_action SET {column} = NULL WHERE id = ?", action)


@pytest.mark.parametrize(
    "column", ["run_id", "subject_account_id", "lane_key", "max_attempts", "expires_at", "trace_parent"]
)
def test_p3_what_was_left_out_at_enqueue_stays_out(db: Database, column: str) -> None:
    """An action cannot be moved into a lane, a run or a person's account afterwards."""
    db.insert()
    db.refuses("what was given at enqueue never changes", f"UPDATE agent_action SET {column} = ?", GIVEN[column])


def test_p3_not_a_space_of_a_payload_changes(db: Database) -> None:
    """The digest is that of its text."""
    db.insert()
    db.refuses("the payload and its digest never change", "UPDATE agent_action SET payload = '{ }'")


def test_a_missing_digest_is_filled_once(db: Database) -> None:
    """The digest of a row inserted without one can be added, and then stays."""
    db.insert()
    db("UPDATE agent_action SET payload_digest = ?", "sha256:" + "1" * 64)
    db.refuses("digest never change", "UPDATE agent_action SET payload_digest = ?", "sha256:" + "2" * 64)


def test_p3_a_forgetting_that_was_asked_for_is_not_taken_back(db: Database) -> None:
    """forget_at_end only ever rises."""
    db.insert()
    db("UPDATE agent_action SET forget_at_end = 1")
    db.refuses("forget_at_end cannot be taken back", "UPDATE agent_action SET forget_at_end = 0")


WRONG: list[tuple[str, Any, str]] = [
    ("kind", None, "agent_action.kind"),
    ("kind", "", "kind has 1 to 64"),
    ("kind", "Email", "kind has 1 to 64 lower-case letters"),
    ("kind", "e-mail", "kind has 1 to 64"),
    ("kind", "9mail", "starts with a letter"),
    ("kind", "émail", "kind has 1 to 64"),
    ("kind", "e" * 65, "kind has 1 to 64"),
    ("idempotency_key", None, "agent_action.idempotency_key"),
    ("idempotency_key", "", "idempotency_key has 1 to 512 characters"),
    ("idempotency_key", "k" * 513, "idempotency_key has 1 to 512 characters"),
    ("idempotency_key", "a\0b", "idempotency_key has 1 to 512 characters"),
    ("lane_key", "", "lane_key has 1 to 512 characters"),
    ("lane_key", "l" * 513, "lane_key has 1 to 512 characters"),
    ("lane_key", "a\0b", "lane_key has 1 to 512 characters"),
    ("payload", None, "an ended action has no payload, others have one"),
    ("payload", "", "payload is a JSON object"),
    ("payload", "hello", "payload is a JSON object"),
    ("payload", "[1]", "payload is a JSON object"),
    ("payload", '"text"', "payload is a JSON object"),
    ("payload", "null", "payload is a JSON object"),
    ("payload", '{"a": NaN}', "payload is a JSON object"),
    ("payload", b"{}", "payload"),
    ("payload", '{"a":"' + "x" * (262_145 - 8) + '"}', "payload has at most 256 KiB"),
    ("payload", '{"a": "' + "é" * 131_072 + '"}', "payload has at most 256 KiB"),
    ("payload_digest", "sha512:" + "0" * 64, "payload_digest is sha256:"),
    ("payload_digest", "sha256:" + "0" * 63, "payload_digest is sha256:"),
    ("max_attempts", 0, "max_attempts is at least 1"),
    ("due_at", "tomorrow", "due_at"),
    ("due_at", None, "due_at"),
    ("expires_at", "never", "expires_at"),
    ("due_at", 1_000_000_000, "due_at is in milliseconds; this would be seconds"),
    ("due_at", 99_999_999_999, "due_at is in milliseconds; this would be seconds"),
    ("expires_at", 1_800_000_000, "expires_at is in milliseconds; this would be seconds"),
    ("forget_at_end", 2, "forget_at_end"),
    ("state", "READY", "a new action is PROPOSED or ADMITTED"),
    ("workspace_id", None, "only an instance-level kind has no workspace"),
]


@pytest.mark.parametrize(
    ("column", "value", "because"), WRONG, ids=[f"{c}-{b[:24]}-{i}" for i, (c, _, b) in enumerate(WRONG)]
)
def test_a_wrong_row_is_refused_with_a_readable_message(db: Database, column: str, value: Any, because: str) -> None:
    """Every mistake in an INSERT is named by its column and its rule."""
    values = {"kind": "email", "idempotency_key": "k", "payload": "{}", column: value}
    marks = ", ".join("?" * len(values))
    db.refuses(because, f"INSERT INTO agent_action ({', '.join(values)}) VALUES ({marks})", *values.values())


def test_the_largest_rows_are_accepted(db: Database) -> None:
    """The limits themselves are inside: 512 characters of key and lane, 256 KiB of payload, 64 letters of kind."""
    payload = '{"a":"' + "x" * (262_144 - 8) + '"}'
    db.insert("l" * 512, kind="k" * 64, idempotency_key="ö" * 512, payload=payload)
    assert db.one("SELECT payload FROM agent_action") == payload


def test_only_an_instance_level_kind_has_no_workspace(db: Database) -> None:
    """An action of the whole installation names no workspace, and its kind was declared so."""
    db("INSERT INTO agent_action_kind (kind, instance_level) VALUES ('backup', 1), ('email', 0)")
    db.insert(kind="backup", workspace_id=None)
    db.refuses(
        "workspace_id",
        "INSERT INTO agent_action (kind, idempotency_key, payload, workspace_id) VALUES ('email', 'k', '{}', NULL)",
    )


# --- REPLACE ---------------------------------------------------------------------------------------------------------


@pytest.fixture(
    params=[0, pytest.param(1, marks=SQLITE_ALONE("a setting of SQLite"))],
    ids=["recursive_triggers=OFF", "recursive_triggers=ON"],
)
def replacing(db: Database, request: pytest.FixtureRequest) -> Database:
    """A database on a connection with and without delete triggers for REPLACE."""
    if db.dialect == "sqlite":
        db(f"PRAGMA recursive_triggers = {request.param}")
    return db


@SQLITE_ALONE("Postgres has no such statement")
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE"])
@pytest.mark.parametrize("state", ["ADMITTED", "EXECUTING", "DONE"])
def test_p3_a_replace_evicts_no_action(replacing: Database, verb: str, state: str) -> None:
    """The action that holds a key survives every form of REPLACE, whatever its state."""
    action = replacing.insert("lane", idempotency_key="taken")
    if state != "ADMITTED":
        replacing.claim(action)
    if state == "DONE":
        replacing.end(action)
    replacing.refuses(
        "REPLACE would delete the action that holds this idempotency_key; use ON CONFLICT",
        f"{verb} INTO agent_action (kind, idempotency_key, payload, lane_key) "
        "VALUES ('email', 'taken', '{}', 'lane')",
    )


@SQLITE_ALONE("Postgres has no such statement")
def test_p3_a_replace_of_many_rows_evicts_none(replacing: Database) -> None:
    """One taken key in a REPLACE of many rows refuses the statement, wherever it stands."""
    replacing.insert(idempotency_key="taken")
    for keys in (("taken", "a", "b"), ("a", "taken", "b"), ("a", "b", "taken"), ("a", "b", "a")):
        rows = ", ".join(f"('email', '{key}', '{{}}')" for key in keys)
        replacing.refuses(
            "REPLACE would delete", f"REPLACE INTO agent_action (kind, idempotency_key, payload) VALUES {rows}"
        )


@SQLITE_ALONE("Postgres has no such statement")
def test_a_replace_of_a_new_key_is_an_insert(replacing: Database) -> None:
    """A REPLACE that evicts nothing does no harm."""
    replacing("REPLACE INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'new', '{}')")
    assert replacing.one("SELECT COUNT(*) FROM agent_action") == 1


@SQLITE_ALONE("Postgres has no such statement")
def test_p3_an_update_or_replace_evicts_no_action(replacing: Database) -> None:
    """An UPDATE can evict neither by key nor by the lane's one executing action."""
    first, second = replacing.insert("lane"), replacing.insert("lane")
    replacing.claim(first)
    key = replacing.one("SELECT idempotency_key FROM agent_action WHERE id = ?", first)
    replacing.refuses(
        "what was given at enqueue never changes",
        "UPDATE OR REPLACE agent_action SET idempotency_key = ? WHERE id = ?",
        key,
        second,
    )
    replacing.refuses(
        "an earlier action of the lane has not ended",
        "UPDATE OR REPLACE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'x', "
        "lease_expires_at = 9 WHERE id = ?",
        second,
    )


@SQLITE_ALONE("Postgres has no such statement")
def test_p3_a_replace_cannot_rewrite_the_dispatch_log(replacing: Database) -> None:
    """A logged attempt is not replaced by another."""
    action = replacing.insert()
    replacing.claim(action)
    replacing.refuses(
        "this attempt is logged already",
        "REPLACE INTO agent_action_attempt (action_id, epoch, attempt, owner, started_at) VALUES (?, 1, 1, 'x', 0)",
        action,
    )


def test_p2_on_conflict_do_nothing_leaves_the_first(replacing: Database) -> None:
    """The documented repeat of an enqueue inserts nothing and fails nothing."""
    action = replacing.insert(idempotency_key="taken", payload='{"first":1}')
    replacing(f"{PLAIN} ON CONFLICT (idempotency_key) DO NOTHING", "taken")
    assert replacing("SELECT id, payload FROM agent_action") == [(action, '{"first":1}')]


@SQLITE_ALONE("Postgres has no such statement")
def test_p2_insert_or_ignore_leaves_the_first(replacing: Database) -> None:
    """The older spelling works too."""
    action = replacing.insert(idempotency_key="taken")
    replacing("INSERT OR IGNORE INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'taken', '{}')")
    assert replacing("SELECT id FROM agent_action") == [(action,)]


@pytest.mark.parametrize(
    "keys", [("taken", "a", "b"), ("a", "taken", "b"), ("a", "taken", "taken", "b"), ("a", "a", "b", "taken")]
)
def test_p2_on_conflict_do_nothing_of_many_rows_inserts_the_new_ones(
    replacing: Database, keys: tuple[str, ...]
) -> None:
    """Known keys in a statement of many rows are skipped, new ones come in, in every order."""
    replacing.insert(idempotency_key="taken")
    rows = ", ".join(f"('email', '{key}', '{{}}')" for key in keys)
    replacing(
        f"INSERT INTO agent_action (kind, idempotency_key, payload) VALUES {rows} "
        "ON CONFLICT (idempotency_key) DO NOTHING"
    )
    assert replacing("SELECT idempotency_key FROM agent_action ORDER BY id") == [("taken",), ("a",), ("b",)]


@SQLITE_ALONE("Postgres has no such statement")
def test_p3_a_replace_after_a_repeat_is_still_refused(replacing: Database) -> None:
    """What one statement noted about a key is not believed by the next."""
    replacing.insert(idempotency_key="taken")
    repeat = f"{PLAIN} ON CONFLICT (idempotency_key) DO NOTHING"
    replacing(repeat, "taken")
    replacing(PLAIN, "new")
    replacing("DELETE FROM agent_action_insertion")
    replacing.refuses(
        "REPLACE would delete",
        "REPLACE INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'taken', '{}')",
    )


def test_p2_an_upsert_that_would_change_the_first_is_refused(db: Database) -> None:
    """ON CONFLICT DO UPDATE meets the same guard as any UPDATE."""
    db.insert(idempotency_key="taken")
    db.refuses(
        "never change",
        f"{PLAIN} ON CONFLICT (idempotency_key) DO UPDATE SET payload = '{{\"second\":1}}'",
        "taken",
    )


# --- kinds that people approve ---------------------------------------------------------------------------------------


def test_p3_a_kind_that_requires_approval_is_only_proposed(db: Database) -> None:
    """Nobody inserts such an action as admitted, nor admits it without a name."""
    db("INSERT INTO agent_action_kind (kind, requires_approval) VALUES ('email', 1)")
    db.refuses("this kind requires approval; insert it as PROPOSED", PLAIN, "k")
    action = db.insert(state="PROPOSED")
    db.refuses("decided_by must say whose", "UPDATE agent_action SET state = 'ADMITTED' WHERE id = ?", action)
    db("UPDATE agent_action SET state = 'ADMITTED', decided_by = 'ann' WHERE id = ?", action)
    assert db.state(action) == "ADMITTED"


def test_a_kind_that_requires_no_approval_is_admitted_by_anybody(db: Database) -> None:
    """Declared without approval, a proposal needs no name, whatever another kind requires."""
    db("INSERT INTO agent_action_kind (kind, requires_approval) VALUES ('email', 0), ('payment', 1)")
    action, admitted = db.insert(state="PROPOSED"), db.insert()
    db("UPDATE agent_action SET state = 'ADMITTED' WHERE id = ?", action)
    assert db.state(action) == db.state(admitted) == "ADMITTED"


def test_what_was_admitted_before_its_kind_required_approval_is_given_back(db: Database) -> None:
    """A retry is no new admission."""
    action = db.bring_to(State.EXECUTING)
    db("INSERT INTO agent_action_kind (kind, requires_approval) VALUES ('email', 1)")
    db(f"UPDATE agent_action SET {step_to(State.ADMITTED)} WHERE id = ?", action)
    assert db.state(action) == "ADMITTED"


def test_a_row_that_expired_before_it_came_is_accepted_and_waits_for_the_reaper(db: Database) -> None:
    """A late enqueue is stored, so that its key is known, and never claimed."""
    action = db.insert(expires_at=LONG_AGO)
    assert db.state(action) == "ADMITTED"


@SQLITE_ALONE("two connections to one file; tests/postgres has its own")
def test_p1_an_insert_exists_exactly_when_its_transaction_commits(open_plain: OpenPlain, tmp_path: Path) -> None:
    """Rolled back it leaves nothing, committed it is there."""
    db, other = open_plain(str(tmp_path / "app.db")), open_plain(str(tmp_path / "app.db"))
    db("BEGIN IMMEDIATE")
    db(PLAIN, "lost")
    db("ROLLBACK")
    db("BEGIN IMMEDIATE")
    db(PLAIN, "kept")
    db("COMMIT")
    assert other("SELECT idempotency_key FROM agent_action") == [("kept",)]
