"""The drain on Postgres, beside procrastinate and pgqueuer on the same server in the same run.

    pip install -e '.[postgres,benchmarks]'
    python -m benchmarks.drain --postgres [--json] [--actions 10000] [--concurrency 256] [--quick] [--stale]

The server is a private one with fsync, or the one that EDGEOUTBOX_TEST_POSTGRES names. Every system drains 10,000 jobs
that do nothing (or --actions), with one worker process (this one), at synchronous_commit = on. Systems take turns, and
the median of the rounds counts. Each of our actions is claimed, fenced durably, settled and logged; the others take a
job and log its end, on tables that were analysed before. procrastinate runs one job at once, as is its default, and 16;
pgqueuer takes one job at once, and 10, as is its default. Their jobs have no lanes.

The yardstick is one row inserted per transaction, over one connection, measured in each round. Claims are measured as
on SQLite; --stale does so without ANALYZE.
"""

import asyncio
import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from benchmarks.claims import Batch, claim_ms
from benchmarks.drain import LANES, ONE_LANE, YARDSTICK_ROWS, drain, enqueue_rates, say
from benchmarks.peers import pgqueuer_per_s, procrastinate_per_s
from benchmarks.workload import outbox_on
from edgeoutbox import Outbox
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.testing.postgres import PostgresServer, as_url

ROUNDS = 3
WANTED = {"ratio_to_procrastinate": 2.0, "ratio_to_pgqueuer": 1.0}
MOST_SPREAD = 4.0

# Rows as their triggers would leave them, which are disabled meanwhile.
ENDED = """
INSERT INTO agent_action (id, kind, idempotency_key, is_head, state, stop_reason, admitted_at, ended_at)
SELECT nextval('agent_action_id_seq'), 'noop', 'ended:' || i, 0, 'CANCELLED', 'WITHDRAWN', edgeoutbox_now(),
       edgeoutbox_now()
FROM generate_series(1, CAST(%s AS bigint)) AS i
"""

WAITING = """
INSERT INTO agent_action (id, kind, idempotency_key, payload, lane_key, is_head, due_at, admitted_at)
SELECT nextval('agent_action_id_seq'), %(kind)s, %(shape)s || ':' || i, '{"text": "x"}',
       %(shape)s || ':' || (i %% %(lanes)s), CASE WHEN i <= %(lanes)s THEN 1 ELSE 0 END, %(due)s, edgeoutbox_now()
FROM generate_series(1, CAST(%(count)s AS bigint)) AS i
"""

FACTS = "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
TABLES = ("agent_action", "agent_action_attempt")


def outbox_of(conninfo: str, concurrency: int = 256) -> Outbox:
    """An outbox of no-op actions in a schema."""
    return outbox_on(PostgresStorage(as_url(conninfo)), concurrency)


def yardstick(server: PostgresServer) -> float:
    """Single-row insert transactions per second."""
    with server.connect(server.fresh_schema("CREATE TABLE row (text text)")) as connection:
        began = connection.execute("SELECT clock_timestamp()").fetchall()[0][0]
        for _ in range(YARDSTICK_ROWS):
            connection.execute("INSERT INTO row VALUES (%s)", ("x" * 200,))
        ended = connection.execute("SELECT clock_timestamp()").fetchall()[0][0]
    return YARDSTICK_ROWS / float((ended - began).total_seconds())


class PostgresBacklogs:
    """One schema with what has ended; a backlog is made beside it, and deleted after its turn."""

    def __init__(self, server: PostgresServer, *, stale: bool) -> None:
        self._conninfo = server.fresh_schema(schema_sql())
        self._server = server
        self._stale = stale

    def end(self, count: int) -> None:
        """Make rows that have ended."""
        with self._filling() as connection:
            connection.execute(ENDED, (count,))

    @contextmanager
    def waiting(self, batches: Sequence[Batch]) -> Iterator[Outbox]:
        """Make a backlog beside them."""
        with self._filling() as connection:
            for batch in batches:
                connection.execute(WAITING, dict(batch))
        yield outbox_of(self._conninfo)
        with self._filling() as connection:
            connection.execute("DELETE FROM agent_action WHERE ended_at IS NULL")
            connection.execute("DELETE FROM agent_action_attempt")

    @contextmanager
    def _filling(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with self._server.connect(self._conninfo) as connection:
            for table in TABLES:
                connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
                connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            yield connection
            for table in TABLES:
                connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
                # As autovacuum would; it must not come while claims are measured.
                connection.execute(f"VACUUM {'' if self._stale else '(ANALYZE)'} {table}")


def _drain(server: PostgresServer, concurrency: int, count: int, lanes: int) -> float:
    return asyncio.run(drain(outbox_of(server.fresh_schema(), concurrency), concurrency, count, lanes))


def measure(concurrency: int, count: int, *, quick: bool, stale: bool) -> dict[str, object]:
    """Every figure, in one run."""
    busy = [os.getloadavg()[0]]
    with PostgresServer() as server:
        with server.connect() as connection:
            facts = connection.execute(FACTS).fetchall()[0]
        if facts[1:] != ("on", "on"):
            raise SystemExit("the server's fsync and synchronous_commit must be on: these commits would not be durable")
        systems: dict[str, Callable[[], float]] = {
            "yardstick": partial(yardstick, server),
            "edgeoutbox": lambda: _drain(server, concurrency, count, LANES),
            "procrastinate, 1 job at once": lambda: procrastinate_per_s(server.fresh_schema(), count, 1),
            "procrastinate, 16 jobs at once": lambda: procrastinate_per_s(server.fresh_schema(), count, 16),
            "pgqueuer, batches of 1": lambda: pgqueuer_per_s(server.fresh_schema(), count, 1),
            "pgqueuer, batches of 10": lambda: pgqueuer_per_s(server.fresh_schema(), count, 10),
        }
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for turn in range(ROUNDS):
            for name, run in systems.items():
                rates[name].append(run())
                say(f"round {turn + 1} of {ROUNDS}: {name}: {rates[name][-1]:.0f}/s")
        busy.append(os.getloadavg()[0])
        say("one lane, enqueue")
        one_lane = _drain(server, concurrency, ONE_LANE, 1)
        one_by_one, many = asyncio.run(enqueue_rates(outbox_of(server.fresh_schema())))
        claims = claim_ms(PostgresBacklogs(server, stale=stale), quick=quick, say=say)
    busy.append(os.getloadavg()[0])
    per_s = {name: statistics.median(found) for name, found in rates.items()}
    rate = per_s["edgeoutbox"]
    return {
        "postgres": facts[0],
        "concurrency": concurrency,
        "actions": count,
        "yardstick_per_s": round(per_s["yardstick"]),
        "drain_per_s": round(rate),
        "ratio": round(rate / per_s["yardstick"], 2),
        "peers_per_s": {name: round(found) for name, found in per_s.items() if "," in name},
        "ratio_to_procrastinate": round(rate / max(per_s[name] for name in per_s if name.startswith("procra")), 2),
        "ratio_to_pgqueuer": round(rate / per_s["pgqueuer, batches of 1"], 2),
        "ratio_to_pgqueuer_in_batches": round(rate / per_s["pgqueuer, batches of 10"], 2),
        "rounds_per_s": {name: [round(each) for each in found] for name, found in rates.items()},
        "one_lane_per_s": round(one_lane),
        "enqueue_per_s": round(one_by_one),
        "enqueue_many_per_s": round(many),
        "claim_ms": claims,
        "claim_spread": round(max(claims.values()) / min(claims.values()), 2),
        "load_average": [round(each, 1) for each in busy],
    }


def report(concurrency: int, count: int, *, quick: bool, stale: bool, as_json: bool) -> None:
    """Measure, print, and say what is wanted."""
    figures = measure(concurrency, count, quick=quick, stale=stale)
    if as_json:
        return print(json.dumps(figures))
    for name, value in figures.items():
        for inner, each in value.items() if isinstance(value, dict) else [("", value)]:
            print(f"{name:>28}  {f'{inner}: ' if inner else ''}{each}")
    wanted = ", ".join(f"{name} of at least {least}" for name, least in WANTED.items())
    return print(f"wanted: {wanted}, claim_spread of at most {MOST_SPREAD}")
