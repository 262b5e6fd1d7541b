"""Other queues in Postgres, carrying out the same number of jobs that do nothing. Each works as its own manual says."""

import asyncio
import logging
import time
from datetime import timedelta

import asyncpg  # type: ignore[import-untyped]
import procrastinate
import uvloop
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries
from pgqueuer.types import QueueExecutionMode
from procrastinate.types import JSONValue

from benchmarks.workload import PAYLOAD
from edgeoutbox.testing.postgres import as_url

PART = 1_000
"""How many jobs are enqueued at once."""


def procrastinate_per_s(conninfo: str, count: int, concurrency: int) -> float:
    """Jobs per second through one worker, on its psycopg pool; `concurrency` jobs at once (its default is 1)."""
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    return asyncio.run(_procrastinate(conninfo, count, concurrency))


async def _procrastinate(conninfo: str, count: int, concurrency: int) -> float:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=conninfo))
    ran = 0

    @app.task(name="noop")
    async def noop(text: str) -> None:
        nonlocal ran
        del text
        ran += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, count, PART):
            part: list[dict[str, JSONValue]] = [{**PAYLOAD} for _ in range(start, min(count, start + PART))]
            await noop.batch_defer_async(*part)
        await app.connector.execute_query_async("ANALYZE procrastinate_jobs")
        began = time.perf_counter()
        await app.run_worker_async(
            wait=False, concurrency=concurrency, install_signal_handlers=False, listen_notify=False
        )
        took = time.perf_counter() - began
    return _rate(count, ran, took)


def pgqueuer_per_s(conninfo: str, count: int, batch: int) -> float:
    """Jobs per second through one worker, on asyncpg and uvloop as its own command; `batch` jobs are taken at once."""
    logging.getLogger("pgqueuer").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_pgqueuer(as_url(conninfo), count, batch))


async def _pgqueuer(url: str, count: int, batch: int) -> float:
    connection = await asyncpg.connect(url)
    try:
        driver = AsyncpgDriver(connection)
        queries = Queries(driver)
        await queries.install()
        for start in range(0, count, PART):
            part = range(start, min(count, start + PART))
            await queries.enqueue(["noop"] * len(part), [PAYLOAD["text"].encode() for _ in part], [0] * len(part))
        await connection.execute("ANALYZE pgqueuer")
        ran = 0
        worker = PgQueuer(driver)

        @worker.entrypoint("noop")
        async def noop(job: Job) -> None:
            nonlocal ran
            del job
            ran += 1

        began = time.perf_counter()
        await worker.qm.run(timedelta(seconds=1), batch_size=batch, mode=QueueExecutionMode.drain)
        took = time.perf_counter() - began
    finally:
        await connection.close()
    return _rate(count, ran, took)


def _rate(count: int, ran: int, took: float) -> float:
    if ran != count:
        raise SystemExit(f"{ran} of {count} jobs ran")
    return count / took
