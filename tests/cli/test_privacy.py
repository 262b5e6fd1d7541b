import sqlite3
from contextlib import closing

from tests.cli.terminal import Terminal, message


def test_erase(ready: Terminal) -> None:
    """Everything about an account is deleted, after it was confirmed."""
    ready.run("enqueue", "email", "one", message(), "--subject", "acc-7")
    ready.run("enqueue", "email", "two", message())
    ready.run("erase", "acc-7", exit_code=2)
    assert "give --yes" in ready.said
    assert ready.run("erase", "acc-7", "--yes") == "Erased 1 action.\n"
    assert [action["idempotency_key"] for action in ready.json("list")["actions"]] == ["two"]


def test_forget(ready: Terminal) -> None:
    """An ended action is forgotten now, a live one when it ends."""
    ready.run("enqueue", "email", "k", message())
    assert ready.run("forget", "k") == "Action 1 will be deleted once it has ended.\n"
    ready.run("withdraw", "k")
    ready.run("show", "k", exit_code=1)
    ready.run("enqueue", "email", "ended", message())
    ready.run("withdraw", "ended")
    assert ready.run("forget", "2") == "Forgot action 2; its key is free.\n"


def test_sweep(ready: Terminal) -> None:
    """What ended before its kind's retention is deleted, what ended later is not."""
    for key in ("old", "new"):
        ready.run("enqueue", "email", key, message())
        ready.run("withdraw", key)
    with closing(sqlite3.connect(ready.folder / "edgeoutbox.db")) as database:
        database.execute("UPDATE agent_action_kind SET retention_days = 1")
        guards = database.execute("SELECT name FROM sqlite_master WHERE name GLOB 'guard_*'").fetchall()
        for (name,) in guards:  # they would not let anybody change when an action ended
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE agent_action SET ended_at = ended_at - 86400000 * 2 WHERE idempotency_key = 'old'")
        database.commit()
    assert ready.run("sweep", "--kind", "fax") == "Swept 0 actions.\n"
    assert ready.run("sweep") == "Swept 1 action.\n"
    assert [action["idempotency_key"] for action in ready.json("list")["actions"]] == ["new"]
