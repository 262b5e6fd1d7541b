import sqlite3
from contextlib import closing
from pathlib import Path

from edgeoutbox import ActionRequest, Outbox
from edgeoutbox.adapter import Check
from edgeoutbox.sidecar.health import check_database


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
    assert found.keys() == {"database", "schema", "sqlite", "journal", "integrity", "executors"}
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
    assert "edgeoutbox schema | sqlite3 app.db" in check.detail


async def test_what_waits_for_nobody(tmp_path: Path) -> None:
    """A due action without an executor, and a kind that was paused, are not ok and say how to go on."""
    url = f"sqlite+apsw:///{tmp_path}/app.db"
    async with Outbox(url) as outbox:
        await outbox.enqueue(ActionRequest(kind="email", idempotency_key="k", payload={}))
        await outbox.allow("email")
        await outbox.pause("email", by="anna")
    found = checks_of(url)
    assert (found["executors"].ok, found["kind email"].ok) == (False, False)
    assert "edgeoutbox run" in found["executors"].detail
    assert found["kind email"].detail == "paused by anna; go on with: edgeoutbox resume email"


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
