import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeoutbox.storage import open_storage
from edgeoutbox.storage.postgres.sessions import Session
from edgeoutbox.storage.sqlite.drivers import DriverConnection
from tests.copying.world import Database, copied, enqueue, fill

PROGRAM = Path(__file__).with_name("killed.py")


def run(
    source: Database, destination: Database, last: int, what: signal.Signals = signal.SIGKILL
) -> subprocess.CompletedProcess[str]:
    """Copy, and get the signal at this statement."""
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, str(PROGRAM), str(last), what.name, "copy", source.url, destination.url, "--all"],
        cwd=PROGRAM.parents[2],
        env={"PYTHONPATH": str(PROGRAM.parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_killed_copy_is_run_again(way: tuple[Database, Database], seed: int) -> None:
    """Killed again and again at any statement, a copy that is repeated ends with everything there once, guarded."""
    source, destination = way
    await fill(source)
    storage = open_storage(source.url)
    await storage.open()
    for number in range(12):
        await enqueue(storage, f"{number:02}", f"lane {number % 2}")
    await storage.close()
    before = source.contents()
    kills, last = 0, random.Random(seed).randrange(10, 60)  # noqa: S311 - a test's
    while (done := run(source, destination, last)).returncode != 0:
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
        assert not _broken(destination), "a killed copy left the guard aside"
        last += random.Random(seed * 1000 + kills).randrange(20, 90)  # noqa: S311 - a test's
    assert kills >= 2
    assert destination.contents() == before
    assert source.contents() == before
    assert (await copied(source, destination, everything=True)).copied == 0
    keys = "SELECT idempotency_key FROM agent_action ORDER BY id"
    assert destination.column(keys) == source.column(keys)


async def test_ctrl_c_says_how_to_go_on(way: tuple[Database, Database]) -> None:
    """SIGINT ends a copy between two batches or statements, with a word on what holds now; the next one finishes."""
    source, destination = way
    await fill(source)
    of_schema = 0 if destination.path is None else 65  # which Postgres is given as one text
    stopped = run(source, destination, of_schema + 60, signal.SIGINT)
    assert stopped.returncode == 130, stopped.stderr
    assert "interrupted: what went over stays, the source is on hold" in stopped.stderr
    assert len(destination.contents()) < len(source.contents())
    assert not _broken(destination)
    assert run(source, destination, 0).returncode == 0
    assert destination.contents() == source.contents()


def _broken(database: Database) -> bool:
    """Whether the tables are there and their guard is not."""
    if database.path is not None and not database.path.exists():
        return False
    guards = database.guards()
    if database.path is not None:
        made = database.sql("SELECT 1 FROM sqlite_master WHERE name = 'agent_action'")
        return bool(made) and "guard_agent_action_id" not in {row[0] for row in guards}
    return any(row[1] != "O" for row in guards)


async def test_a_batch_that_fails_while_the_guard_is_aside_undoes_itself(
    pair: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the guard cannot be put back, the batch is not there either: no commit is without the guard."""
    source, destination = pair
    await fill(source)
    await copied(source, destination)
    await _enqueue_more(source)
    before, guards = destination.contents(), destination.guards()
    with monkeypatch.context() as patched:
        for owner, name, text in (
            (DriverConnection, "execute", "CREATE TRIGGER"),
            (Session, "_spelled", "ENABLE TRIGGER"),
        ):
            patched.setattr(owner, name, _failing(getattr(owner, name), text))
        with pytest.raises(RuntimeError, match="no disk"):
            await copied(source, destination)
    assert destination.guards() == guards
    assert destination.contents() == before
    assert (await copied(source, destination)).copied == 1


def _failing(original: Any, text: str) -> Any:
    def fail(self: Any, sql: str, *more: Any) -> Any:
        if text in sql:
            raise RuntimeError("no disk")
        return original(self, sql, *more)

    return fail


async def _enqueue_more(database: Database) -> None:
    storage = open_storage(database.url)
    await storage.open()
    await enqueue(storage, "one more")
    await storage.close()
