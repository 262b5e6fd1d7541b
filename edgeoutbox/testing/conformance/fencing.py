"""begin_write: the durable mark that a write may exist."""

from edgeoutbox.kinds import Delivery
from edgeoutbox.storage.protocol import Fence, Refusal, Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    LEASE,
    MINUTE,
    SECOND,
    WINDOW,
    Topic,
    both,
    claim,
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


class Fencing(Topic):
    """Who may begin a write, and who may not any more."""

    async def test_p7_a_fence_is_stored_when_begin_write_returns(
        self, storage: Storage, backend: Backend, clock: MovableClock
    ) -> None:
        """Another program sees it at once, in the action and in the dispatch log."""
        held = await started(storage)
        milliseconds(clock, SECOND)
        answer = await storage.begin_write(held.id, held.epoch, held.owner, WINDOW)
        assert answer == Fence(clock.milliseconds, LEASE - SECOND)
        [(written,)] = await backend.sql("SELECT write_started_at FROM agent_action WHERE id = ?", held.id)
        [log] = await storage.attempts(held.id)
        assert written == log.write_started_at == clock.milliseconds

    async def test_p8_the_first_unproven_write_keeps_its_time(self, storage: Storage, clock: MovableClock) -> None:
        """A second window in one attempt is given, and the fence stays where it was."""
        held = await started(storage)
        first = await fence(storage, held)
        milliseconds(clock, SECOND)
        second = await fence(storage, held)
        assert second == Fence(clock.milliseconds, LEASE - SECOND)
        assert (await read(storage, held.id)).write_started_at == first.written_at

    async def test_p8_an_inherited_fence_keeps_its_time_and_the_log_has_both(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """The action knows the first write; each attempt its own."""
        await declare(storage, delivery=Delivery.READS_BACK)
        first = await fence(storage, await started(storage))
        milliseconds(clock, LEASE)
        second = await claim(storage, "two")
        milliseconds(clock, SECOND)
        own = await fence(storage, second)
        assert (await read(storage, second.id)).write_started_at == first.written_at
        written = [log.write_started_at for log in await storage.attempts(second.id)]
        assert written == [first.written_at, own.written_at]

    async def test_a_fence_needs_its_window_of_the_lease(self, storage: Storage, clock: MovableClock) -> None:
        """To the millisecond: exactly a window is enough, less is refused and changes nothing."""
        held = await started(storage)
        milliseconds(clock, LEASE - WINDOW)
        before = await everything(storage)
        assert await storage.begin_write(held.id, held.epoch, held.owner, WINDOW + 1) is Refusal.LEASE_SHORT
        assert await everything(storage) == before
        assert await storage.begin_write(held.id, held.epoch, held.owner, WINDOW) == Fence(clock.milliseconds, WINDOW)

    async def test_a_lease_shorter_than_its_window_is_never_fenced(self, storage: Storage) -> None:
        """Such a kind is told at its first write."""
        held = await started(storage, lease=WINDOW - 1)
        assert await storage.begin_write(held.id, held.epoch, held.owner, WINDOW) is Refusal.LEASE_SHORT

    async def test_p6_a_fence_after_the_lease_is_refused(self, storage: Storage, clock: MovableClock) -> None:
        """Also when nobody else took the action."""
        held = await started(storage)
        milliseconds(clock, LEASE + 1)
        assert await storage.begin_write(held.id, held.epoch, held.owner, 0) is Refusal.LEASE_SHORT

    async def test_an_expired_action_is_not_fenced(self, storage: Storage, clock: MovableClock) -> None:
        """From the moment of its expiry on, with or without an earlier fence."""
        await enqueue(storage, expires_at=clock.milliseconds + MINUTE)
        held = await claim(storage)
        milliseconds(clock, MINUTE - 1)
        await fence(storage, held, window=SECOND)
        milliseconds(clock, 1)
        before = await everything(storage)
        assert await storage.begin_write(held.id, held.epoch, held.owner, SECOND) is Refusal.EXPIRED
        assert await everything(storage) == before

    async def test_p6_a_stale_fence_after_a_reclaim_is_refused(self, storage: Storage, clock: MovableClock) -> None:
        """The old holder's epoch is over, and the new holder's is not disturbed."""
        old = await started(storage)
        milliseconds(clock, LEASE)
        new = await claim(storage, "two")
        before = await everything(storage)
        assert await storage.begin_write(old.id, old.epoch, old.owner, 0) is Refusal.NOT_HELD
        assert await storage.begin_write(old.id, new.epoch, old.owner, 0) is Refusal.NOT_HELD
        assert await storage.begin_write(old.id, old.epoch, new.owner, 0) is Refusal.NOT_HELD
        assert await everything(storage) == before
        await fence(storage, new)

    async def test_p6_a_stale_fence_after_a_retry_claimed_by_the_same_owner_is_refused(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """The owner alone does not name a claim: its epoch does."""
        old = await started(storage)
        await retry(storage, old, SECOND)
        assert await storage.begin_write(old.id, old.epoch, old.owner, 0) is Refusal.NOT_HELD
        milliseconds(clock, SECOND)
        await claim(storage, "one")
        assert await storage.begin_write(old.id, old.epoch, old.owner, 0) is Refusal.NOT_HELD
        assert (await read(storage, old.id)).write_started_at is None

    async def test_p6_a_stale_fence_after_a_reread_is_refused(self, storage: Storage) -> None:
        """The epoch is still the old one, but nobody owns it."""
        await declare(storage, delivery=Delivery.READS_BACK)
        old = await started(storage, fenced=True)
        await reread(storage, old, 10 * MINUTE)
        before = await everything(storage)
        assert await storage.begin_write(old.id, old.epoch, old.owner, 0) is Refusal.NOT_HELD
        assert await everything(storage) == before

    async def test_p6_a_stale_fence_after_the_end_is_refused(self, storage: Storage) -> None:
        """An ended action is not written again."""
        held = await started(storage)
        await storage.settle(held, DONE)
        before = await everything(storage)
        assert await storage.begin_write(held.id, held.epoch, held.owner, 0) is Refusal.NOT_HELD
        assert await everything(storage) == before

    async def test_p8_many_fences_at_once_are_each_answered_as_their_own(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Held, stale, expired and short of time, asked for together."""
        await enqueue(storage, "expired", expires_at=clock.milliseconds + SECOND)
        expired = await claim(storage)
        short = await started(storage, "short", lease=WINDOW // 2)
        ended = await started(storage, "ended")
        await storage.settle(ended, DONE)
        held = [await started(storage, f"k{n}") for n in range(3)]
        milliseconds(clock, SECOND)
        answers = await both(
            *(storage.begin_write(one.id, one.epoch, one.owner, WINDOW) for one in (*held, expired, short, ended))
        )
        given = Fence(clock.milliseconds, LEASE - SECOND)
        assert answers == [given, given, given, Refusal.EXPIRED, Refusal.LEASE_SHORT, Refusal.NOT_HELD]
        for one in (expired, short, ended):
            assert (await read(storage, one.id)).write_started_at is None

    async def test_p8_each_window_is_judged_by_itself(self, storage: Storage) -> None:
        """One that the lease has room for does not speak for another that it has not."""
        held = await started(storage)
        short, long = await both(
            storage.begin_write(held.id, held.epoch, held.owner, WINDOW),
            storage.begin_write(held.id, held.epoch, held.owner, LEASE + 1),
        )
        assert isinstance(short, Fence)
        assert long is Refusal.LEASE_SHORT

    async def test_p13_a_fence_after_an_erasure_is_refused(self, storage: Storage) -> None:
        """There is no action any more, and no row comes back."""
        await enqueue(storage, subject_account_id="acc-7")
        held = await claim(storage)
        await storage.erase("acc-7")
        assert await storage.begin_write(held.id, held.epoch, held.owner, 0) is Refusal.NOT_HELD
        assert await everything(storage) == ([], [])
