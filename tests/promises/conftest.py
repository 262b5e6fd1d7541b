from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.executor.world import DRIVERS, DriverType, World


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.copy)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A database of each driver."""
    driver: DriverType = request.param
    opened = World(tmp_path / "app.db", driver)
    async with opened.stack:
        yield opened


@pytest.fixture(autouse=True)
def _brisk_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reap and run owed hooks fifty times a second, so that no test waits for the next full one."""
    monkeypatch.setattr("edgeoutbox.executor.upkeep.TICK", 0.02)
