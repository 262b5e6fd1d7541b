import json
import time
from datetime import datetime

import pytest

from tests.cli.terminal import Terminal, message


def test_enqueue(ready: Terminal) -> None:
    """An effect is stored with everything that was given, checked by the adapter of its kind."""
    answer = ready.json(
        *("enqueue", "email", "k", message(), "--lane", "mail:7", "--run", "run-9", "--subject", "acc-7"),
        *("--due", "2030-01-02T03:04:05+00:00", "--expires", "2031-01-02", "--max-attempts", "3"),
    )
    assert answer == {
        "id": 1,
        "created": True,
        "same_content": True,
        "validated": True,
        "state": "ADMITTED",
        "superseded": [],
    }
    shown = ready.json("show", "k", "--payload")
    assert shown["payload"]["to"] == ["jane@example.com"]
    stored = [shown[name] for name in ("lane_key", "run_id", "subject_account_id", "max_attempts", "due_at")]
    assert stored == ["mail:7", "run-9", "acc-7", 3, 1893553445000]
    assert shown["expires_at"] == datetime.fromisoformat("2031-01-02").timestamp() * 1000


def test_same_key_changes_nothing(ready: Terminal) -> None:
    """A key that exists gives the first action; other content is said to be other content, with exit code 1."""
    ready.run("enqueue", "email", "k", message("one"))
    assert ready.run("enqueue", "email", "k", message("one")).startswith("Action 1 holds this key already")
    assert ready.said == ""
    answer = json.loads(ready.run("enqueue", "email", "k", message("two"), "--json", exit_code=1))
    assert answer["same_content"] is False
    assert ready.run("enqueue", "email", "k", message(), "--lane", "mail:7", exit_code=1) == (
        "Action 1 holds this key already with another lane or payload; nothing was changed.\n"
    )
    assert len(ready.json("list")["actions"]) == 1


def test_payload_from_file_and_standard_input(ready: Terminal) -> None:
    """`@FILE` and `-` give the payload from elsewhere."""
    (ready.folder / "letter.json").write_text(message("from file"), encoding="utf-8")
    ready.run("enqueue", "email", "one", "@letter.json")
    ready.run("enqueue", "email", "two", "-", typed=message("from input"))
    subjects = [ready.json("show", key, "--payload")["payload"]["subject"] for key in ("one", "two")]
    assert subjects == ["from file", "from input"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["email", "k", "{"], "payload: not readable as JSON"),
        (["email", "k", "[1]"], "payload: must be a JSON object"),
        (["email", "k", "@missing.json"], "payload: missing.json cannot be read"),
        (["email", "k", message(to="jane.private")], "payload: to.0: "),
        (["Email", "k", "{}"], "kind: "),
        (["email", "k" * 513, message()], "idempotency_key: "),
        (["email", "k", message(), "--due", "soon"], "due: write 2026-12-24T18:00"),
        (["email", "k", message(), "--if-running", "refuse"], "if-running: goes with --supersede"),
        (["email", "k", message(), "--supersede", "--if-running", "wait"], "if-running: choose"),
    ],
)
def test_refused(ready: Terminal, arguments: list[str], said: str) -> None:
    """What is wrong is named by its field and not repeated, and nothing is stored."""
    ready.run("enqueue", *arguments, exit_code=2)
    assert said in ready.said
    assert "jane.private" not in ready.said
    assert ready.json("list")["actions"] == []


def test_kind_that_is_not_configured(ready: Terminal) -> None:
    """Another program's kind is stored as it is, with a note that nobody checked it."""
    assert ready.json("enqueue", "fax", "k", "{}")["validated"] is False
    assert "no adapter of kind fax is configured here" in ready.said


def test_a_missing_secret_does_not_hinder_enqueueing(ready: Terminal) -> None:
    """Only whoever sends needs the password; the payload is checked without it."""
    ready.configure(
        '[kinds.email]\nsender = "a@example.com"\nrelay = "smtp://me@relay.test"\npassword = { env = "PW" }'
    )
    assert ready.json("enqueue", "email", "k", message())["validated"] is True
    ready.run("run", "--until-idle", exit_code=2)
    assert "kind email: password: the environment variable PW is not set" in ready.said


def test_due_in_a_while(ready: Terminal) -> None:
    """`+2h` counts from now."""
    before = time.time() * 1000
    ready.run("enqueue", "email", "k", message(), "--due", "+2h")
    assert 0 <= ready.json("show", "k")["due_at"] - before - 7_200_000 < 60_000


def test_supersede(ready: Terminal) -> None:
    """`--supersede` first cancels what waits in the lane."""
    ready.run("enqueue", "email", "one", message(), "--lane", "mail:7")
    answer = ready.json("enqueue", "email", "two", message(), "--lane", "mail:7", "--supersede")
    assert answer["superseded"] == [1]
    assert ready.json("show", "one")["stop_reason"] == "SUPERSEDED"


def test_approval_that_is_configured_holds_before_an_executor_ran(ready: Terminal) -> None:
    """A kind that requires approval cannot be enqueued past it, also before any executor declared it."""
    ready.configure(
        '[kinds.email]\nsender = "a@example.com"\ndeliver = "capture"\ncapture_dir = "c"\nrequires_approval = true'
    )
    ready.run("enqueue", "email", "k", message(), exit_code=1)
    assert "requires approval" in ready.said
    assert ready.json("propose", "email", "k", message())["state"] == "PROPOSED"


def test_key_of_another_kind(ready: Terminal) -> None:
    """A key that belongs to another kind is refused, with what to do."""
    ready.run("enqueue", "email", "k", message())
    ready.run("enqueue", "fax", "k", "{}", exit_code=1)
    assert "action 1 of kind email" in ready.said
    assert "choose a key that names its kind" in ready.said
