"""P7: the fence is on disk before the adapter may call the provider."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import apsw
import pytest

from edgeoutbox.storage.protocol import Fence
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import Driver
from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.conformance.story import WINDOW, claim, declare, enqueue
from edgeoutbox.testing.disk import Disk
from tests.storage.tapped import Tapped, TappedDriver

FULL = 2


async def test_p7_every_connection_of_ours_syncs_each_commit(database: Path, driver: Driver) -> None:
    """synchronous=FULL in WAL mode, full barriers, and no checkpoint but our own."""
    connection = driver.open(str(database), 1000, None)
    wanted = {
        "synchronous": FULL,
        "journal_mode": "wal",
        "fullfsync": 1,
        "wal_autocheckpoint": 0,
        "recursive_triggers": 1,
        "busy_timeout": 1000,
    }
    assert {name: connection.execute(f"PRAGMA {name}")[0][0] for name in wanted} == wanted
    connection.close()


async def test_p7_the_fence_is_committed_before_begin_write_returns(
    database: Path, driver: Driver, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's COMMIT has come back when the answer is given, in a transaction that holds the fence."""
    order: list[str] = []

    class Watched(Tapped):
        def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
            rows = super().execute(sql, parameters)
            if "write_started_at = COALESCE" in sql:
                order.append("fence")
            if sql.startswith("COMMIT"):
                order.append(f"committed at synchronous={self.inner.execute('PRAGMA synchronous')[0][0]}")
            return rows

    opening = driver.open
    monkeypatch.setattr(driver, "open", lambda *given: Watched(opening(*given), [], {}))
    storage = SqliteStorage(database, driver, on_connect=clock.register)
    await storage.open()
    await enqueue(storage)
    held = await claim(storage)
    order.clear()
    assert isinstance(await storage.begin_write(held.id, held.epoch, held.owner, WINDOW), Fence)
    order.append("returned")
    assert order == ["fence", f"committed at synchronous={FULL}", "returned"]
    await storage.close()


async def test_p7_a_fence_whose_commit_failed_is_no_fence(database: Path, driver: Driver, clock: MovableClock) -> None:
    """begin_write raises, so that the provider is not called, and nothing is stored."""
    tapped = TappedDriver(driver)
    storage = SqliteStorage(database, tapped, on_connect=clock.register)
    await storage.open()
    await enqueue(storage)
    held = await claim(storage)
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = 13
    tapped.fails["COMMIT"] = [full, full]
    with pytest.raises(Exception, match="cannot be used now"):
        await storage.begin_write(held.id, held.epoch, held.owner, WINDOW)
    action = await storage.get(action_id=held.id)
    assert action is not None
    assert action.write_started_at is None
    assert isinstance(await storage.begin_write(held.id, held.epoch, held.owner, WINDOW), Fence)
    await storage.close()


async def test_p7_a_fence_survives_the_loss_of_everything_that_was_not_synced(tmp_path: Path) -> None:
    """A disk that keeps only what was synced still has the fence when begin_write returned."""
    disk = Disk(tmp_path)
    storage = SqliteStorage(tmp_path / "app.db", disk.driver())
    await storage.open()
    await declare(storage)
    await enqueue(storage)
    held = await claim(storage)
    fence = await storage.begin_write(held.id, held.epoch, held.owner, WINDOW)
    assert isinstance(fence, Fence)
    disk.cut()
    await storage.close()
    disk.restore(lost=1.0)
    with contextlib.closing(apsw.Connection(str(tmp_path / "app.db"))) as survivor:
        assert survivor.execute("SELECT state, write_started_at FROM agent_action").fetchall() == [
            ("EXECUTING", fence.written_at)
        ]
    disk.close()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is a POSIX signal")
@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
def test_p7_a_fence_survives_sigkill(tmp_path: Path, scheme: str) -> None:
    """The process is killed the moment begin_write returned; the fence is there for whoever comes next."""
    program = textwrap.dedent(
        """
        import asyncio, os, signal, sys
        from edgeoutbox.storage import open_storage
        from edgeoutbox.testing.conformance.story import WINDOW, claim, enqueue

        async def main():
            storage = open_storage(sys.argv[1])
            await storage.open()
            await enqueue(storage)
            held = await claim(storage)
            await storage.begin_write(held.id, held.epoch, held.owner, WINDOW)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    )
    database = tmp_path / "app.db"
    done = subprocess.run([sys.executable, "-c", program, f"{scheme}:///{database}"], check=False, timeout=60)  # noqa: S603 - our own program
    assert done.returncode == -9
    copy = tmp_path / "copy.db"
    for suffix in ("", "-wal"):
        shutil.copy(f"{database}{suffix}", f"{copy}{suffix}")
    connection = sqlite3.connect(copy)
    [(state, fence)] = connection.execute("SELECT state, write_started_at FROM agent_action")
    connection.close()
    assert state == "EXECUTING"
    assert fence is not None
    assert os.path.getsize(f"{database}-wal") > 0  # noqa: PTH202 - the fence was in the log, not yet in the file
