"""Reap: what ends when a lease is lost or an expiry passes."""

import pytest

from edgeoutbox.kinds import Delivery
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    HOUR,
    KNOWN,
    LEASE,
    MINUTE,
    SECOND,
    Topic,
    claim,
    claim_all,
    declare,
    enqueue,
    everything,
    fence,
    milliseconds,
    propose,
    read,
    reread,
    retry,
    served,
    started,
)

LEFT = None

LOST: list[tuple[Delivery, bool, bool, bool, tuple[State, StopReason] | None]] = [
    # delivery, fenced, last attempt, expired -> the end, or left to the next claim
    (Delivery.AT_MOST_ONCE, True, False, False, (State.UNCERTAIN, StopReason.LEASE_LOST_AFTER_WRITE)),
    (Delivery.AT_MOST_ONCE, True, True, False, (State.UNCERTAIN, StopReason.LEASE_LOST_AFTER_WRITE)),
    (Delivery.AT_MOST_ONCE, True, False, True, (State.UNCERTAIN, StopReason.LEASE_LOST_AFTER_WRITE)),
    (Delivery.AT_MOST_ONCE, True, True, True, (State.UNCERTAIN, StopReason.LEASE_LOST_AFTER_WRITE)),
    (Delivery.AT_MOST_ONCE, False, False, False, LEFT),
    (Delivery.AT_MOST_ONCE, False, True, False, (State.FAILED, StopReason.ATTEMPTS_EXHAUSTED)),
    (Delivery.AT_MOST_ONCE, False, False, True, (State.CANCELLED, StopReason.EXPIRED)),
    (Delivery.AT_MOST_ONCE, False, True, True, (State.CANCELLED, StopReason.EXPIRED)),
    (Delivery.READS_BACK, True, False, False, LEFT),
    (Delivery.READS_BACK, True, True, False, (State.UNCERTAIN, StopReason.READBACK_EXHAUSTED)),
    (Delivery.READS_BACK, True, False, True, LEFT),
    (Delivery.READS_BACK, True, True, True, (State.UNCERTAIN, StopReason.READBACK_EXHAUSTED)),
    (Delivery.READS_BACK, False, False, False, LEFT),
    (Delivery.READS_BACK, False, True, False, (State.FAILED, StopReason.ATTEMPTS_EXHAUSTED)),
    (Delivery.READS_BACK, False, False, True, (State.CANCELLED, StopReason.EXPIRED)),
    (Delivery.REPEATABLE, True, False, False, LEFT),
    (Delivery.REPEATABLE, True, True, False, (State.UNCERTAIN, StopReason.READBACK_EXHAUSTED)),
    (Delivery.WRITES_NOTHING, False, False, False, LEFT),
    (Delivery.WRITES_NOTHING, False, True, False, (State.FAILED, StopReason.ATTEMPTS_EXHAUSTED)),
]


class Reaping(Topic):
    """Everything that nobody may claim any more ends, and nothing else does."""

    @pytest.mark.parametrize(("delivery", "fenced", "last", "expired", "end"), LOST)
    async def test_p10_a_lost_lease_ends_or_is_left_to_the_next_claim(
        self,
        storage: Storage,
        clock: MovableClock,
        delivery: Delivery,
        fenced: bool,
        last: bool,
        expired: bool,
        end: tuple[State, StopReason] | None,
    ) -> None:
        """By what the kind promises, whether a write may exist, and whether anything can still be tried."""
        await declare(storage, delivery=delivery)
        kind = served(max_attempts=1 if last else 5)
        await enqueue(storage, expires_at=clock.milliseconds + LEASE if expired else None)
        [held] = await storage.claim([kind], 1, "one")
        if fenced:
            await fence(storage, held)
        milliseconds(clock, LEASE - 1)
        assert await storage.reap([kind], "two", {}) == []
        milliseconds(clock, 1)
        reaped = await storage.reap([kind], "two", {})
        action = await read(storage, held.id)
        if end is None:
            assert reaped == []
            assert [again.id for again in await storage.claim([kind], 1, "two")] == [held.id]
        else:
            assert reaped == [action]
            assert (action.state, action.stop_reason) == end
            assert (action.payload, action.ended_at, action.is_head) == (None, clock.milliseconds, False)
            assert (action.lease_owner, action.lease_expires_at) == (None, None)
            assert await storage.claim([kind], 1, "two") == []

    async def test_p8_a_kind_that_nobody_declared_is_reaped_as_at_most_once(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Its fenced, lost action ends UNCERTAIN."""
        held = await started(storage, fenced=True)
        milliseconds(clock, LEASE)
        await storage.reap([served()], "two", {})
        assert (await read(storage, held.id)).stop_reason is StopReason.LEASE_LOST_AFTER_WRITE

    async def test_an_actions_own_number_of_attempts_decides(self, storage: Storage, clock: MovableClock) -> None:
        """max_attempts of the request goes before that of the kind."""
        few = await enqueue(storage, "few", max_attempts=1)
        many = await enqueue(storage, "many", max_attempts=9)
        await claim_all(storage, max_attempts=1)
        milliseconds(clock, LEASE)
        assert [action.id for action in await storage.reap([served(max_attempts=1)], "two", {})] == [few]
        assert (await read(storage, many)).state is State.EXECUTING

    async def test_an_owner_never_reaps_its_own(self, storage: Storage, clock: MovableClock) -> None:
        """Its attempt may still be running, and knows better what became of it."""
        await declare(storage)
        held = await started(storage, fenced=True)
        milliseconds(clock, LEASE)
        assert await storage.reap([served()], "one", {}) == []
        assert await storage.settle(held, DONE) is True

    @pytest.mark.parametrize("proposed", [True, False])
    async def test_what_waits_expires(self, storage: Storage, clock: MovableClock, proposed: bool) -> None:
        """To the millisecond; as lane head it lets the lane go on."""
        request = {"expires_at": clock.milliseconds + MINUTE}
        if proposed:
            action_id = (await propose(storage, "k", "lane", **request)).id
        else:
            action_id = await enqueue(storage, "k", "lane", **request)
        behind = await enqueue(storage, "behind", "lane")
        milliseconds(clock, MINUTE - 1)
        assert await storage.reap([served()], "one", {}) == []
        milliseconds(clock, 1)
        [action] = await storage.reap([served()], "one", {})
        assert (action.id, action.state, action.stop_reason) == (action_id, State.CANCELLED, StopReason.EXPIRED)
        assert action.payload is None
        assert (await claim(storage)).id == behind

    async def test_what_waits_for_its_retry_expires(self, storage: Storage, clock: MovableClock) -> None:
        """Between attempts nothing of it exists at the provider."""
        await enqueue(storage, expires_at=clock.milliseconds + MINUTE)
        held = await claim(storage)
        await retry(storage, held, HOUR)
        milliseconds(clock, MINUTE)
        [action] = await storage.reap([served()], "one", {})
        assert (action.id, action.stop_reason) == (held.id, StopReason.EXPIRED)

    async def test_expiry_does_not_end_what_executes(self, storage: Storage, clock: MovableClock) -> None:
        """While its lease lives, its attempt decides."""
        await enqueue(storage, expires_at=clock.milliseconds + SECOND)
        held = await claim(storage)
        milliseconds(clock, SECOND)
        assert await storage.reap([served()], "two", {}) == []
        assert await storage.settle(held, DONE) is True

    async def test_a_reread_on_its_last_attempt_is_not_reaped_while_it_waits(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Its lease is its wait; nobody owns it, and still it is not lost before its time."""
        await declare(storage, delivery=Delivery.READS_BACK)
        held = await started(storage, fenced=True)
        await reread(storage, held, MINUTE)
        milliseconds(clock, MINUTE - 1)
        assert await storage.reap([served()], "two", {}) == []

    async def test_p11_what_this_build_cannot_decode_is_not_reaped(self, storage: Storage, clock: MovableClock) -> None:
        """Neither an unknown kind nor an unknown variant: not expired, not lost, not failed."""
        await declare(storage)
        later = {"notice": "of a later build"}
        await enqueue(storage, "lost", payload=later)
        await enqueue(storage, "lost post", kind="post")
        for kind in ("email", "post"):
            for held in await claim_all(storage, "of another build", kind=kind, max_attempts=1):
                await fence(storage, held)
        await enqueue(storage, "expired", payload=later, expires_at=clock.milliseconds + 1)
        await enqueue(storage, "expired post", kind="post", expires_at=clock.milliseconds + 1)
        await propose(storage, "expired proposal", payload=later, expires_at=clock.milliseconds + 1)
        milliseconds(clock, 10 * LEASE)
        before = await everything(storage)
        assert await storage.reap([served(max_attempts=1, condition=KNOWN)], "two", {}) == []
        assert await everything(storage) == before

    async def test_a_reap_has_a_limit(self, storage: Storage, clock: MovableClock) -> None:
        """A flood of expired actions is worked off in turns."""
        for n in range(5):
            await enqueue(storage, f"k{n}", expires_at=clock.milliseconds)
        assert [len(await storage.reap([served()], "one", {}, 2)) for _ in range(4)] == [2, 2, 1, 0]

    async def test_two_reapers_end_an_action_once(
        self, storage: Storage, backend: Backend, clock: MovableClock
    ) -> None:
        """The second finds nothing."""
        other = await backend.open()
        await started(storage, max_attempts=1)
        milliseconds(clock, LEASE)
        first = await storage.reap([served(max_attempts=1)], "two", {})
        second = await other.reap([served(max_attempts=1)], "three", {})
        assert (len(first), second) == (1, [])

    async def test_a_lease_from_the_future_is_shortened_to_its_own_length(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """When the clock was set back an hour, the lane does not wait that hour for a dead holder."""
        held = await started(storage, "k", "lane")
        clock.set_wall(-HOUR / 1000)
        await storage.reap([served()], "two", {})
        assert (await read(storage, held.id)).lease_expires_at == clock.milliseconds + LEASE
        milliseconds(clock, LEASE)
        assert (await claim(storage, "two")).id == held.id

    @pytest.mark.parametrize("back", [30 * SECOND, HOUR])
    async def test_p8_a_lease_from_the_future_is_shortened_once(
        self, storage: Storage, clock: MovableClock, back: int
    ) -> None:
        """Reaping again and again neither prolongs it nor takes it from a holder that still runs."""
        held = await started(storage, fenced=True)
        clock.set_wall(-back / 1000)
        expected = clock.milliseconds + LEASE
        for _ in range(5):
            assert await storage.reap([served()], "two", {}) == []
            assert (await read(storage, held.id)).lease_expires_at == expected
            milliseconds(clock, 5 * SECOND)
        assert await storage.settle(held, DONE) is True

    async def test_p8_a_lease_from_the_future_keeps_its_own_length(self, storage: Storage, clock: MovableClock) -> None:
        """A program with a shorter lease does not cut the lease of one with a longer."""
        await enqueue(storage)
        [held] = await storage.claim([served(lease=HOUR)], 1, "one")
        clock.set_wall(-30.0)
        for _ in range(3):
            await storage.reap([served(lease=2 * MINUTE)], "two", {})
            milliseconds(clock, MINUTE)
        assert await storage.claim([served(lease=2 * MINUTE)], 1, "two") == []
        assert await storage.settle(held, DONE) is True

    async def test_a_clock_that_was_set_forward_and_back_costs_no_holder_its_lease(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """A lease that was claimed in the past keeps its end."""
        held = await started(storage)
        milliseconds(clock, SECOND)
        await storage.reap([served()], "two", {})
        assert (await read(storage, held.id)).lease_expires_at == held.action.lease_expires_at
