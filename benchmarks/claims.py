"""Claims: what taking 64 heads costs with backlogs of every shape, each beside a million ended rows."""

import asyncio
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from benchmarks.workload import outbox
from edgeoutbox import Outbox
from edgeoutbox.storage.protocol import Served
from edgeoutbox.storage.sqlite.spelling import NOW
from edgeoutbox.variants import ALWAYS

CLAIM = 64
TURNS = 15
HEADS = 1_000
FAR = 4_000_000_000_000

Batch: TypeAlias = Mapping[str, object]
"""Rows that wait: their `kind`, the `shape` that names their keys and lanes, `count`, `lanes` and `due`."""

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


def shapes(*, quick: bool) -> dict[str, list[Batch]]:
    """Each backlog, as batches of rows; every one has at least 1,000 due heads."""
    big = 10_000 if quick else 100_000
    heads: Batch = {"kind": "noop", "shape": "head", "count": HEADS, "lanes": HEADS, "due": 1}
    return {
        "waiting_1000": [heads],
        f"waiting_{big}": [{**heads, "count": big, "lanes": big}],
        f"waiting_{big * 10}": [{**heads, "count": big * 10, "lanes": big * 10}],
        f"one_lane_of_{big}": [heads, {**heads, "shape": "long", "count": big, "lanes": 1}],
        f"deferred_{big}": [heads, {**heads, "shape": "later", "count": big, "lanes": big, "due": FAR}],
        f"unknown_kind_{big}": [heads, {**heads, "kind": "unknown", "shape": "other", "count": big, "lanes": big}],
    }


class Backlogs(Protocol):
    """Where backlogs are made: first what has ended, then one backlog after the other beside it."""

    def end(self, count: int) -> None:
        """Make rows that have ended."""

    def waiting(self, batches: Sequence[Batch]) -> AbstractContextManager[Outbox]:
        """Make a backlog beside them; the outbox is to be opened."""


async def _measure(closed: Outbox) -> float:
    served = [Served("noop", ALWAYS, 120_000, 30, CLAIM)]
    async with closed as box:
        took = []
        for turn in range(TURNS):
            began = time.perf_counter()
            claims = await box.storage.claim(served, CLAIM, f"bench-{turn}")
            took.append((time.perf_counter() - began) * 1000)
            if len(claims) != CLAIM:
                raise SystemExit(f"{len(claims)} claims instead of {CLAIM}")
        return statistics.median(took)


def claim_ms(backlogs: Backlogs, *, quick: bool, say: Callable[[str], None]) -> dict[str, float]:
    """Milliseconds for a claim of 64, by backlog shape: the median of 15."""
    ended = 100_000 if quick else 1_000_000
    say(f"{ended} ended rows")
    backlogs.end(ended)
    found = {}
    for name, batches in shapes(quick=quick).items():
        say(f"claims with {name}")
        with backlogs.waiting(batches) as closed:
            found[name] = round(asyncio.run(_measure(closed)), 3)
    return found


class SqliteBacklogs:
    """One file with what has ended, and a copy of it for each backlog."""

    def __init__(self, where: Path, driver: str) -> None:
        self._where = where
        self._driver = driver

    def end(self, count: int) -> None:
        """Make rows that have ended."""
        asyncio.run(_create(outbox(self._base, self._driver)))
        with _filling(self._base) as connection:
            connection.execute(ENDED, (count,))
            connection.execute(END)

    @contextmanager
    def waiting(self, batches: Sequence[Batch]) -> Iterator[Outbox]:
        """Make a backlog beside them."""
        path = self._where / "waiting.db"
        shutil.copyfile(self._base, path)
        with _filling(path) as connection:
            for batch in batches:
                connection.execute(WAITING, dict(batch))
        yield outbox(path, self._driver)
        for file in self._where.glob(f"{path.name}*"):
            file.unlink()

    @property
    def _base(self) -> Path:
        return self._where / "ended.db"


@contextmanager
def _filling(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; PRAGMA temp_store = MEMORY")
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def _create(closed: Outbox) -> None:
    async with closed:
        pass
