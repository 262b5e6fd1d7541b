from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.executor.postgres_world import PostgresWorld
from tests.executor.world import DRIVERS, World


@pytest.fixture(params=(*DRIVERS, None), ids=lambda driver: driver.copy if driver else "postgres")
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A database of each driver of SQLite, and one on Postgres."""
    if request.param is None:
        opened: World = PostgresWorld(request.getfixturevalue("postgres_server"))
    else:
        opened = World(tmp_path / "app.db", request.param)
    async with opened.stack:
        yield opened


@pytest.fixture(autouse=True)
def _brisk_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reap and run owed hooks fifty times a second, so that no test waits for the next full one."""
    monkeypatch.setattr("edgeoutbox.executor.upkeep.TICK", 0.02)
