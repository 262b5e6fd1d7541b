"""What a process has loaded is set apart from the collector of cycles while it carries out actions."""

import gc
from pathlib import Path
from typing import Any

import pytest

from edgeoutbox import ActionRequest, Attempt, Outbox, Result
from edgeoutbox.sidecar.configuration import Configuration
from edgeoutbox.sidecar.heap import YOUNG, settled_heap
from edgeoutbox.sidecar.service import serve
from edgeoutbox.testing import ScriptedAdapter


class Looking(ScriptedAdapter):
    """Looks how many objects the collector leaves alone while it writes."""

    left_alone = 0

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Look, and carry it out."""
        self.left_alone = gc.get_freeze_count()
        return await super().execute(attempt)


def test_what_exists_is_set_apart_and_given_back() -> None:
    """Also when what runs meanwhile fails."""
    before = gc.get_threshold()
    meanwhile: list[int] = []

    def fails() -> None:
        with settled_heap():
            meanwhile[:] = gc.get_freeze_count(), *gc.get_threshold()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fails()
    left_alone, *thresholds = meanwhile
    assert left_alone > 1_000
    assert thresholds == [YOUNG, *before[1:]]
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


async def test_a_service_runs_on_a_settled_heap(database: Path) -> None:
    """The program that runs sets it apart, for as long as it runs."""
    adapter = Looking()
    url = f"sqlite:///{database}"
    async with Outbox(url, [adapter]) as outbox:
        await outbox.enqueue(ActionRequest(kind="scripted", idempotency_key="a", payload={"text": "x"}))
    assert await serve(
        Configuration(url, concurrency=1, grace=1.0, folder=database.parent), {"scripted": adapter}, until_idle=True
    )
    assert adapter.left_alone > 1_000
    assert gc.get_freeze_count() == 0
