"""Wakes: from a commit in another process to the start of the adapter; and what an idle executor costs."""

import asyncio
import multiprocessing
import sqlite3
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.workload import DRIVERS, Nothing, outbox
from edgeoutbox import Adapter, Attempt, Done, Executor, Kind, Outbox, Result, one, prepare
from edgeoutbox.storage.sqlite.backend import SqliteStorage

WARM_UP = 10
GAP = 0.01


class Stopwatch(Adapter[Nothing]):
    """Notes when it was started."""

    def __init__(self) -> None:
        self.kind = Kind("noop", variants=one(Nothing))
        self.started: asyncio.Queue[int] = asyncio.Queue()

    async def execute(self, attempt: Attempt[Nothing]) -> Result:
        """Note the time, then do as any adapter."""
        self.started.put_nowait(time.monotonic_ns())
        await attempt.begin_write()
        return Done()


def _enqueue_on_command(path: str, line: Connection) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    prepare(connection)
    while (key := line.recv()) is not None:
        connection.execute(
            "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('noop', ?, '{\"text\": \"\"}')", (key,)
        )
        line.send(time.monotonic_ns())
    connection.close()


async def _wakes(path: Path, driver: str, count: int) -> list[float]:
    adapter = Stopwatch()
    async with Outbox(SqliteStorage(path, DRIVERS[driver]()), [adapter]) as box, Executor(box):
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_enqueue_on_command, args=(str(path), theirs))
        process.start()
        waits = []
        for n in range(count + WARM_UP):
            await asyncio.sleep(GAP)
            await asyncio.to_thread(ours.send, f"wake:{path.name}:{n}")
            committed = await asyncio.to_thread(ours.recv)
            began = await adapter.started.get()
            waits.append((began - committed) / 1e6)
        ours.send(None)
        process.join()
    return waits[WARM_UP:]


def wake_ms(where: Path, driver: str, count: int) -> dict[str, float]:
    """Milliseconds from commit to adapter start: the best of three runs. A start seen before the commit's end is 0."""
    runs = []
    for turn in range(3):
        waits = sorted(max(0.0, wait) for wait in asyncio.run(_wakes(where / f"wake-{turn}.db", driver, count)))
        cuts = statistics.quantiles(waits, n=100)
        runs.append({"p50": round(cuts[49], 2), "p99": round(cuts[98], 2)})
    return min(runs, key=lambda run: run["p99"])


async def _idle(path: Path, driver: str, seconds: float) -> float:
    async with outbox(path, driver) as box, Executor(box) as executor:
        await executor.until_idle()
        used = time.process_time()
        await asyncio.sleep(seconds)
        return (time.process_time() - used) / seconds * 100


def idle_cpu_percent(where: Path, driver: str, seconds: float) -> float:
    """Percent of one processor that an executor without work uses."""
    return round(asyncio.run(_idle(where / "idle.db", driver, seconds)), 3)
