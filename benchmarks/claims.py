"""Claims: what taking 64 heads costs with backlogs of every shape, each beside a million ended rows."""

import asyncio
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.workload import outbox
from edgeoutbox.storage.protocol import Served
from edgeoutbox.storage.sqlite.spelling import NOW
from edgeoutbox.variants import ALWAYS

CLAIM = 64
TURNS = 15
HEADS = 1_000
FAR = 4_000_000_000_000

# Rows that have ended, as a year of work leaves them.
ENDED = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO agent_action (kind, idempotency_key, payload, lane_key)
SELECT 'noop', 'ended:' || i, '{"text": ""}', NULL FROM n
"""

END = f"""
UPDATE agent_action
SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL, is_head = 0, ended_at = {NOW}
WHERE idempotency_key LIKE 'ended:%'
"""

WAITING = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
INSERT INTO agent_action (kind, idempotency_key, payload, lane_key, due_at)
SELECT :kind, :shape || ':' || i, '{"text": "x"}', :shape || ':' || (i % :lanes), :due FROM n
"""


def shapes(*, quick: bool) -> dict[str, list[dict[str, object]]]:
    """Each backlog, as batches of rows; every one has at least 1,000 due heads."""
    big = 10_000 if quick else 100_000
    heads = {"kind": "noop", "shape": "head", "count": HEADS, "lanes": HEADS, "due": 1}
    return {
        "waiting_1000": [heads],
        f"waiting_{big}": [{**heads, "count": big, "lanes": big}],
        f"waiting_{big * 10}": [{**heads, "count": big * 10, "lanes": big * 10}],
        f"one_lane_of_{big}": [heads, {**heads, "shape": "long", "count": big, "lanes": 1}],
        f"deferred_{big}": [heads, {**heads, "shape": "later", "count": big, "lanes": big, "due": FAR}],
        f"unknown_kind_{big}": [heads, {**heads, "kind": "unknown", "shape": "other", "count": big, "lanes": big}],
    }


async def _measure(path: Path, driver: str) -> float:
    served = [Served("noop", ALWAYS, 120_000, 30, CLAIM)]
    async with outbox(path, driver) as box:
        took = []
        for turn in range(TURNS):
            began = time.perf_counter()
            claims = await box.storage.claim(served, CLAIM, f"bench-{turn}")
            took.append((time.perf_counter() - began) * 1000)
            if len(claims) != CLAIM:
                raise SystemExit(f"{len(claims)} claims instead of {CLAIM}")
        return statistics.median(took)


@contextmanager
def _filling(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; PRAGMA temp_store = MEMORY")
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def claim_ms(where: Path, driver: str, *, quick: bool, say: Callable[[str], None]) -> dict[str, float]:
    """Milliseconds for a claim of 64, by backlog shape: the median of 15."""
    ended = 100_000 if quick else 1_000_000
    found = {}
    say(f"{ended} ended rows")
    base = where / "ended.db"
    asyncio.run(_create(base, driver))
    with _filling(base) as connection:
        connection.execute(ENDED, (ended,))
        connection.execute(END)
    for name, batches in shapes(quick=quick).items():
        say(f"claims with {name}")
        path = where / f"{name}.db"
        shutil.copyfile(base, path)
        with _filling(path) as connection:
            for batch in batches:
                connection.execute(WAITING, batch)
        found[name] = round(asyncio.run(_measure(path, driver)), 3)
        for file in where.glob(f"{name}.db*"):
            file.unlink()
    return found


async def _create(path: Path, driver: str) -> None:
    async with outbox(path, driver):
        pass
