"""A simulation that finds nothing proves nothing: here the product is broken on purpose."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from edgeoutbox import enqueue_sync, settlements
from edgeoutbox.errors import DatabaseBusy
from edgeoutbox.executor.attempt import RunningAttempt
from edgeoutbox.executor.drift import Drift
from edgeoutbox.model import ActionRequest, Enqueued
from edgeoutbox.settlements import Interrupted, Interruption
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Supersede
from edgeoutbox.storage.sqlite import claiming, hooks, settling
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.statements import enqueueing
from edgeoutbox.storage.statements.steps import Steps
from edgeoutbox.testing.simulation import Machine, Outcome, application, disk, draw, shrink, simulate
from edgeoutbox.testing.simulation.seeds import run_block, run_plan

WITHIN = 2000

_enqueue, _enqueue_steps = SqliteStorage.enqueue, enqueueing.enqueue
_answer, _values = enqueueing.answer, enqueueing._values


@pytest.fixture(autouse=True)
def _statements_made_anew() -> Iterator[None]:
    """The statements that the product remembers are those of this test."""
    caches = (claiming._claim_sql, claiming._claim_one_sql, settling._reap_sql)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def _first_failure(machine: Machine, promise: str) -> Outcome:
    for seed in range(WITHIN):
        outcome = simulate(draw(seed), machine)
        if outcome.broken is not None and outcome.broken.promise == promise:
            return outcome
    pytest.fail(f"{WITHIN} seeds, and none broke {promise}")


async def _lost(
    self: SqliteStorage,
    requests: Sequence[ActionRequest],
    *,
    proposed: bool = False,
    supersede: Supersede | None = None,
) -> list[Enqueued]:
    if len(requests) > 1 or supersede is not None:
        return await _enqueue(self, requests, proposed=proposed, supersede=supersede)
    return [Enqueued(7, created=True, same_content=True, validated=True, state=State.ADMITTED)]


async def _stored_and_refused(self: SqliteStorage, requests: Sequence[ActionRequest], **options: Any) -> list[Enqueued]:
    await _enqueue(self, requests, **options)
    raise DatabaseBusy("nothing was stored")


def _committed(request: ActionRequest, connection: Any) -> Enqueued:
    answer = enqueue_sync(request, connection)
    connection.execute("COMMIT")
    connection.execute("BEGIN")
    return answer


def _repeat_supersedes(
    request: ActionRequest, *, proposed: bool = False, supersede: Supersede | None = None
) -> Steps[Enqueued]:
    if supersede is not None and (yield enqueueing.HOLDER, (request.idempotency_key,)):
        yield from enqueueing._supersede(request, supersede)
    return (yield from _enqueue_steps(request, proposed=proposed, supersede=supersede))


def _without(value: int) -> Callable[[ActionRequest, State], tuple[str | int | None, ...]]:
    def values(request: ActionRequest, state: State) -> tuple[str | int | None, ...]:
        given = _values(request, state)
        return (*given[:value], None, *given[value + 1 :])

    return values


def _quoted(_: RunningAttempt, error: Exception) -> Interrupted:
    return Interrupted(Interruption.ERROR, str(error))


class Break(NamedTuple):
    """What is broken where, and which promise by it. Some guard of the database has to look away."""

    promise: str
    where: object
    what: str
    instead: object
    unguarded: str = ""


BREAKS = {
    "lost enqueue": Break("p1_what_is_answered_is_there", SqliteStorage, "enqueue", _lost),
    "stored and refused": Break("p1_what_is_refused_is_not_there", SqliteStorage, "enqueue", _stored_and_refused),
    "commits for others": Break("p1_what_is_refused_is_not_there", application, "enqueue_sync", _committed),
    "no due time": Break("p1_atomic", enqueueing, "_values", _without(9)),
    "no expiry": Break("p1_atomic", enqueueing, "_values", _without(10)),
    "made twice": Break("p2_once_per_key", enqueueing, "answer", lambda *given: replace(_answer(*given), created=True)),
    "other content": Break(
        "p2_once_per_key", enqueueing, "answer", lambda *given: replace(_answer(*given), same_content=True)
    ),
    "repeated supersede": Break("only_what_waits_is_superseded", enqueueing, "enqueue", _repeat_supersedes),
    "supersedes too little": Break(
        "only_what_waits_is_superseded",
        enqueueing,
        "IN_LANE",
        enqueueing.IN_LANE.replace("edgeoutbox_open(agent_action)", "state IN ('ADMITTED', 'EXECUTING')"),
    ),
    "what was given": Break(
        "p3_guarded",
        settling,
        "GIVE_BACK",
        settling.GIVE_BACK.replace("SET state", "SET max_attempts = 9, state"),
        "guard_agent_action_given",
    ),
    "no head": Break(
        "p5_in_order",
        claiming,
        "HEADS_AND_LOST",
        claiming.HEADS_AND_LOST.replace(" INDEXED BY ix_agent_action_head", "").replace("AND is_head = 1", ""),
        "guard_agent_action_claim_head",
    ),
    "stale settlement": Break(
        "p6_only_the_holder_settles", settling, "HELD", "SELECT json_group_array(key) FROM json_each(?)"
    ),
    "own attempts": Break(
        "p6_nobody_is_robbed", settling, "REAP_LOST", settling.REAP_LOST.replace("lease_owner IS NOT ?", "? <> ''")
    ),
    "clock set": Break("p6_nobody_is_robbed", Drift, "suspicious", lambda _: False),
    "no fence": Break("p7_no_call_without_its_stored_fence", claiming, "BEGIN_WRITE", "SELECT ?, ?"),
    "a doubt is no doubt": Break(
        "p8_nothing_is_given_back_that_may_exist",
        settlements,
        "_interrupted",
        lambda outcome, facts: settlements._retry_interrupted(outcome, outcome.by.value, facts),
    ),
    "unknown variants": Break("p11_unknown_rows_are_left_alone", claiming, "sql_of", lambda _: "1"),
    "quoted exception": Break("p12_private", RunningAttempt, "_raised", _quoted),
    "expiry": Break(
        "starts_only_when_it_may",
        claiming,
        "HELD_LEASES",
        claiming.HELD_LEASES.replace("expires_at <=", "0 AND expires_at <="),
    ),
    "weather": Break("starts_only_when_it_may", claiming, "IF_OPEN", "(SELECT ? WHERE ? IS NOT NULL)"),
    "hook not undone": Break("hooks_are_owed_until_they_ran_once", hooks, "UNDO", "SELECT 1"),
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_a_broken_product_is_found(monkeypatch: pytest.MonkeyPatch, broken: Break) -> None:
    """Each break is found within the seeds of every run, under the name of the promise that it breaks."""
    monkeypatch.setattr(broken.where, broken.what, broken.instead)
    if broken.unguarded:
        monkeypatch.setattr(disk, "TABLES", (*disk.TABLES, f"DROP TRIGGER {broken.unguarded}"))
    with Machine() as machine:
        _first_failure(machine, broken.promise)


def test_a_failure_is_shrunk_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left breaks the same promise with fewer events, and the command that is printed names just those."""
    monkeypatch.setattr(claiming, "IF_OPEN", "(SELECT ? WHERE ? IS NOT NULL)")
    with Machine() as machine:
        failure = _first_failure(machine, "starts_only_when_it_may")
        small = shrink(failure, machine)
        again = run_plan(small.plan, machine, shrink_for=0.0)
    assert small.broken is not None
    assert failure.broken is not None
    assert small.broken.promise == failure.broken.promise
    assert 1 <= len(small.plan.events) < len(failure.plan.events)
    assert again.failures[0].trace == small.trace


def test_an_error_of_the_simulation_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the simulation itself raises is reported with its seed, not passed over."""
    monkeypatch.setattr("edgeoutbox.testing.simulation.observer.ACTIONS", "SELECT nonsense")
    [failure, *_] = run_block(range(3)).failures
    assert failure.promise == "simulation"
    assert failure.command == "python -m edgeoutbox.testing.simulate --seed 0"
