import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from edgeoutbox import ActionRequest, Outbox, key_suffix
from edgeoutbox.adapter import Check
from edgeoutbox.sidecar.database import driver_of, path_of
from edgeoutbox.sidecar.health import check_database
from edgeoutbox.testing import ScriptedAdapter


def checks_of(url: str) -> dict[str, Check]:
    return {check.name: check for check in check_database(url)}


async def test_a_healthy_database(tmp_path: Path) -> None:
    """A fresh database passes every check, and is not changed by them."""
    url = f"sqlite+apsw:///{tmp_path}/app.db"
    async with Outbox(url):
        pass
    before = (tmp_path / "app.db").read_bytes()
    found = checks_of(url)
    assert {name for name, check in found.items() if not check.ok} == set()
    assert found.keys() == {"database", "schema", "sqlite", "journal", "integrity", "lock", "executors"}
    assert (tmp_path / "app.db").read_bytes() == before


def test_no_database(tmp_path: Path) -> None:
    """A database that is not there is said to be missing, and not made."""
    [check] = check_database(f"sqlite+apsw:///{tmp_path}/app.db")
    assert not check.ok
    assert "edgeoutbox init" in check.detail
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_tables(tmp_path: Path) -> None:
    """An application's database without the tables is named as that."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
    [check] = check_database(f"sqlite+apsw:///{tmp_path}/app.db")
    assert not check.ok
    assert f"edgeoutbox migrate --database {tmp_path}/app.db" in check.detail


async def test_what_waits_for_nobody(tmp_path: Path) -> None:
    """A due action without an executor, and a kind that was paused, are not ok and say how to go on."""
    url = f"sqlite+apsw:///{tmp_path}/app.db"
    async with Outbox(url) as outbox:
        for key in ("k", "behind"):
            await outbox.enqueue(ActionRequest(kind="email", idempotency_key=key, payload={}, lane_key="lane"))
        await outbox.allow("email")
        await outbox.pause("email", by="anna")
    found = {check.name: check for check in check_database(url, {"email"})}
    assert (found["executors"].ok, found["kind email"].ok) == (False, False)
    assert "edgeoutbox run" in found["executors"].detail
    assert found["executors"].detail == "none is running, and what is due waits (1): start edgeoutbox run"
    assert found["kind email"].detail == "paused by anna; go on with: edgeoutbox resume email"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "none is running; nothing waits"),
        (["later"], "none is running; nothing is due; 1 unfinished, the next at "),
        (["later", "behind"], "none is running; nothing is due; 2 unfinished, the next at "),
        (["proposed"], "none is running; nothing is due; 1 unfinished"),
    ],
)
async def test_nothing_is_due(tmp_path: Path, given: list[str], said: str) -> None:
    """What is unfinished is counted though nothing is due, with the time of the first; a proposal has none."""
    url = f"sqlite+apsw:///{tmp_path}/app.db"
    due = datetime(2999, 7, 1, 12, tzinfo=UTC)
    async with Outbox(url) as outbox:
        for key in given:
            request = ActionRequest(kind="email", idempotency_key=key, payload={}, lane_key="lane", due_at=due)
            await (outbox.propose if key == "proposed" else outbox.enqueue)(request)
    when = f"{due.astimezone():%Y-%m-%d %H:%M:%S}" if said.endswith("at ") else ""
    detail = checks_of(url)["executors"].detail
    assert detail.startswith(said + when)
    assert when or detail == said


async def test_a_damaged_database(tmp_path: Path) -> None:
    """Damage is found, and the mend is named."""
    url = f"sqlite+apsw:///{tmp_path}/app.db"
    async with Outbox(url) as outbox:
        for number in range(200):
            await outbox.enqueue(ActionRequest(kind="email", idempotency_key=f"k{number}", payload={"x": "y" * 500}))
    file = tmp_path / "app.db"
    content = bytearray(file.read_bytes())
    place = content.rfind(b"k150")
    content[place - 2000 : place + 2000] = bytes(4000)
    file.write_bytes(content)
    found = checks_of(url)
    assert not all(check.ok for check in found.values())


async def test_a_variant_that_nobody_decodes(tmp_path: Path) -> None:
    """Of a kind that is served, what its executors cannot decode is counted; a kind without an executor is named."""
    url = f"sqlite+apsw:///{tmp_path}/app.db"
    adapter = ScriptedAdapter(variants=key_suffix("send"))
    async with Outbox(url) as outbox:
        for key in ("a:send", "b:retract"):
            await outbox.enqueue(ActionRequest(kind="scripted", idempotency_key=key, payload={}))
        await outbox.enqueue(ActionRequest(kind="email", idempotency_key="c", payload={}))
        await outbox.storage.heartbeat("there", "1", {"scripted": adapter.kind.variants.condition})
    found = {check.name: check for check in check_database(url, {"email"})}
    assert found["kind scripted"].detail.startswith("1 due, of a variant that no running executor decodes; check what")
    assert found["kind email"].detail == "1 due, and no running executor serves it; start edgeoutbox run"
    assert found["executors"].detail == "there (1)"


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
async def test_somebody_holds_the_write_lock(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that another program keeps open is named; once it ended the lock is free."""
    monkeypatch.setattr("edgeoutbox.sidecar.health._LOCK_WAIT", 20)
    url = f"{scheme}:///{tmp_path}/app.db"
    async with Outbox(url):
        pass
    holder = connect(url)
    holder.execute("BEGIN IMMEDIATE")
    assert checks_of(url)["lock"] == Check(
        "lock", ok=False, detail="another program holds the write lock; end its transaction"
    )
    holder.execute("ROLLBACK")
    assert checks_of(url)["lock"].ok
    holder.close()


def connect(url: str) -> sqlite3.Connection | apsw.Connection:
    path = str(path_of(url))
    return apsw.Connection(path) if driver_of(url) == "apsw" else sqlite3.connect(path, isolation_level=None)


def test_what_is_no_database(tmp_path: Path) -> None:
    """A file of something else, and a folder, are named as what they are."""
    (tmp_path / "g.db").write_text("something else" * 100, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    [file] = check_database(f"sqlite+apsw:///{tmp_path}/g.db")
    [folder] = check_database(f"sqlite:///{tmp_path}/folder")
    assert file.detail == "g.db is not an SQLite database; name another with --database"
    assert "is a folder" in folder.detail
