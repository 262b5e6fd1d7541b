"""P15: what a claim costs does not depend on what waits, has ended, or is not ours. Counted in steps, not in time."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeoutbox.storage.protocol import Decision, Served
from edgeoutbox.storage.sqlite import claiming, due, hooks, settling
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.drivers import Driver
from edgeoutbox.storage.sqlite.schema import migrate
from edgeoutbox.storage.sqlite.spelling import Connection, run
from edgeoutbox.storage.statements import deciding, reading
from edgeoutbox.storage.statements.steps import Row, Steps
from edgeoutbox.testing.conformance.story import HOUR, KNOWN, served
from tests.storage.passing import Passing

DUE = 64
NOW = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


class Counted(Passing):
    """A connection that counts the instructions of SQLite's machine, in tens, and shows plans."""

    def __init__(self, inner: Connection) -> None:
        super().__init__(inner)
        self.raw: Any = inner.raw  # type: ignore[attr-defined]  # both drivers' connections have it
        self.statements: list[tuple[str, Sequence[Any]]] = []
        self.steps = 0
        self.raw.set_progress_handler(self._tick, 10)

    def _tick(self) -> bool:
        self.steps += 1
        return False

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement, and remember it."""
        self.statements.append((sql, parameters))
        return super().execute(sql, parameters)

    def cost(self, steps: Steps[Any]) -> tuple[Any, int]:
        """What the steps return, and what they cost; their changes are undone."""
        self.inner.execute("BEGIN IMMEDIATE")
        before = self.steps
        answer = run(self, steps)
        cost = self.steps - before
        self.inner.execute("ROLLBACK")
        return answer, cost

    def plan(self, sql: str, parameters: Sequence[Any]) -> list[str]:
        """What SQLite would do for a statement, line by line."""
        return [row[3] for row in self.raw.execute(f"EXPLAIN QUERY PLAN {sql}", tuple(parameters))]


@pytest.fixture
def counted(database: Path, driver: Driver) -> Iterator[Counted]:
    """A database whose steps are counted."""
    connection = driver.open(str(database), 1000, None)
    migrate(connection)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(
        "INSERT INTO agent_action_kind (kind, delivery, has_ended_hook) VALUES ('email', 'reads_back', 0)"
    )
    made = Counted(connection)
    yield made
    made.close()


def fill(counted: Counted, count: int, prefix: str, column: str, value: str, *, kind: str = "email") -> None:
    """Insert many actions with an expression for one more column; `n` counts them."""
    counted.inner.execute(
        f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) "
        f"INSERT INTO agent_action (kind, idempotency_key, payload, {column}) "
        f"SELECT '{kind}', '{prefix}:' || n, '{{\"notice\":\"receipt\"}}', {value} FROM c"
    )


def due_heads(counted: Counted) -> None:
    """As many due heads as a claim takes, and some more."""
    fill(counted, 2 * DUE, "due", "lane_key", "'due:' || n")


def waiting(counted: Counted, count: int) -> None:
    fill(counted, count, "waiting", "lane_key", "'waiting:' || n")


def one_long_lane(counted: Counted, count: int) -> None:
    fill(counted, count, "long", "lane_key", "'long'")


def deferred(counted: Counted, count: int) -> None:
    fill(counted, count, "deferred", "due_at", f"{NOW} + {HOUR}")


def unknown_kind(counted: Counted, count: int) -> None:
    fill(counted, count, "unknown", "due_at", "1", kind="telegram")


def proposed(counted: Counted, count: int) -> None:
    fill(counted, count, "proposed", "state", "'PROPOSED'")


def ended(counted: Counted, count: int) -> None:
    fill(counted, count, "ended", "due_at", "1")
    counted.inner.execute(
        "UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL "
        "WHERE idempotency_key LIKE 'ended:%'"
    )


def executing(counted: Counted, count: int) -> None:
    fill(counted, count, "executing", "due_at", "1")
    counted.inner.execute(
        "UPDATE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'two', "
        f"lease_expires_at = {NOW} + {HOUR} WHERE idempotency_key LIKE 'executing:%'"
    )


SHAPES = [waiting, one_long_lane, deferred, unknown_kind, proposed, ended, executing]
SMALL, LARGE = 100, 8000


def kind(limit: int = DUE) -> Served:
    return served("email", limit=limit, condition=KNOWN)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.__name__ for shape in SHAPES])
def test_p15_a_claim_costs_the_same_in_front_of_any_backlog(
    counted: Counted, shape: Callable[[Counted, int], None]
) -> None:
    """Eighty times as much of anything changes the steps of a claim by less than a quarter."""
    due_heads(counted)
    shape(counted, SMALL)
    few, small = counted.cost(claiming.claim([kind()], DUE, "one", reclaim=True))
    # The rest has keys of its own.
    counted.inner.execute("DELETE FROM agent_action WHERE idempotency_key NOT LIKE 'due:%'")
    shape(counted, LARGE)
    many, large = counted.cost(claiming.claim([kind()], DUE, "one", reclaim=True))
    assert len(few) == len(many) == DUE
    assert large <= small * 1.25, (small, large)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.__name__ for shape in SHAPES])
@pytest.mark.parametrize("what", ["settle", "enqueue", "fence", "next_due"])
def test_p15_the_rest_of_an_actions_life_costs_the_same(
    counted: Counted, shape: Callable[[Counted, int], None], what: str
) -> None:
    """Fence, settle, enqueue and the question for the next due moment, in front of any backlog."""
    costs = []
    for count in (SMALL, LARGE):
        counted.inner.execute("DELETE FROM agent_action")
        due_heads(counted)
        shape(counted, count)
        [held] = run(counted, claiming.claim([kind(1)], 1, "one", reclaim=True))
        fence = f"UPDATE agent_action SET write_started_at = {NOW} WHERE id = {held.id}"
        done = f"UPDATE agent_action SET state = 'DONE', stop_reason = 'CONFIRMED', payload = NULL WHERE id = {held.id}"
        insert = (
            "INSERT INTO agent_action (kind, idempotency_key, payload, lane_key) VALUES "
            f"('email', 'new', '{{}}', '{held.action.lane_key}') ON CONFLICT (idempotency_key) DO NOTHING"
        )
        statements = {"settle": _once(done), "enqueue": _once(insert), "fence": _once(fence)}
        steps = statements.get(what) or due.next_due([kind()], "one")
        costs.append(counted.cost(steps)[1])
        run(counted, _once("UPDATE agent_action SET lease_expires_at = 0 WHERE state = 'EXECUTING'"))
    small, large = costs
    # What waits for a later time is read to the first entry; the moment of a due head is not looked for at all.
    assert large <= small * 1.25 + 5, (small, large)


def _once(sql: str) -> Steps[None]:
    yield sql, ()


def test_p15_an_enqueue_at_the_end_of_a_long_lane_costs_the_same(counted: Counted) -> None:
    """So does an end that hands such a lane on, and an erasure of its head."""
    costs = []
    for count in (SMALL, LARGE):
        counted.inner.execute("DELETE FROM agent_action")
        one_long_lane(counted, count)
        insert = (
            "INSERT INTO agent_action (kind, idempotency_key, payload, lane_key) VALUES ('email', 'new', '{}', 'long')"
        )
        cancel = (
            "UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL "
            "WHERE lane_key = 'long' AND is_head = 1 AND idempotency_key = 'long:1'"
        )
        delete = "DELETE FROM agent_action WHERE idempotency_key = 'long:1'"
        costs.append([counted.cost(_once(sql))[1] for sql in (insert, cancel, delete)])
    for small, large in zip(*costs, strict=True):
        assert large <= small * 1.25 + 5, costs


STATEMENTS: list[tuple[str, Callable[[], Steps[Any]], set[str]]] = [
    (
        "claim",
        lambda: claiming.claim([kind()], DUE, "one", reclaim=True),
        {"ix_agent_action_head", "ix_agent_action_lease"},
    ),
    ("claim without reclaim", lambda: claiming.claim([kind()], DUE, "one", reclaim=False), {"ix_agent_action_head"}),
    ("next due", lambda: due.next_due([kind()], "one"), {"ix_agent_action_head", "ix_agent_action_lease"}),
    ("sweep", lambda: settling.sweep(["email"], 500), {"ix_agent_action_retention", "ix_agent_action_forget"}),
    ("lane", lambda: reading.lane("long"), {"ix_agent_action_open"}),
    ("backlog", lambda: reading.backlog({"email": KNOWN}, sql_of), {"ix_agent_action_open", "ix_agent_action_trouble"}),
    ("withdraw a run", lambda: deciding.withdraw_run("r", Decision("withdraw")), {"ix_agent_action_run"}),
    ("erase", lambda: deciding.erase("ann"), {"ix_agent_action_subject"}),
]

WALKED = ("ix_agent_action_forget", "ix_agent_action_open", "ix_agent_action_trouble")
"""Partial indexes that hold nothing but what is looked for or counted: they may be read from end to end."""

TABLES = ("agent_action", "agent_action_attempt", "agent_action_ended", "action", "owed", "claim")


@pytest.mark.parametrize(("name", "steps", "indexes"), STATEMENTS, ids=[name for name, _, _ in STATEMENTS])
def test_p15_every_part_uses_its_index(
    counted: Counted, name: str, steps: Callable[[], Steps[Any]], indexes: set[str]
) -> None:
    """No statement walks the table of actions, with statistics and without."""
    for statistics in (False, True):
        if statistics:
            waiting(counted, 200)
            ended(counted, 200)
            counted.inner.execute("ANALYZE")
        counted.statements.clear()
        counted.cost(steps())
        _require_indexes(counted, name, indexes)


def test_p15_a_reap_uses_its_indexes(counted: Counted) -> None:
    """Expiry and lost leases are found without a walk, and so are owed hooks."""
    nobody: Any = {"email": None}  # nothing is owed, so nothing is called
    counted.statements.clear()
    settling.reap(counted, [kind()], "one", {}, 100)
    _require_indexes(counted, "reap", {"ix_agent_action_expiry", "ix_agent_action_lease"})
    counted.statements.clear()
    hooks.run_owed(counted, nobody, 20)
    _require_indexes(counted, "owed hooks", {"ix_agent_action_ended_due"})


def _require_indexes(counted: Counted, name: str, indexes: set[str]) -> None:
    lines = [
        line
        for sql, parameters in list(counted.statements)
        if sql.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "WITH"))
        for line in counted.plan(sql, parameters)
    ]
    assert lines, name
    for line in lines:
        words = line.split()
        if words[0] == "SCAN" and words[1] in TABLES and words[-1] not in WALKED:
            raise AssertionError(f"{name}: {line}")
    used = {word for line in lines for word in line.split() if word.startswith("ix_")}
    assert indexes <= used, (name, lines)


def test_p15_the_leases_of_a_reap_cost_the_same_beside_any_backlog(counted: Counted) -> None:
    """A reaper that finds nothing costs next to nothing, however many wait, run or have ended."""
    costs = []
    for count in (SMALL, LARGE):
        counted.inner.execute("DELETE FROM agent_action")
        for shape in (waiting, deferred, proposed, ended):
            shape(counted, count)
        before = counted.steps
        assert settling.reap(counted, [kind()], "one", {}, 100) == []
        costs.append(counted.steps - before)
    assert costs[1] <= costs[0] * 1.25 + 5, costs


def test_p15_a_sweep_that_finds_nothing_costs_the_same(counted: Counted) -> None:
    """What ended is looked at by age: the youngest millions are not touched."""
    costs = []
    for count in (SMALL, LARGE):
        counted.inner.execute("DELETE FROM agent_action")
        ended(counted, count)
        answer, cost = counted.cost(settling.sweep(["email"], 500))
        assert answer == 0
        costs.append(cost)
    assert costs[1] <= costs[0] * 1.25 + 5, costs


@pytest.mark.parametrize("weather", ["paused_by = 'ann'", f"cooling_until = {NOW} + {HOUR}"], ids=["paused", "cooling"])
def test_p15_a_kind_at_rest_costs_the_same_whatever_waits(counted: Counted, weather: str) -> None:
    """A claim, and the question for the next due moment, do not walk the backlog of a kind that rests."""
    counted.inner.execute(f"UPDATE agent_action_kind SET {weather}")
    costs = []
    for count in (SMALL, LARGE):
        counted.inner.execute("DELETE FROM agent_action")
        waiting(counted, count)
        deferred(counted, count)
        claims, claim_cost = counted.cost(claiming.claim([kind()], DUE, "one", reclaim=True))
        assert claims == []
        costs.append([claim_cost, counted.cost(due.next_due([kind()], "one"))[1]])
    for small, large in zip(*costs, strict=True):
        assert large <= small * 1.25 + 5, costs
