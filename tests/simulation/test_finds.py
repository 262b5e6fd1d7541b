"""A simulation that finds nothing proves nothing: here the product is broken on purpose."""

from collections.abc import Iterator

import pytest

from edgeoutbox.executor.drift import Drift
from edgeoutbox.storage.sqlite import claiming, hooks, settling
from edgeoutbox.testing.simulation import Machine, Outcome, draw, shrink, simulate
from edgeoutbox.testing.simulation.seeds import run_block, run_plan

WITHIN = 2000


@pytest.fixture(autouse=True)
def _statements_made_anew() -> Iterator[None]:
    """The statements that the product remembers are those of this test."""
    caches = (claiming._claim_sql, claiming._claim_one_sql, settling._reap_sql)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def _first_failure(machine: Machine) -> Outcome:
    for seed in range(WITHIN):
        outcome = simulate(draw(seed), machine)
        if outcome.broken is not None:
            return outcome
    pytest.fail(f"{WITHIN} seeds have found nothing")


@pytest.mark.parametrize(
    ("where", "what", "instead", "promise"),
    [
        (claiming, "BEGIN_WRITE", "SELECT ?", "p7_no_call_without_its_stored_fence"),
        (claiming, "HELD", claiming.HELD.replace("expires_at <=", "0 AND expires_at <="), "starts_only_when_it_may"),
        (claiming, "IF_OPEN", "(SELECT ? WHERE ? IS NOT NULL)", "starts_only_when_it_may"),
        (
            settling,
            "HELD",
            "SELECT json_group_array(key) FROM json_each(?)",
            "p6_only_the_holder_settles",
        ),
        (settling, "REAP_LOST", settling.REAP_LOST.replace("lease_owner IS NOT ?", "? <> ''"), "p6_nobody_is_robbed"),
        (hooks, "UNDO", "SELECT 1", "hooks_are_owed_until_they_ran_once"),
        (Drift, "suspicious", lambda _: False, "p6_nobody_is_robbed"),
    ],
    ids=["no fence", "expiry", "weather", "stale settlement", "own attempts", "hook not undone", "clock set"],
)
def test_a_broken_product_is_found(
    monkeypatch: pytest.MonkeyPatch, where: object, what: str, instead: object, promise: str
) -> None:
    """Each break is found within the seeds of every run, under the name of the promise that it breaks."""
    monkeypatch.setattr(where, what, instead)
    with Machine() as machine:
        broken = _first_failure(machine).broken
    assert broken is not None
    assert broken.promise == promise


def test_a_failure_is_shrunk_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left breaks the same promise with fewer events, and the command that is printed names just those."""
    monkeypatch.setattr(claiming, "IF_OPEN", "(SELECT ? WHERE ? IS NOT NULL)")
    with Machine() as machine:
        failure = _first_failure(machine)
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
