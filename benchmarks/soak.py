"""Soak: a steady mix of work at a tenth of capacity, in bad company, and whether everything stays flat and adds up.

    python -m benchmarks.soak --minutes N [--json] [--driver apsw|stdlib] [--seed 1]

An application enqueues in transactions of its own. Two executors carry out: one stays, and its memory is measured; the
other gets SIGKILL every few seconds and is started anew. A neighbour holds the write lock for seconds now and then, and
another pins a snapshot for tens of seconds. The relay and the provider refuse, defer, and lose answers. What ended a
day ago is swept meanwhile. At the end all that waits is carried out, and the producer's ledger, the database, and what
arrived are compared. Every thing that does not hold is a line, and then the exit code is 1.
"""

import argparse
import asyncio
import json
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soaking import past
from benchmarks.soaking.doubts import DOUBTS, Doubt, unexplained
from benchmarks.soaking.kinds import Ports, adapters_of
from benchmarks.soaking.ledger import Row, by_state, lines, never, read_told, unbalanced, unswept
from benchmarks.soaking.producer import plain_request
from benchmarks.soaking.providers import Arrivals, Provider, Weather, WeatheredRelay
from benchmarks.soaking.samples import Sample, growing, resident_mb, size_mb
from benchmarks.workload import folder
from edgeoutbox import Outbox
from edgeoutbox.cli.demo.performance import stop
from edgeoutbox.sidecar.database import Look

ROOT = Path(__file__).resolve().parent.parent
SCHEME = {"apsw": "sqlite+apsw", "stdlib": "sqlite"}
SHARE = 0.1
BURST = 1500
BURST_LASTS = 6.0
FAIR_AT_THE_END = 10.0
"""Seconds of fair weather and no kills before the load ends, a third of it at most: what waits can end soon after."""
SHORTEST = 12.0
"""Seconds of load in which everything that is planned happens."""
PATIENCE = 120.0
"""Seconds that what waits may take to end after the load: leases, and the third of the backoffs."""
JUDGED_FROM = 120.0
"""Seconds of load below which nobody can say whether anything is flat: caches still fill."""
SWEPT_WITHIN = 90.0
"""Seconds in which an executor must have swept what is due; it looks every 60."""

TILL = "CREATE TABLE soak_till (enqueued INTEGER NOT NULL, heard INTEGER NOT NULL, holds INTEGER NOT NULL)"
ROWS = """
SELECT id, idempotency_key, kind, lane_key, state, stop_reason FROM agent_action
WHERE ended_at >= {began} OR ended_at IS NULL ORDER BY id
"""
LEFT = "SELECT ended_at, COUNT(*) FROM agent_action WHERE ended_at < {began} GROUP BY ended_at"
ENDED = "SELECT COUNT(*) FROM agent_action WHERE ended_at >= {began}"
OPEN = """
SELECT COUNT(*) FROM agent_action INDEXED BY ix_agent_action_open WHERE stop_reason IS NULL
"""
SUMS = """
SELECT
  (SELECT enqueued FROM soak_till), (SELECT heard FROM soak_till), (SELECT holds FROM soak_till),
  (SELECT COUNT(*) FROM agent_action_ended),
  (SELECT COUNT(*) FROM agent_action_attempt WHERE action_id NOT IN (SELECT id FROM agent_action)),
  (SELECT group_concat(integrity_check) FROM pragma_integrity_check)
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the run goes, in seconds."""

    load: float
    sample: float
    kill: tuple[float, float]
    hold: float
    pin: float

    @property
    def bad(self) -> float:
        """How much of the load is bad weather."""
        return self.load - min(FAIR_AT_THE_END, self.load / 3)

    @classmethod
    def lasting(cls, seconds: float) -> "Plan":
        """The plan of a load of so many seconds: all of it more often in a short one."""
        if seconds < JUDGED_FROM:
            return cls(seconds, 1.0, (4.0, 8.0), 1.5, min(8.0, seconds / 4))
        return cls(seconds, 5.0, (15.0, 30.0), 3.0, 30.0)


@dataclass
class Soak:
    """One run in a folder."""

    where: Path
    driver: str
    plan: Plan
    seed: int
    weather: Weather = field(init=False)
    arrivals: Arrivals = field(default_factory=Arrivals)
    samples: list[Sample] = field(default_factory=list)
    began: int = 0

    def __post_init__(self) -> None:
        self.weather = Weather(self.seed)

    @property
    def kills(self) -> int:
        """How many executors were killed."""
        return len(self.arrivals.causes.killed)

    async def run(self) -> tuple[dict[str, Any], list[str]]:
        """Its figures, and what does not hold."""
        capacity = await self._capacity()
        rate = capacity * SHARE
        _say(f"capacity {capacity:.0f} actions/s; the load is {rate:.0f}/s for {self.plan.load:.0f} s")
        file = self.where / "soak.db"
        moments = await past.live(file, self.driver, rate, self.plan.load + PATIENCE / 2, _say)
        _make_till(file)
        self.began = round(time.time() * 1000)
        return await self._load(file, capacity, rate, moments)

    def _url(self, file: Path) -> str:
        return f"{SCHEME[self.driver]}:///{file}"

    async def _capacity(self) -> float:
        """Actions per second that two executors end, of the same kinds in fair weather, with nobody beside them."""
        _say("capacity")
        file = self.where / "capacity.db"
        chance = random.Random(self.seed)  # noqa: S311 - no secret
        async with AsyncExitStack() as stack:
            ports = await stack.enter_async_context(_providers(self.weather, Arrivals()))
            async with Outbox(self._url(file), adapters_of(ports)) as outbox:
                await outbox.enqueue_many(plain_request(chance, number) for number in range(BURST))
            _make_till(file)
            executors = [await self._executor(file, ports) for _ in range(2)]
            try:
                began, first = time.monotonic(), self._count(file, ENDED, 0)
                while (  # noqa: ASYNC110 - another process brings it about
                    ended := self._count(file, ENDED, 0)
                ) < BURST and time.monotonic() - began < BURST_LASTS:
                    await asyncio.sleep(0.02)
                took = time.monotonic() - began
            finally:
                for executor in executors:
                    await stop(executor)
        return (ended - first) / took

    async def _load(
        self, file: Path, capacity: float, rate: float, moments: Sequence[past.Moment]
    ) -> tuple[dict[str, Any], list[str]]:
        ledger = self.where / "ledger.jsonl"
        async with AsyncExitStack() as stack:
            ports = await stack.enter_async_context(_providers(self.weather, self.arrivals))
            stays = await self._executor(file, ports)
            stack.push_async_callback(stop, stays)
            common = [str(file), str(ports.relay), str(ports.provider), str(rate)]
            producer = await self._start("producer", *common, str(self.plan.load), str(self.seed), str(ledger))
            stack.push_async_callback(stop, producer)
            holding = [str(self.plan.hold), str(self.plan.pin), str(self.seed)]
            neighbours = await self._start("neighbours", str(file), str(self.plan.load), *holding)
            stack.push_async_callback(stop, neighbours)
            self.weather.fair = False
            async with asyncio.TaskGroup() as beside:  # what fails in it ends the run
                sampling = beside.create_task(self._sample(file, stays.pid))
                killing = beside.create_task(self._kill_and_replace(file, ports, stack))
                await asyncio.sleep(self.plan.bad)
                self.weather.fair = True
                await killing
                told, _ = await neighbours.communicate()
                broken = await self._ended_well({"producer": producer, "neighbours": neighbours})
                broken += await self._until_all_ended(file)
                sampling.cancel()
            alive = stays.returncode is None
            swept_at = round(time.time() * 1000)
        if not alive:
            broken.append("the executor that was not killed ended by itself; see its log")
        figures, unheld = self._balance(file, ledger, moments, json.loads(told or "{}"), swept_at)
        judged = self.plan.load >= JUDGED_FROM
        grows = growing(self.samples) if judged else []
        figures = {
            "driver": self.driver,
            "capacity_per_s": round(capacity),
            "load_per_s": round(rate),
            "kills": self.kills,
            **figures,
            "flat": not grows if judged else "not judged: too short",
        }
        return figures, broken + unheld + grows

    async def _start(self, program: str, *arguments: str) -> asyncio.subprocess.Process:
        with (self.where / f"{program}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"benchmarks.soaking.{program}", *arguments),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def _executor(self, file: Path, ports: Ports) -> asyncio.subprocess.Process:
        process = await self._start("executor", self._url(file), str(ports.relay), str(ports.provider))
        if process.stdout is None or await process.stdout.readline() != b"ready\n":
            raise SystemExit(f"an executor did not start: {(self.where / 'executor.log').read_text(encoding='utf-8')}")
        return process

    async def _kill_and_replace(self, file: Path, ports: Ports, stack: AsyncExitStack) -> None:
        """Leaves an executor to the stack when the killing ends."""
        chance = random.Random(self.seed)  # noqa: S311 - no secret
        mortal = await self._executor(file, ports)
        try:
            while not self.weather.fair:
                await asyncio.sleep(chance.uniform(*self.plan.kill))
                mortal.kill()
                await mortal.wait()
                self.arrivals.causes.killed[str(mortal.pid)] = round(time.time() * 1000)
                mortal = await self._executor(file, ports)
        except BaseException:
            await stop(mortal)
            raise
        stack.push_async_callback(stop, mortal)

    async def _sample(self, file: Path, pid: int) -> None:
        began = time.monotonic()
        while True:
            self.samples.append(
                Sample(
                    round(time.monotonic() - began, 1),
                    resident_mb(pid),
                    size_mb(file),
                    size_mb(file.with_name(f"{file.name}-wal")),
                    self._count(file, ENDED, self.began),
                )
            )
            latest = self.samples[-1]
            if len(self.samples) % 6 == 1:
                _say(
                    f"{latest.at:.0f} s: {latest.ended} ended, {latest.resident:.0f} MB resident, "
                    f"file {latest.file:.1f} MB, log {latest.wal:.1f} MB, {self.kills} kills"
                )
            await asyncio.sleep(self.plan.sample)

    async def _ended_well(self, programs: dict[str, asyncio.subprocess.Process]) -> list[str]:
        broken = []
        for name, process in programs.items():
            if await process.wait():
                log = (self.where / f"{name}.log").read_text(encoding="utf-8").splitlines()
                broken.append(f"the {name} ended with {process.returncode}: {' '.join(log[-1:])}")
        return broken

    async def _until_all_ended(self, file: Path) -> list[str]:
        until = time.monotonic() + PATIENCE
        while waiting := self._count(file, OPEN, 0):
            if time.monotonic() > until:
                return [f"{waiting} actions have not ended {PATIENCE:.0f} s after the load"]
            await asyncio.sleep(0.2)
        return []

    def _count(self, file: Path, sql: str, began: int) -> int:
        [(count,)] = self._look(file, sql, began)
        return int(count)

    def _look(self, file: Path, sql: str, began: int) -> Sequence[tuple[Any, ...]]:
        with Look(self._url(file)) as look:
            return look.rows(sql.format(began=began))

    def _balance(
        self, file: Path, ledger: Path, moments: Sequence[past.Moment], neighbours: dict[str, int], swept_at: int
    ) -> tuple[dict[str, Any], list[str]]:
        rows = [Row(*row) for row in self._look(file, ROWS, self.began)]
        left = {int(at): int(count) for at, count in self._look(file, LEFT, self.began)}
        [(enqueued, heard, holds, owed, orphans, integrity)] = self._look(file, SUMS, 0)
        told = read_told(ledger)
        must_be_swept = swept_at - round(SWEPT_WITHIN * 1000)
        doubts = [Doubt(*row) for row in self._look(file, DOUBTS, self.began)]
        broken = unbalanced(rows, told, self.arrivals.order) + unswept(moments, left, (must_be_swept, swept_at))
        broken += lines(unexplained(doubts, self.arrivals.causes))
        swept = sum(moment.count for moment in moments) - sum(left.values())
        drafts = sum(row.kind == "draft" for row in rows)
        equal = {
            "enqueues that the application counted in its transactions, and rows": (enqueued, len(rows)),
            "ends that the hook counted, and drafts": (heard, drafts),
            "hooks that are owed": (owed, 0),
            "attempts of no action": (orphans, 0),
            "locks that the neighbour held, and counted": (neighbours.get("holds"), holds),
            "integrity check": (integrity, "ok"),
        }
        broken += never(
            {
                "swept": swept,
                "an executor killed": self.kills,
                "the lock held by the neighbour": neighbours.get("holds", 0),
                "a snapshot pinned by the other": neighbours.get("pins", 0),
            }
        )
        broken += [f"{what}: {found}, not {wanted}" for what, (found, wanted) in equal.items() if found != wanted]
        figures = {
            "enqueued": len(told.there),
            "rolled_back": len(told.committed) - len(told.there),
            "swept": swept,
            **neighbours,
            "unanswered": len(self.arrivals.causes.unanswered),
            "ended": dict(by_state(rows)),
            "states": dict(Counter(row.state for row in rows)),
            "peaks_mb": {
                name: round(max((getattr(sample, name) for sample in self.samples), default=0.0), 1)
                for name in ("resident", "file", "wal")
            },
            "samples": [[s.at, round(s.resident, 1), round(s.file, 2), round(s.wal, 2), s.ended] for s in self.samples],
        }
        return figures, broken


@asynccontextmanager
async def _providers(weather: Weather, arrivals: Arrivals) -> AsyncIterator[Ports]:
    async with WeatheredRelay(weather, arrivals) as relay, Provider(weather, arrivals) as provider:
        yield Ports(relay.port, provider.port)


def _make_till(file: Path) -> None:
    """The application's own table; no outbox of this process has the file open now."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(TILL)
        connection.execute("INSERT INTO soak_till VALUES (0, 0, 0)")
        connection.commit()


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def main() -> None:
    """Run, print the figures, and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of load; 0.5 is the quick form")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--driver", choices=["apsw", "stdlib"], default="apsw", help="that of the executors")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("the memory of another process is read from /proc: this runs on Linux")
    if options.minutes * 60 < SHORTEST:
        parser.error(f"--minutes: at least {SHORTEST / 60}, or there is no time for what is planned")
    with folder() as where:
        soak = Soak(where.absolute(), options.driver, Plan.lasting(options.minutes * 60), options.seed)
        figures, broken = asyncio.run(soak.run())
    if options.json:
        print(json.dumps({**figures, "broken": broken}))
    else:
        for name, value in figures.items():
            if name != "samples":
                print(f"{name:>16}  {value}")
    for line in broken:
        print(f"does not hold: {line}", file=sys.stderr)
    if broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
