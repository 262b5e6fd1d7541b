"""Settle: the write that ends an attempt."""

import asyncio
from dataclasses import replace

import pytest

from edgeoutbox.errors import ForbiddenByGuard
from edgeoutbox.kinds import Delivery
from edgeoutbox.states import STOP_REASONS, State, StopReason
from edgeoutbox.storage.protocol import Settlement, Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.story import (
    CANCELLED,
    DONE,
    FAILED,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    UNCERTAIN,
    Topic,
    both,
    claim,
    claim_all,
    declare,
    enqueue,
    everything,
    fence,
    milliseconds,
    read,
    reread,
    retry,
    started,
)

ENDS = [(state, reason) for state, reasons in STOP_REASONS.items() for reason in sorted(reasons)]
GIVEN_BACK = Settlement(State.ADMITTED, "Retry", wait=SECOND, clears_fence=True)
READ_AGAIN = Settlement(State.EXECUTING, "Reread", wait=SECOND)
EVERY_SETTLEMENT = [DONE, UNCERTAIN, FAILED, CANCELLED, GIVEN_BACK, READ_AGAIN]


class Settling(Topic):
    """What each settlement leaves behind, and that a stale one leaves nothing."""

    @pytest.mark.parametrize(("state", "reason"), ENDS, ids=[str(reason) for _, reason in ENDS])
    async def test_an_end_is_recorded_with_its_reason(
        self, storage: Storage, clock: MovableClock, state: State, reason: StopReason
    ) -> None:
        """The payload goes, the digest stays, the lease is over and the dispatch log is filled."""
        held = await started(storage)
        milliseconds(clock, SECOND)
        settlement = Settlement(
            state,
            "Answer",
            reason,
            reason="code 550",
            readback_ref="ref",
            evidence='{"code":250}',
        )
        assert await storage.settle(held, settlement) is True
        action = await read(storage, held.id)
        assert (action.state, action.stop_reason, action.ended_at) == (state, reason, clock.milliseconds)
        assert (action.payload, action.payload_digest) == (None, held.action.payload_digest)
        assert (action.last_error, action.readback_ref, action.is_head) == ("code 550", "ref", False)
        assert (action.lease_owner, action.lease_expires_at) == (None, None)
        assert (action.epoch, action.attempt) == (1, 1)
        [log] = await storage.attempts(held.id)
        assert (log.result, log.reason, log.readback_ref) == ("Answer", "code 550", "ref")
        assert (log.recorded, log.evidence, log.settled_at) == (True, {"code": 250}, clock.milliseconds)

    async def test_a_retry_gives_the_action_back(self, storage: Storage, clock: MovableClock) -> None:
        """It waits, unfenced, and its attempt counts; the next claim is a new epoch."""
        held = await started(storage, fenced=True)
        await retry(storage, held, MINUTE)
        action = await read(storage, held.id)
        assert (action.state, action.due_at, action.attempt) == (State.ADMITTED, clock.milliseconds + MINUTE, 1)
        assert (action.write_started_at, action.lease_owner, action.lease_expires_at) == (None, None, None)
        assert (action.payload, action.last_error, action.is_head) == (held.action.payload, "busy", True)
        milliseconds(clock, MINUTE)
        again = await claim(storage)
        assert (again.epoch, again.action.attempt) == (2, 2)

    async def test_an_end_tells_what_its_own_attempt_came_to(self, storage: Storage, clock: MovableClock) -> None:
        """Not what an earlier one said, which stays in the log."""
        held = await started(storage)
        await retry(storage, held, MINUTE)
        milliseconds(clock, MINUTE)
        again = await claim(storage)
        last = Settlement(State.FAILED, "Failed", StopReason.REJECTED, reason="550", readback_ref="ref")
        assert await storage.settle(again, last) is True
        action = await read(storage, held.id)
        assert (action.last_error, action.readback_ref) == ("550", "ref")
        assert [log.reason for log in await storage.attempts(held.id)] == ["busy", "550"]

    async def test_an_attempt_that_does_not_count_is_given_back(self, storage: Storage, clock: MovableClock) -> None:
        """Any number of deferrals spend no attempt, and each is logged under its own epoch."""
        await enqueue(storage)
        for epoch in (1, 2, 3):
            held = await claim(storage, max_attempts=1)
            assert (held.epoch, held.action.attempt) == (epoch, 1)
            await retry(storage, held, SECOND, counts=False)
            milliseconds(clock, SECOND)
        assert (await read(storage, held.id)).attempt == 0
        assert [log.epoch for log in await storage.attempts(held.id)] == [1, 2, 3]

    @pytest.mark.parametrize("counts", [True, False])
    async def test_a_reread_keeps_the_fence_and_loses_the_owner(
        self, storage: Storage, clock: MovableClock, counts: bool
    ) -> None:
        """It stays executing, its lease ends after the wait, and the next attempt must look first."""
        held = await started(storage, fenced=True)
        await reread(storage, held, MINUTE, counts=counts)
        action = await read(storage, held.id)
        assert (action.state, action.epoch, action.attempt) == (State.EXECUTING, 1, int(counts))
        assert (action.lease_owner, action.lease_expires_at) == (None, clock.milliseconds + MINUTE)
        assert action.write_started_at == held.claimed_at
        [log] = await storage.attempts(held.id)
        assert (log.result, log.recorded) == ("Reread", True)

    async def test_an_end_keeps_the_fence_unless_it_proves_it_empty(self, storage: Storage) -> None:
        """An UNCERTAIN action shows when its write started; a proven failure shows none."""
        uncertain = await started(storage, "uncertain", fenced=True)
        failed = await started(storage, "failed", fenced=True)
        await storage.settle(uncertain, UNCERTAIN)
        await storage.settle(
            failed, Settlement(State.FAILED, "Retry", StopReason.ATTEMPTS_EXHAUSTED, clears_fence=True)
        )
        assert (await read(storage, uncertain.id)).write_started_at == uncertain.claimed_at
        assert (await read(storage, failed.id)).write_started_at is None

    async def test_p9_a_settlement_needs_no_live_lease(self, storage: Storage, clock: MovableClock) -> None:
        """A result that comes late is recorded, as long as nobody took the action."""
        held = await started(storage, fenced=True)
        milliseconds(clock, 100 * LEASE)
        assert await storage.settle(held, DONE) is True
        assert (await read(storage, held.id)).state is State.DONE

    async def test_p5_the_lane_goes_on_when_its_head_ended(self, storage: Storage) -> None:
        """In the same commit: the next of the lane can be claimed at once."""
        held = await started(storage, "first", "lane")
        second = await enqueue(storage, "second", "lane")
        await storage.settle(held, DONE)
        assert (await read(storage, second)).is_head
        assert (await claim(storage)).id == second

    @pytest.mark.parametrize("settlement", EVERY_SETTLEMENT, ids=lambda one: one.result)
    async def test_p6_stale_settle_after_a_reclaim_changes_nothing(
        self, storage: Storage, clock: MovableClock, settlement: Settlement
    ) -> None:
        """Only the log of the old attempt is filled, as not recorded, so that its evidence is kept."""
        old = await started(storage)
        milliseconds(clock, LEASE)
        new = await claim(storage, "two")
        before, logs = await everything(storage)
        assert await storage.settle(old, settlement) is False
        after, logs_after = await everything(storage)
        assert after == before
        [[first, second]] = logs_after
        assert (first.result, first.recorded, first.settled_at) == (settlement.result, False, clock.milliseconds)
        assert second == logs[0][1]
        assert await storage.settle(new, DONE) is True

    @pytest.mark.parametrize("settlement", EVERY_SETTLEMENT, ids=lambda one: one.result)
    async def test_p6_stale_settle_after_a_retry_and_claim_of_the_same_owner_changes_nothing(
        self, storage: Storage, clock: MovableClock, settlement: Settlement
    ) -> None:
        """The same owner's next claim is another: epochs tell them apart."""
        old = await started(storage)
        await retry(storage, old, SECOND)
        milliseconds(clock, SECOND)
        await claim(storage, "one")
        before = await everything(storage)
        assert await storage.settle(old, settlement) is False
        assert await everything(storage) == before

    @pytest.mark.parametrize("settlement", EVERY_SETTLEMENT, ids=lambda one: one.result)
    async def test_p6_stale_settle_after_a_reread_changes_nothing(
        self, storage: Storage, settlement: Settlement
    ) -> None:
        """The old coroutine's later answer is refused: the epoch is the same, but it owns nothing."""
        await declare(storage, delivery=Delivery.READS_BACK)
        old = await started(storage, fenced=True)
        await reread(storage, old, HOUR)
        before = await everything(storage)
        assert await storage.settle(old, settlement) is False
        assert await everything(storage) == before

    @pytest.mark.parametrize("settlement", EVERY_SETTLEMENT, ids=lambda one: one.result)
    async def test_p6_stale_settle_after_the_end_changes_nothing(
        self, storage: Storage, settlement: Settlement
    ) -> None:
        """The first settlement stands, in the action and in the log."""
        held = await started(storage)
        await storage.settle(held, UNCERTAIN)
        before = await everything(storage)
        assert await storage.settle(held, settlement) is False
        assert await everything(storage) == before

    @pytest.mark.parametrize("together", [False, True])
    async def test_p6_a_settlement_of_another_owner_says_nothing(self, storage: Storage, together: bool) -> None:
        """Also under the same epoch, as after a restore: neither the action nor the log repeats what it said."""
        held = await started(storage)
        late = Settlement(State.FAILED, "Failed", StopReason.REJECTED, reason="550", readback_ref="theirs")
        done = Settlement(State.DONE, "Done", StopReason.CONFIRMED, readback_ref="ref")
        both_settled = (storage.settle(replace(held, owner="two"), late), storage.settle(held, done))
        answers = await both(*both_settled) if together else [await one for one in both_settled]
        assert answers == [False, True]
        action = await read(storage, held.id)
        assert (action.state, action.last_error, action.readback_ref) == (State.DONE, None, "ref")
        [log] = await storage.attempts(held.id)
        assert (log.result, log.reason, log.readback_ref, log.recorded) == ("Done", None, "ref", True)

    @pytest.mark.parametrize("settlement", EVERY_SETTLEMENT, ids=lambda one: one.result)
    async def test_p13_stale_settle_after_an_erasure_finds_nothing(
        self, storage: Storage, settlement: Settlement
    ) -> None:
        """Nothing of the person comes back, in no table."""
        await enqueue(storage, subject_account_id="acc-7")
        held = await claim(storage)
        await storage.erase("acc-7")
        assert await storage.settle(held, settlement) is False
        assert await everything(storage) == ([], [])
        assert await storage.attempts(held.id) == []

    async def test_a_late_result_is_kept_in_the_log_of_an_action_that_was_reaped(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """The action stays as the reaper left it; the evidence of what the provider said is not lost."""
        await enqueue(storage)
        held = await claim(storage)
        milliseconds(clock, LEASE)
        new = await claim(storage, "two")
        await storage.settle(new, CANCELLED)
        late = Settlement(State.DONE, "Done", StopReason.CONFIRMED, evidence='{"code":250}', readback_ref="ref")
        assert await storage.settle(held, late) is False
        assert (await read(storage, held.id)).state is State.CANCELLED
        log = (await storage.attempts(held.id))[0]
        assert (log.result, log.recorded, log.evidence, log.readback_ref) == ("Done", False, {"code": 250}, "ref")

    async def test_p3_a_settlement_with_a_reason_of_another_state_is_refused(self, storage: Storage) -> None:
        """The database refuses it, and nothing of it is stored, not even in the log."""
        held = await started(storage)
        before = await everything(storage)
        with pytest.raises(ForbiddenByGuard, match="does not belong to this state"):
            await storage.settle(held, Settlement(State.DONE, "Done", StopReason.EXPIRED))
        assert await everything(storage) == before
        assert await storage.settle(held, DONE) is True

    @pytest.mark.parametrize("second", EVERY_SETTLEMENT, ids=lambda one: one.result)
    async def test_p6_two_settlements_of_one_claim_at_once_record_one(
        self, storage: Storage, second: Settlement
    ) -> None:
        """The action and its log say the same of it, and only its caller is told that it was recorded."""
        await declare(storage, delivery=Delivery.READS_BACK)
        held = await started(storage, fenced=True)
        other = await started(storage, "other")
        answers = await both(storage.settle(held, UNCERTAIN), storage.settle(held, second), storage.settle(other, DONE))
        assert sorted(answers[:2]) == [False, True]
        assert answers[2] is True
        recorded = UNCERTAIN if answers[0] else second
        action = await read(storage, held.id)
        [log] = await storage.attempts(held.id)
        assert (action.state, action.stop_reason) == (recorded.state, recorded.stop_reason)
        assert (log.result, log.recorded) == (recorded.result, True)

    async def test_p6_a_stale_settle_beside_that_of_the_holder_is_not_recorded(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Both at once, and both DONE: the log tells which of the two attempts ended the action."""
        old = await started(storage)
        milliseconds(clock, LEASE)
        new = await claim(storage, "two")
        assert await both(storage.settle(old, DONE), storage.settle(new, DONE)) == [False, True]
        assert [log.recorded for log in await storage.attempts(new.id)] == [False, True]

    async def test_p9_a_settlement_that_is_refused_costs_no_other_its_result(self, storage: Storage) -> None:
        """Though they were stored together."""
        held = [await started(storage, f"k{n}") for n in range(3)]
        bad = Settlement(State.DONE, "Done", StopReason.EXPIRED)
        first, refused, last = await asyncio.gather(
            storage.settle(held[0], DONE), storage.settle(held[1], bad), storage.settle(held[2], GIVEN_BACK),
            return_exceptions=True,
        )  # fmt: skip
        assert (first, last) == (True, True)
        assert isinstance(refused, ForbiddenByGuard)
        assert [(await read(storage, one.id)).state for one in held] == [State.DONE, State.EXECUTING, State.ADMITTED]

    async def test_p9_many_settlements_at_once_are_each_recorded_as_their_own(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Stale ones among them, each with its own state, reference, evidence and log."""
        held = [await started(storage, f"k{n}", fenced=n % 2 == 0) for n in range(12)]
        await storage.settle(held[11], DONE)
        milliseconds(clock, SECOND)
        wanted = [
            Settlement(
                one.state, one.result, one.stop_reason, one.wait, one.clears_fence, reason=f"reason {n}",
                readback_ref=f"ref {n}", evidence=f'{{"n":{n}}}',
            )
            for n, one in enumerate([DONE, UNCERTAIN, FAILED, CANCELLED, GIVEN_BACK, READ_AGAIN] * 2)
        ]  # fmt: skip
        answers = await both(*(storage.settle(one, settlement) for one, settlement in zip(held, wanted, strict=True)))
        assert answers == [True] * 11 + [False]
        for n, (one, settlement) in enumerate(zip(held[:11], wanted[:11], strict=True)):
            action = await read(storage, one.id)
            [log] = await storage.attempts(one.id)
            assert (action.state, action.stop_reason, action.last_error) == (
                settlement.state, settlement.stop_reason, f"reason {n}",
            )  # fmt: skip
            assert (action.ended_at == clock.milliseconds) is settlement.state.ended
            assert (log.result, log.reason, log.readback_ref) == (settlement.result, f"reason {n}", f"ref {n}")
            assert (log.evidence, log.recorded, log.settled_at) == ({"n": n}, True, clock.milliseconds)
            fenced = n % 2 == 0 and settlement.state is not State.ADMITTED
            assert (action.write_started_at is not None) is fenced

    async def test_what_is_to_be_forgotten_goes_whatever_the_ends_beside_it(self, storage: Storage) -> None:
        """Ends of every kind at once: each deletes its own."""
        for n in range(8):
            await enqueue(storage, f"k{n}")
        claims = await claim_all(storage)
        for one in claims[:4]:
            await storage.forget(one.action.idempotency_key)
        ends = [DONE, UNCERTAIN, FAILED, CANCELLED] * 2
        assert all(await both(*(storage.settle(one, end) for one, end in zip(claims, ends, strict=True))))
        assert {action.id for action in (await everything(storage))[0]} == {one.id for one in claims[4:]}

    @pytest.mark.parametrize("state", [State.ADMITTED, State.EXECUTING])
    async def test_a_settlement_cools_its_kind(self, storage: Storage, clock: MovableClock, state: State) -> None:
        """For its wait, in every process, in the same commit."""
        await declare(storage, delivery=Delivery.READS_BACK)
        held = await started(storage, fenced=state is State.EXECUTING)
        settlement = Settlement(state, "Defer", wait=MINUTE, counts=False, cools="wait", reason="rate limit")
        await storage.settle(held, settlement)
        policy = (await storage.kinds())["email"]
        assert (policy.cooling_until, policy.cooling_reason) == (clock.milliseconds + MINUTE, "rate limit")

    async def test_a_settlement_cools_its_kind_for_long(self, storage: Storage, clock: MovableClock) -> None:
        """Without a wait of its own: 15 minutes the first time."""
        await declare(storage)
        held = await started(storage)
        await storage.settle(
            held, Settlement(State.ADMITTED, "Defer", counts=False, cools="long", reason="cannot connect")
        )
        assert (await storage.kinds())["email"].cooling_until == clock.milliseconds + 15 * MINUTE

    async def test_p9_a_settlement_that_cools_an_undeclared_kind_is_recorded(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Nobody declared the kind, or somebody deleted its row: the result must not be lost for that."""
        held = await started(storage)
        await storage.settle(
            held, Settlement(State.ADMITTED, "Defer", wait=MINUTE, counts=False, cools="wait", reason="busy")
        )
        assert (await read(storage, held.id)).state is State.ADMITTED
        assert (await storage.kinds())["email"].cooling_until == clock.milliseconds + MINUTE

    async def test_a_fence_of_a_settled_attempt_stays_in_the_log(self, storage: Storage) -> None:
        """A proven retry clears the action's fence; the log still says that there was one."""
        held = await started(storage)
        fenced = await fence(storage, held)
        await retry(storage, held)
        [log] = await storage.attempts(held.id)
        assert log.write_started_at == fenced.written_at
