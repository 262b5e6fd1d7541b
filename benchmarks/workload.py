"""The actions that the benchmarks carry out: nothing but claim, durable fence, settle and the dispatch log."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

from edgeoutbox import ActionRequest, Adapter, Attempt, Done, Kind, Outbox, Result, one
from edgeoutbox.storage.protocol import Storage
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver

DRIVERS: dict[str, type[ApswDriver] | type[StdlibDriver]] = {"apsw": ApswDriver, "stdlib": StdlibDriver}
PAYLOAD = {"text": "x" * 189}
"""200 bytes as canonical JSON."""


class Nothing(BaseModel):
    """A payload that is only carried."""

    text: str


class NoOp(Adapter[Nothing]):
    """Fences, calls nobody, and is done."""

    def __init__(self, concurrency: int) -> None:
        self.kind = Kind("noop", variants=one(Nothing), concurrency=concurrency)

    async def execute(self, attempt: Attempt[Nothing]) -> Result:
        """Fence and be done."""
        await attempt.begin_write()
        return Done()


def requests(count: int, lanes: int, prefix: str = "a") -> list[ActionRequest]:
    """Actions spread over lanes."""
    return [
        ActionRequest(kind="noop", idempotency_key=f"{prefix}:{n}", lane_key=f"lane:{n % lanes}", payload=PAYLOAD)
        for n in range(count)
    ]


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder on a disk, not in memory: EDGEOUTBOX_BENCH_DIR, or the working directory."""
    with TemporaryDirectory(prefix="bench-", dir=os.environ.get("EDGEOUTBOX_BENCH_DIR", ".")) as name:
        yield Path(name)


def outbox(path: Path, driver: str, concurrency: int = 256) -> Outbox:
    """An outbox of no-op actions in a file."""
    return outbox_on(SqliteStorage(path, DRIVERS[driver]()), concurrency)


def outbox_on(storage: Storage, concurrency: int = 256) -> Outbox:
    """An outbox of no-op actions."""
    return Outbox(storage, [NoOp(concurrency)])
