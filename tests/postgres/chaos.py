"""A story of several hosts over one server: what is started, killed, cut and restarted, and what can be seen of it."""

import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.testing.postgres import PostgresServer, as_url
from tests.postgres.cutting import Cable, Odds
from tests.postgres.provider import Provider, milliseconds

HOSTS = 4
PER_SECOND = 40
"""How many actions are enqueued in a second."""

RESTARTS = (0.25, 0.6)
"""After which parts of the work the server is killed and started again."""

CALM_AFTER = 0.9
"""After which part of the work nothing bad happens any more."""

PATIENCE = 40.0
"""Seconds for which nothing may end."""

SAID_WITHIN = 5.0
"""Seconds in which a host says how an attempt ended, once it can: it asks every 2 seconds, and one try may be cut."""

Row: TypeAlias = tuple[Any, ...]


@dataclass
class Host:
    """A process, what it calls itself, and how and when it was ended."""

    name: str
    build: int
    process: asyncio.subprocess.Process
    started: int = field(default_factory=milliseconds)
    ended: int | None = None
    by: signal.Signals | None = None

    def end(self, by: signal.Signals) -> None:
        """Kill it, or ask it to stop."""
        if self.process.returncode is None and self.by is not by:
            self.by, self.ended = by, milliseconds()
            self.process.send_signal(by)


@dataclass
class Story:
    """What happened, and what is left."""

    seed: int
    provider: Provider
    hosts: list[Host] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    actions: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    orders: set[int] = field(default_factory=set)
    said: str = ""
    """What every process wrote to its standard error."""
    away: list[tuple[int, int]] = field(default_factory=list)
    """When the server was killed, and when it was there again: milliseconds, as in the tables."""
    seconds: float = 0.0

    def lost(self) -> Iterator[dict[str, Any]]:
        """The attempts of which nobody said how they ended."""
        return (row for row in self.attempts if row["settled_at"] is None)

    def outlived(self, attempt: dict[str, Any]) -> bool:
        """Whether the attempt's host lived long enough to say how it ended, though the server was away meanwhile."""
        host = killed(self.hosts, attempt["owner"])
        if host is None or host.ended is None:
            return True
        patience = round(SAID_WITHIN * 1000)
        over: int = attempt["lease_expires_at"]
        back = (end for start, end in self.away if start < over + patience and end > attempt["started_at"])
        return host.ended > max([over, *back]) + patience

    def told(self) -> str:
        """The figures, in one line."""
        ends = Counter(f"{row['state']} {row['stop_reason']}" for row in self.actions)
        calls = Counter(f"{call.do} {call.came}" for call in self.provider.calls)
        lost = Counter("by the living" if self.outlived(row) else "by the dead" for row in self.lost())
        late = sum(row["recorded"] == 0 for row in self.attempts)
        return (
            f"seed {self.seed}: {len(self.actions)} actions in {self.seconds:.0f} s; {_listed(self.happened)}; "
            f"{_listed(ends)}; calls: {_listed(calls)}; "
            f"{len(self.attempts)} attempts, lost: {_listed(lost) or None}, {late} too late"
        )


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))


async def program(name: str, stderr: Path, *arguments: object) -> asyncio.subprocess.Process:
    """Start a program of this folder; what it writes to its standard error is appended to a file."""
    with stderr.open("ab") as opened:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"tests.postgres.{name}", *map(str, arguments)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=opened,
            cwd=Path(__file__).parents[2],
        )


class World:
    """Starts and ends what lives in a story."""

    def __init__(self, seed: int, count: int, server: PostgresServer, odds: Odds) -> None:
        self._seed = seed
        self._count = count
        self._server = server
        self._odds = odds
        self._dice = random.Random(seed)  # noqa: S311 - a schedule, no secret
        self._folder = Path(tempfile.mkdtemp(prefix="edgeoutbox-hosts-"))
        self._log = self._folder / "log"
        self._direct = ""
        self._application: asyncio.subprocess.Process | None = None
        self._running: dict[int, Host] = {}
        self._best = (0.0, time.monotonic())
        self._cable: Cable
        self.story = Story(seed, Provider(seed))

    async def live(self) -> Story:
        """Let all of it happen, until everything has ended."""
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._direct = self._server.fresh_schema(schema_sql() + "CREATE TABLE orders (id bigint PRIMARY KEY);")
            host = Path(str(conninfo_to_dict(self._direct)["host"]))
            self._cable = await stack.enter_async_context(Cable(self._folder, host, self._dice, self._odds))
            listening = await asyncio.start_unix_server(self.story.provider.connected, self._folder / "provider")
            stack.callback(listening.close)
            stack.push_async_callback(self._end_all)
            await self._trouble()
            await self._calm()
            await self._end_all()
            self._look()
            self.story.seconds = time.monotonic() - started
        return self.story

    async def _trouble(self) -> None:
        restarts = list(RESTARTS)
        killed_application = 0
        while (done := await self._done()) < CALM_AFTER:
            await self._start_missing(self._dice.random() < 0.7)
            if restarts and done >= restarts[0]:
                del restarts[0]
                await self._restart_server()
            elif self._dice.random() < 0.04 * (2 - killed_application) and self._application is not None:
                killed_application += 1
                self._happens("application killed")
                self._application.kill()
            else:
                await self._something_bad()
            await asyncio.sleep(self._dice.uniform(0.1, 0.9))

    async def _something_bad(self) -> None:
        match self._dice.choices(["kill", "stop", "terminate", "cut", "nothing"], [3, 1, 3, 3, 1])[0]:
            case "kill":
                self._end(signal.SIGKILL)
            case "stop":
                self._end(signal.SIGTERM)
            case "terminate":
                await self._sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'edgeoutbox' ORDER BY random() LIMIT 1"
                )
                self._happens("backend terminated")
            case "cut":
                self._cable.cut_one()

    async def _calm(self) -> None:
        self._cable.quiet = True
        while await self._done() < 1.0:
            await self._start_missing(True)
            await asyncio.sleep(0.2)
        await self._start_missing(True)
        assert self._application is not None
        async with asyncio.timeout(PATIENCE):
            while await self._application.wait() != 0:
                await self._start_missing(True)

    async def _start_missing(self, hosts: bool) -> None:
        for slot in range(HOSTS):
            host = self._running.get(slot)
            if host is not None and host.process.returncode is not None:
                assert host.by is not None, f"{host.name} died by itself"
                del self._running[slot]
            if hosts and slot not in self._running:
                await self._start(slot)
        if self._application is None or self._application.returncode not in (None, 0):
            arguments = (self._seed, self._count, self._count / PER_SECOND, self._log)
            self._application = await program(
                "application", self._stderr, self._through, as_url(self._through), *arguments
            )

    async def _start(self, slot: int) -> None:
        name = f"host{slot}.{len(self.story.hosts)}"
        build = 1 + slot % 2
        process = await program("hosts", self._stderr, as_url(self._through), name, self._folder / "provider", build)
        self._running[slot] = Host(name, build, process)
        self.story.hosts.append(self._running[slot])
        self._happens("hosts started")

    def _end(self, by: signal.Signals) -> None:
        alive = [host for host in self._running.values() if host.process.returncode is None and host.by is None]
        if alive:
            self._dice.choice(alive).end(by)
            self._happens("hosts killed" if by is signal.SIGKILL else "hosts stopped")

    async def _end_all(self) -> None:
        for host in self._running.values():
            host.end(signal.SIGKILL)
        processes = [host.process for host in self._running.values()]
        if self._application is not None:
            with contextlib.suppress(ProcessLookupError):
                self._application.kill()
            processes.append(self._application)
        await asyncio.gather(*(process.wait() for process in processes))

    async def _restart_server(self) -> None:
        self._happens("server killed")
        killed_at = milliseconds()
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._dice.uniform(0.0, 1.5))
        await asyncio.to_thread(self._server.start)
        self.story.away.append((killed_at, milliseconds()))

    @property
    def _stderr(self) -> Path:
        return self._folder / "stderr"

    @property
    def _through(self) -> str:
        return make_conninfo(self._direct, host=str(self._folder))

    async def _sql(self, statement: str) -> list[dict[str, Any]]:
        def run() -> list[dict[str, Any]]:
            with self._server.connect(self._direct) as connection:
                cursor = connection.execute(statement.encode())
                names = [column.name for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        return await asyncio.to_thread(run)

    async def _done(self) -> float:
        [row] = await self._sql("SELECT COUNT(*) FILTER (WHERE ended_at IS NOT NULL) AS ended FROM agent_action")
        done = int(row["ended"]) / self._count
        if done > self._best[0]:
            self._best = (done, time.monotonic())
        assert time.monotonic() - self._best[1] < PATIENCE, f"seed {self._seed}: it stands still\n{await self._open()}"
        return done

    async def _open(self) -> str:
        rows = await self._sql("SELECT * FROM agent_action WHERE ended_at IS NULL ORDER BY lane_key, id LIMIT 30")
        return "\n".join(str({name: value for name, value in row.items() if value is not None}) for row in rows)

    def _look(self) -> None:
        with self._server.connect(self._direct) as connection:
            self.story.actions = _dicts(connection, "SELECT * FROM agent_action ORDER BY id")
            self.story.attempts = _dicts(
                connection, "SELECT * FROM agent_action_attempt ORDER BY started_at, action_id"
            )
            self.story.orders = {int(row["id"]) for row in _dicts(connection, "SELECT id FROM orders")}
        self.story.said = self._stderr.read_text()
        for how, times in self._cable.cuts.items():
            self.story.happened[f"cut {how}"] += times

    def _happens(self, what: str) -> None:
        self.story.happened[what] += 1


def _dicts(connection: psycopg.Connection[Row], statement: str) -> list[dict[str, Any]]:
    cursor = connection.execute(statement.encode())
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def killed(hosts: Iterable[Host], owner: str | None) -> Host | None:
    """The host that called itself this, if it was ended."""
    name = (owner or "").rpartition(":")[0]
    return next((host for host in hosts if host.name == name and host.by is not None), None)
