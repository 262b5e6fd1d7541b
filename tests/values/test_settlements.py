"""From what an adapter said, and what is known of its fence, to the write that ends the attempt: row by row."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeoutbox.kinds import Delivery
from edgeoutbox.results import Abandoned, Cancelled, Defer, Done, Failed, Reread, Retry, Uncertain
from edgeoutbox.settlements import Facts, Interrupted, Interruption, Outcome, Verdict, backoff, settle
from edgeoutbox.states import STOP_REASONS, State, StopReason
from edgeoutbox.storage.protocol import Refusal, Settlement

ONCE, BACK, REPEAT, NOTHING = Delivery.AT_MOST_ONCE, Delivery.READS_BACK, Delivery.REPEATABLE, Delivery.WRITES_NOTHING
LAST = 5


def facts(delivery: Delivery = ONCE, fence: str = "", *, last: bool = False, refusal: Refusal | None = None) -> Facts:
    """`fence` is any of 'own' and 'inherited', or empty."""
    return Facts(
        delivery, LAST if last else 2, LAST, inherited="inherited" in fence, fenced="own" in fence, refusal=refusal
    )


def settled(outcome: Outcome, known: Facts) -> Settlement:
    """The settlement, where there is one and nothing was misused."""
    verdict = settle(outcome, known)
    assert verdict.settlement is not None
    return verdict.settlement


def end_of(settlement: Settlement | None) -> tuple[State, StopReason | None] | None:
    return None if settlement is None else (settlement.state, settlement.stop_reason)


ADMITTED = (State.ADMITTED, None)
EXECUTING = (State.EXECUTING, None)
DONE = (State.DONE, StopReason.CONFIRMED)
UNCERTAIN = (State.UNCERTAIN, StopReason.NO_CONFIRMATION)
BROKEN = (State.UNCERTAIN, StopReason.ERROR_AFTER_WRITE)
UNREAD = (State.UNCERTAIN, StopReason.READBACK_EXHAUSTED)
EXHAUSTED = (State.FAILED, StopReason.ATTEMPTS_EXHAUSTED)
EXPIRED = (State.CANCELLED, StopReason.EXPIRED)

# outcome, delivery, fence, last attempt -> the end; the fence cleared; the attempt counts
Row = tuple[Outcome, Delivery, str, bool, tuple[State, StopReason | None] | None, bool, bool]


def _interrupted(by: Interruption) -> Outcome:
    return Interrupted(by, "ValueError" if by is Interruption.ERROR else None)


MISHAPS = [_interrupted(by) for by in (Interruption.ERROR, Interruption.TIMEOUT, Interruption.ABORTED)]
GIVEN_BACK = [_interrupted(by) for by in (Interruption.STORAGE, Interruption.SHUTDOWN)]
ASLEEP = _interrupted(Interruption.ASLEEP)

TABLE: list[Row] = [
    # Done: the provider confirmed, or an earlier write was found there
    (Done("ref"), ONCE, "own", False, DONE, False, True),
    (Done("ref"), ONCE, "own", True, DONE, False, True),
    (Done("ref"), BACK, "inherited", False, DONE, False, True),
    (Done("ref", read_back=True), BACK, "inherited", False, (State.DONE, StopReason.READ_BACK), False, True),
    (Done(), NOTHING, "", False, DONE, False, True),
    # Retry: proof that nothing exists; only an explicit one clears an inherited fence
    (Retry("busy"), ONCE, "", False, ADMITTED, True, True),
    (Retry("busy"), ONCE, "own", False, ADMITTED, True, True),
    (Retry("busy"), BACK, "inherited", False, ADMITTED, True, True),
    (Retry("busy"), ONCE, "own", True, EXHAUSTED, True, True),
    (Retry("busy"), BACK, "inherited", True, EXHAUSTED, True, True),
    # Defer: not now, and the attempt does not count, not even the last; an inherited fence stays
    (Defer("limit"), ONCE, "", False, ADMITTED, True, False),
    (Defer("limit"), ONCE, "own", False, ADMITTED, True, False),
    (Defer("limit"), ONCE, "", True, ADMITTED, True, False),
    (Defer("limit"), BACK, "inherited", False, EXECUTING, False, False),
    (Defer("limit"), BACK, "own inherited", False, EXECUTING, False, False),
    (Defer("limit"), BACK, "inherited", True, EXECUTING, False, False),
    # Reread: may exist and can be read back
    (Reread("lost"), BACK, "own", False, EXECUTING, False, True),
    (Reread("lost"), BACK, "inherited", False, EXECUTING, False, True),
    (Reread("lost"), REPEAT, "own", False, EXECUTING, False, True),
    (Reread("lost"), BACK, "own", True, UNREAD, False, True),
    # Uncertain, Failed, Cancelled
    (Uncertain("no answer"), ONCE, "own", False, UNCERTAIN, False, True),
    (Uncertain("no answer"), BACK, "inherited", True, UNCERTAIN, False, True),
    (Failed(StopReason.REJECTED, "550"), ONCE, "own", False, (State.FAILED, StopReason.REJECTED), False, True),
    (Failed(StopReason.UNDELIVERABLE, "550"), ONCE, "own", True, (State.FAILED, StopReason.UNDELIVERABLE), False, True),
    (Cancelled(StopReason.NOT_NEEDED), ONCE, "", False, (State.CANCELLED, StopReason.NOT_NEEDED), False, True),
    (Cancelled(StopReason.ABSENT), BACK, "inherited", False, (State.CANCELLED, StopReason.ABSENT), False, True),
    # An exception, a time-out, a cancellation: before the fence a retry, after it doubt
    *((mishap, delivery, "", False, ADMITTED, True, True) for mishap in MISHAPS for delivery in Delivery),
    *((mishap, delivery, "", True, EXHAUSTED, True, True) for mishap in MISHAPS for delivery in Delivery),
    *(
        (mishap, ONCE, fence, last, BROKEN, False, True)
        for mishap in MISHAPS
        for fence in ("own", "inherited", "own inherited")
        for last in (False, True)
    ),
    *(
        (mishap, kind, fence, False, EXECUTING, False, True)
        for mishap in MISHAPS
        for kind in (BACK, REPEAT)
        for fence in ("own", "inherited")
    ),
    *(
        (mishap, kind, fence, True, UNREAD, False, True)
        for mishap in MISHAPS
        for kind in (BACK, REPEAT)
        for fence in ("own", "inherited")
    ),
    # The database could not store the fence, or the executor was stopped: before the fence the attempt is given back
    *(
        (given, delivery, "", last, ADMITTED, True, False)
        for given in GIVEN_BACK
        for delivery in Delivery
        for last in (False, True)
    ),
    *((given, ONCE, "own", False, BROKEN, False, True) for given in GIVEN_BACK),
    *((given, ONCE, "inherited", False, BROKEN, False, True) for given in GIVEN_BACK),
    *((given, BACK, "own", False, EXECUTING, False, True) for given in GIVEN_BACK),
    *((given, BACK, "inherited", False, EXECUTING, False, False) for given in GIVEN_BACK),
    *((given, BACK, "own", True, UNREAD, False, True) for given in GIVEN_BACK),
    # The machine slept between fence and call: this attempt's own fence is empty
    (ASLEEP, ONCE, "own", False, ADMITTED, True, True),
    (ASLEEP, BACK, "own", False, ADMITTED, True, True),
    (ASLEEP, BACK, "own inherited", False, EXECUTING, False, True),
    (ASLEEP, ONCE, "own", True, EXHAUSTED, True, True),
]


@pytest.mark.parametrize(
    ("outcome", "delivery", "fence", "last", "end", "clears", "counts"), TABLE, ids=lambda value: str(value)[:40]
)
def test_each_row_of_the_table(
    outcome: Outcome,
    delivery: Delivery,
    fence: str,
    last: bool,
    end: tuple[State, StopReason | None],
    clears: bool,
    counts: bool,
) -> None:
    """An outcome under a fence of some kind ends in a state, for a reason, with or without its fence."""
    verdict = settle(outcome, facts(delivery, fence, last=last))
    assert end_of(verdict.settlement) == end
    assert verdict.settlement is not None
    assert verdict.settlement.clears_fence is clears
    assert verdict.settlement.counts is counts
    assert verdict.misuse is None


# Whoever lets FenceRefused rise abandons; what the refusal was decides.
REFUSALS: list[tuple[Refusal, Delivery, str, bool, tuple[State, StopReason | None] | None]] = [
    *(
        (Refusal.NOT_HELD, delivery, fence, last, None)
        for delivery in Delivery
        for fence in ("", "own", "inherited")
        for last in (False, True)
    ),
    *((Refusal.EXPIRED, delivery, "", last, EXPIRED) for delivery in Delivery for last in (False, True)),
    (Refusal.EXPIRED, ONCE, "own", False, BROKEN),
    (Refusal.EXPIRED, BACK, "inherited", False, EXECUTING),
    (Refusal.EXPIRED, BACK, "inherited", True, UNREAD),
    (Refusal.LEASE_SHORT, ONCE, "", False, ADMITTED),
    (Refusal.LEASE_SHORT, ONCE, "", True, EXHAUSTED),
    (Refusal.LEASE_SHORT, BACK, "own", False, EXECUTING),
    (Refusal.LEASE_SHORT, BACK, "inherited", False, EXECUTING),
    (Refusal.LEASE_SHORT, BACK, "inherited", True, UNREAD),
]


@pytest.mark.parametrize(("refusal", "delivery", "fence", "last", "end"), REFUSALS)
def test_p6_a_refused_fence_means_what_refused_it(
    refusal: Refusal, delivery: Delivery, fence: str, last: bool, end: tuple[State, StopReason | None] | None
) -> None:
    """Another holder: nothing is written. Expired or too late: by whether an earlier write may exist."""
    assert end_of(settle(Abandoned(), facts(delivery, fence, last=last, refusal=refusal)).settlement) == end


MISUSES: list[tuple[Outcome, Delivery, str, tuple[State, StopReason | None], str]] = [
    (Done("ref"), ONCE, "", DONE, "without a fence"),
    (Done("ref"), BACK, "", DONE, "without a fence"),
    (Reread("lost"), ONCE, "own", UNCERTAIN, "cannot reread"),
    (Reread("lost"), ONCE, "inherited", UNCERTAIN, "cannot reread"),
    (Reread("lost"), BACK, "", UNCERTAIN, "no fence"),
]


@pytest.mark.parametrize(("outcome", "delivery", "fence", "end", "misuse"), MISUSES)
def test_p9_a_result_that_should_not_be_is_recorded_all_the_same(
    outcome: Outcome, delivery: Delivery, fence: str, end: tuple[State, StopReason | None], misuse: str
) -> None:
    """What the adapter said is kept, towards the safe side, and the adapter's mistake is told."""
    verdict = settle(outcome, facts(delivery, fence))
    assert end_of(verdict.settlement) == end
    assert verdict.misuse is not None
    assert misuse in verdict.misuse


def test_an_abandonment_that_nobody_asked_for_is_an_error_of_the_adapter() -> None:
    """Left alone, the action would be held as long as the executor lives; after a fence it is in doubt."""
    before, after = settle(Abandoned(), facts()), settle(Abandoned(), facts(ONCE, "own"))
    assert (end_of(before.settlement), end_of(after.settlement)) == (ADMITTED, BROKEN)
    assert before.misuse is not None


OUTCOMES: list[Outcome] = [
    Done("ref"), Done("ref", read_back=True), Retry("busy"), Defer("limit"), Defer("down", scope="kind"),
    Reread("lost"),
    Uncertain("no answer"), Failed(StopReason.REJECTED, "550"), Cancelled(StopReason.NOT_NEEDED), Abandoned(),
    *(_interrupted(by) for by in Interruption),
]  # fmt: skip
EVERYTHING = list(
    itertools.product(OUTCOMES, Delivery, ("", "own", "inherited", "own inherited"), (False, True), (None, *Refusal))
)


def test_p8_doubt_never_becomes_a_second_send() -> None:
    """In every combination: an inherited fence is cleared only by an explicit Retry, and never while it executes."""
    for outcome, delivery, fence, last, refusal in EVERYTHING:
        verdict = settle(outcome, facts(delivery, fence, last=last, refusal=refusal))
        settlement = verdict.settlement
        if settlement is None:
            assert isinstance(outcome, Abandoned)
            continue
        if "inherited" in fence and settlement.clears_fence:
            assert isinstance(outcome, Retry)
        if settlement.state is State.ADMITTED:
            assert settlement.clears_fence, (outcome, fence)
            if fence and not isinstance(outcome, Retry | Defer):
                assert outcome == ASLEEP
        if settlement.state is State.EXECUTING:
            assert not settlement.clears_fence
            assert fence, (outcome, fence)
            if delivery is ONCE:
                assert isinstance(outcome, Defer)


def test_p3_every_settlement_is_one_that_the_database_takes() -> None:
    """In every combination: the stop reason belongs to the state, an open action has none, and the wait is sane."""
    for outcome, delivery, fence, last, refusal in EVERYTHING:
        settlement = settle(outcome, facts(delivery, fence, last=last, refusal=refusal)).settlement
        if settlement is None:
            continue
        if settlement.state.ended:
            assert settlement.stop_reason in STOP_REASONS[settlement.state]
            assert settlement.counts
        else:
            assert settlement.stop_reason is None
            assert settlement.wait >= 0
        json.loads(settlement.evidence)


def test_no_attempt_is_left_open_on_the_last_one() -> None:
    """After the last attempt only what does not count, or waits to be read back for nothing, stays open."""
    for outcome, delivery, fence, refusal in itertools.product(
        OUTCOMES, Delivery, ("", "own", "inherited"), (None, *Refusal)
    ):
        settlement = settle(outcome, facts(delivery, fence, last=True, refusal=refusal)).settlement
        if settlement is not None and not settlement.state.ended:
            assert not settlement.counts, (outcome, delivery, fence)


@pytest.mark.parametrize(
    ("wait", "milliseconds"),
    [(0.0, 0), (1.5, 1500), (-3.0, 0), (1e12, 366 * 86_400_000), (float("inf"), 366 * 86_400_000)],
)
@pytest.mark.parametrize(
    "make", [lambda wait: Retry("busy", wait), lambda wait: Defer("busy", wait)], ids=["retry", "defer"]
)
def test_a_wait_is_bounded(make: Callable[[float], Outcome], wait: float, milliseconds: int) -> None:
    """Neither negative nor longer than a year, whatever a provider asked for."""
    assert settled(make(wait), facts()).wait == milliseconds


def test_a_deferral_of_the_kind_cools_it() -> None:
    """For its own wait, or for a long one; one of the action cools nothing."""
    assert settled(Defer("limit", 30.0, scope="kind"), facts()).cools == "wait"
    assert settled(Defer("limit", 30.0, scope="kind"), facts()).wait == 30_000
    assert settled(Defer("down", scope="kind"), facts()).cools == "long"
    assert settled(Defer("limit", 30.0), facts()).cools == "no"


@given(st.integers(min_value=1, max_value=10_000))
def test_a_backoff_grows_threefold_to_four_hours(attempt: int) -> None:
    """Full jitter below the bound, for any number of attempts."""
    assert 0.0 <= backoff(attempt) <= min(4 * 3600.0, 10.0 * 3.0 ** min(attempt - 1, 50))


@pytest.mark.parametrize("evidence", [{"a": object()}, {"a": float("nan")}, {"a": "x" * 5000}, {1: {2: {3}}}])
def test_p9_evidence_that_cannot_be_stored_does_not_cost_the_result(evidence: Any) -> None:
    """It is dropped, and the log says that it was."""
    settlement = settled(Done("ref", evidence=evidence), facts(fence="own"))
    assert settlement.state is State.DONE
    assert "dropped" in json.loads(settlement.evidence)


def test_evidence_and_reasons_are_kept() -> None:
    """Small evidence whole; a reason is cut to what a line holds."""
    settlement = settled(Uncertain("r" * 500, evidence={"code": 250, "text": "ß"}), facts(fence="own"))
    assert json.loads(settlement.evidence) == {"code": 250, "text": "ß"}
    assert (len(settlement.reason), settlement.result) == (200, "Uncertain")


def test_p12_an_exception_leaves_only_its_type() -> None:
    """Its message could hold anything."""
    settlement = settled(Interrupted(Interruption.ERROR, "ValueError"), facts())
    assert settlement.reason == "an exception (ValueError)"


@pytest.mark.parametrize("make", [Failed, Cancelled])
def test_a_stop_reason_of_another_state_is_refused_when_the_result_is_made(make: Any) -> None:
    """The mistake is the adapter's, and is told where it is made."""
    with pytest.raises(ValueError, match="choose one of"):
        make(StopReason.CONFIRMED, "no")


def test_a_verdict_is_a_value() -> None:
    """Nothing here reads a clock or keeps state: with a given wait, the same facts give the same verdict."""
    assert settle(Retry("busy", 1.0), facts()) == settle(Retry("busy", 1.0), facts())
    assert isinstance(settle(Retry("busy", 1.0), facts()), Verdict)
