import sqlite3
from contextlib import closing

import pytest

from tests.cli.terminal import Terminal, message


@pytest.fixture
def proposed(ready: Terminal) -> Terminal:
    """One proposal."""
    ready.run("propose", "email", "letter", message(), "--run", "run-9")
    return ready


def test_admit_shows_first(proposed: Terminal) -> None:
    """Without a digest and without a terminal `admit` shows what would be sent, and admits nothing."""
    out = proposed.run("admit", "letter", "--by", "anna", exit_code=2)
    assert "To: jane@example.com" in out
    assert f"digest: {proposed.json('show', 'letter')['payload_digest']}" in out
    assert proposed.json("show", "letter")["state"] == "PROPOSED"


def test_admit_by_digest(proposed: Terminal) -> None:
    """The digest of what was shown admits exactly that, under the name of who did."""
    digest = proposed.json("show", "letter")["payload_digest"]
    admitted = proposed.json("admit", "letter", "--by", "anna", "--digest", digest, "--note", "fine")
    assert (admitted["state"], admitted["decided_by"], admitted["decision_note"]) == ("ADMITTED", "anna", "fine")


def test_admit_with_another_digest(proposed: Terminal) -> None:
    """Another digest admits nothing."""
    proposed.run("admit", "letter", "--by", "anna", "--digest", "sha256:" + "0" * 64, exit_code=1)
    assert "digest" in proposed.said
    assert proposed.json("show", "letter")["state"] == "PROPOSED"


def test_admit_by_answer(proposed: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person at a terminal sees it and answers; only yes admits."""
    monkeypatch.setattr("edgeoutbox.cli.deciding.at_terminal", lambda: True)
    proposed.run("admit", "letter", "--by", "anna", exit_code=2, typed="n\n")
    assert proposed.json("show", "letter")["state"] == "PROPOSED"
    proposed.run("admit", "letter", "--by", "anna", typed="y\n")
    assert proposed.json("show", "letter")["state"] == "ADMITTED"


def test_admit_what_another_program_inserted(ready: Terminal) -> None:
    """A row inserted by SQL has no digest yet: the one that is shown is of the stored payload, and admits it."""
    with closing(sqlite3.connect(ready.folder / "edgeoutbox.db")) as database:
        database.execute(
            "INSERT INTO agent_action (kind, idempotency_key, payload, state) VALUES ('fax', 'k', ?, 'PROPOSED')",
            ('{"number":  5, "a": "\\u001b[31m"}',),
        )
        database.commit()
    out = ready.run("admit", "k", "--by", "anna", exit_code=2)
    assert "\x1b" not in out
    assert "as it is stored" in ready.said
    digest = out.rpartition("digest: ")[2].strip()
    assert ready.json("admit", "k", "--by", "anna", "--digest", digest)["payload_digest"] == digest


def test_refuse(proposed: Terminal) -> None:
    """A refused proposal ends, and cannot be admitted any more."""
    refused = proposed.json("refuse", "letter", "--by", "anna")
    assert (refused["state"], refused["stop_reason"], refused["decided_by"]) == ("CANCELLED", "REFUSED", "anna")
    proposed.run("admit", "letter", "--by", "anna", exit_code=1)
    assert "is CANCELLED, not PROPOSED" in proposed.said


def test_withdraw(proposed: Terminal) -> None:
    """An action that has not started is withdrawn once."""
    assert proposed.run("withdraw", "letter") == "Action 1 is CANCELLED (WITHDRAWN).\n"
    proposed.run("withdraw", "letter", exit_code=1)
    assert "it has ended already; nothing is left to withdraw" in proposed.said
    proposed.run("withdraw", exit_code=2)


def test_withdraw_a_run(proposed: Terminal) -> None:
    """`--run` withdraws everything of a run that has not started, latest first."""
    proposed.run("enqueue", "email", "second", message(), "--run", "run-9")
    assert [action["id"] for action in proposed.json("withdraw", "--run", "run-9")] == [2, 1]
    assert proposed.json("withdraw", "--run", "run-9") == []


def test_withdraw_lost(ready: Terminal) -> None:
    """What a vanished executor left is ended by hand: UNCERTAIN when its write had started."""
    ready.run("enqueue", "email", "k", message())
    ready.run("withdraw", "k", "--lost", exit_code=1)
    with closing(sqlite3.connect(ready.folder / "edgeoutbox.db")) as database:
        database.execute(
            "UPDATE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'gone',"
            " lease_expires_at = 2 WHERE id = 1"
        )
        database.execute("UPDATE agent_action SET write_started_at = 1 WHERE id = 1")
        database.commit()
    ready.run("withdraw", "k", exit_code=1)
    ended = ready.json("withdraw", "k", "--lost")
    assert (ended["state"], ended["stop_reason"]) == ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")
