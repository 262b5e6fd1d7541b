"""Drain: actions per second through claim, durable fence and settle, beside single-row transactions per second.

    python -m benchmarks.drain [--json] [--driver apsw|stdlib] [--concurrency 256] [--quick]
    python -m benchmarks.drain --postgres [--json] [--actions 10000] [--concurrency 256] [--quick] [--stale]

With --postgres everything is measured on a Postgres server, beside other queues; see benchmarks/postgres.py.

The executor runs as under `edgeoutbox run`, which sets what it has loaded apart from the collector of cycles.
The yardstick is measured right before and right after, in this process, on the same disk: one row inserted per
transaction through apsw, WAL, synchronous=FULL. Where a yardstick insert takes less than 150 microseconds the disk
hardly waits, and the ratio says nothing about sharing its price; it is printed and not judged.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

import apsw

from benchmarks.claims import SqliteBacklogs, claim_ms
from benchmarks.wakes import idle_cpu_percent, wake_ms
from benchmarks.workload import folder, outbox, requests
from edgeoutbox import Executor, Outbox
from edgeoutbox.sidecar.heap import settled_heap

ACTIONS = 10_000
LANES = 1_000
ONE_LANE = 2_000
YARDSTICK_ROWS = 2_000
SLOW_DISK_MICROSECONDS = 150.0
WANTED = {256: 2.5, 64: 1.8}


def yardstick(path: Path) -> float:
    """Single-row insert transactions per second."""
    connection = apsw.Connection(str(path))
    for statement in (
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        "CREATE TABLE IF NOT EXISTS row (text)",
    ):
        connection.execute(statement).fetchall()
    began = time.perf_counter()
    for _ in range(YARDSTICK_ROWS):
        connection.execute("INSERT INTO row VALUES (?)", ("x" * 200,))
    took = time.perf_counter() - began
    connection.close()
    return YARDSTICK_ROWS / took


async def drain(closed: Outbox, concurrency: int, count: int, lanes: int) -> float:
    """Actions per second."""
    async with closed as box:
        await box.enqueue_many(requests(count, lanes))
        executor = Executor(box, concurrency=concurrency)
        with settled_heap():
            began = time.perf_counter()
            await executor.run(until_idle=True)
            took = time.perf_counter() - began
        done = executor.metrics.total("action.ended", state="DONE")
        if done != count:
            raise SystemExit(f"{done} of {count} actions ended DONE")
    return count / took


async def enqueue_rates(closed: Outbox) -> tuple[float, float]:
    """Enqueues per second, one at a time and many at once."""
    async with closed as box:
        singles = requests(1_000, LANES, "single")
        began = time.perf_counter()
        for request in singles:
            await box.enqueue(request)
        one_by_one = len(singles) / (time.perf_counter() - began)
        many = requests(ACTIONS, LANES, "many")
        began = time.perf_counter()
        await box.enqueue_many(many)
        return one_by_one, len(many) / (time.perf_counter() - began)


def measure(driver: str, concurrency: int, *, quick: bool) -> dict[str, object]:
    """Every figure, in one run."""
    with folder() as where:
        before = yardstick(where / "yardstick.db")
        rates = []
        for turn in range(3):
            say(f"drain {turn + 1} of 3")
            box = outbox(where / f"drain-{turn}.db", driver, concurrency)
            rates.append(asyncio.run(drain(box, concurrency, ACTIONS, LANES)))
        after = yardstick(where / "yardstick.db")
        say("one lane")
        one_lane = asyncio.run(drain(outbox(where / "lane.db", driver, concurrency), concurrency, ONE_LANE, 1))
        one_by_one, many = asyncio.run(enqueue_rates(outbox(where / "enqueue.db", driver)))
        say("wakes and idle processor time")
        wakes = wake_ms(where, driver, 100 if quick else 500)
        idle = idle_cpu_percent(where, driver, 5.0 if quick else 20.0)
        claims = claim_ms(SqliteBacklogs(where, driver), quick=quick, say=say)
    per_s = statistics.mean([before, after])
    rate = statistics.median(rates)
    return {
        "driver": driver,
        "concurrency": concurrency,
        "yardstick_per_s": round(per_s),
        "drain_per_s": round(rate),
        "ratio": round(rate / per_s, 2),
        "judged": 1e6 / per_s >= SLOW_DISK_MICROSECONDS,
        "one_lane_per_s": round(one_lane),
        "enqueue_per_s": round(one_by_one),
        "enqueue_many_per_s": round(many),
        "wake_ms": wakes,
        "idle_cpu_percent": idle,
        "claim_ms": claims,
    }


def say(what: str) -> None:
    """Tell whoever waits."""
    print(f"  {what} ...", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--driver", choices=["apsw", "stdlib"], default="apsw")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--quick", action="store_true", help="a tenth of the big backlogs, fewer wakes")
    parser.add_argument("--postgres", action="store_true", help="on Postgres, beside other queues")
    parser.add_argument("--actions", type=int, default=ACTIONS, help="with --postgres: how many each system drains")
    parser.add_argument("--stale", action="store_true", help="with --postgres: claims without fresh statistics")
    options = parser.parse_args()
    if options.postgres:
        from benchmarks import postgres  # noqa: PLC0415 - it needs the other queues, which this file does not

        return postgres.report(
            options.concurrency, options.actions, quick=options.quick, stale=options.stale, as_json=options.json
        )
    figures = measure(options.driver, options.concurrency, quick=options.quick)
    if options.json:
        return print(json.dumps(figures))
    for name, value in figures.items():
        print(f"{name:>20}  {value}")
    if not figures["judged"]:
        print(f"a yardstick insert takes under {SLOW_DISK_MICROSECONDS:.0f} microseconds here: the ratio is not judged")
    elif options.concurrency in WANTED:
        print(f"wanted: a ratio of at least {WANTED[options.concurrency]}")
    return None


if __name__ == "__main__":
    main()
