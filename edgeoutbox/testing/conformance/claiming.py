"""Claim and reclaim."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from edgeoutbox.keys import canonical_json, digest
from edgeoutbox.kinds import Delivery
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Claim, Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    HOUR,
    INSERT,
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
from edgeoutbox.variants import KeySuffix


def keys(claims: Any) -> list[str]:
    """The keys of what was claimed, in the order of the claims."""
    return [held.action.idempotency_key for held in claims]


class Claiming(Topic):
    """Which actions a claim takes, and which it leaves."""

    async def test_a_claim_owns_the_action_for_a_lease(self, storage: Storage, clock: MovableClock) -> None:
        """Epoch and attempt rise, the owner and the lease are noted, and the claim shows the action as it left it."""
        action_id = await enqueue(storage)
        held = await claim(storage, "one")
        assert held.action == await read(storage, action_id)
        assert (held.owner, held.claimed_at) == ("one", clock.milliseconds)
        action = held.action
        assert (action.state, action.epoch, action.attempt) == (State.EXECUTING, 1, 1)
        assert (action.lease_owner, action.lease_expires_at) == ("one", clock.milliseconds + LEASE)
        [log] = await storage.attempts(action_id)
        assert (log.epoch, log.attempt, log.owner, log.started_at) == (1, 1, "one", clock.milliseconds)
        assert log.settled_at is log.write_started_at is log.recorded is None

    async def test_each_kind_has_its_own_lease_and_limit(self, storage: Storage, clock: MovableClock) -> None:
        """One claim takes of several kinds, each as its own executor's limits say."""
        for n in range(3):
            await enqueue(storage, f"email:{n}")
            await enqueue(storage, f"post:{n}", kind="post")
        claims = await storage.claim([served("email", limit=1), served("post", lease=5 * SECOND, limit=2)], 10, "one")
        assert Counter(held.action.kind for held in claims) == {"email": 1, "post": 2}
        leases = {held.action.kind: held.action.lease_expires_at for held in claims}
        assert leases == {"email": clock.milliseconds + LEASE, "post": clock.milliseconds + 5 * SECOND}

    async def test_the_oldest_due_come_first(self, storage: Storage, clock: MovableClock) -> None:
        """Across kinds, up to the limit; equal times in the order of their ids."""
        now = clock.milliseconds
        await enqueue(storage, "c", due_at=now - 1)
        await enqueue(storage, "a", kind="post", due_at=now - 3)
        await enqueue(storage, "d", due_at=now - 1)
        await enqueue(storage, "b", due_at=now - 2)
        claims = await storage.claim([served("email"), served("post")], 3, "one")
        assert keys(claims) == ["a", "b", "c"]
        assert keys(await storage.claim([served("email"), served("post")], 3, "one")) == ["d"]

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_a_claim_of_nothing_takes_nothing(self, storage: Storage, limit: int) -> None:
        """No free slot, no kind or no share of a kind: nothing changes."""
        await enqueue(storage)
        assert await storage.claim([served()], limit, "one") == []
        assert await storage.claim([], 10, "one") == []
        assert await storage.claim([served(limit=0)], 10, "one") == []

    async def test_nothing_is_claimed_before_it_is_due(self, storage: Storage, clock: MovableClock) -> None:
        """A later time is waited for, to the millisecond."""
        await enqueue(storage, due_at=clock.milliseconds + MINUTE)
        milliseconds(clock, MINUTE - 1)
        assert await claim_all(storage) == []
        milliseconds(clock, 1)
        assert await claim(storage)

    async def test_p5_a_lane_starts_in_the_order_of_its_ids(self, storage: Storage) -> None:
        """One at a time, whatever the due times say."""
        for n, due_at in enumerate((3, 2, 1)):
            await enqueue(storage, f"k{n}", "lane", due_at=due_at)
        for n in range(3):
            held = await claim(storage)
            assert held.action.idempotency_key == f"k{n}"
            assert await claim_all(storage) == []
            await storage.settle(held, DONE)

    async def test_p5_what_waits_for_its_time_holds_its_lane(self, storage: Storage, clock: MovableClock) -> None:
        """An action that is due waits behind an earlier one that is not; without a lane it would not."""
        await enqueue(storage, "later", "lane", due_at=clock.milliseconds + HOUR)
        await enqueue(storage, "now", "lane")
        await enqueue(storage, "alone")
        assert keys(await claim_all(storage)) == ["alone"]

    async def test_p5_what_waits_for_its_retry_holds_its_lane(self, storage: Storage, clock: MovableClock) -> None:
        """Between its attempts too."""
        first = await started(storage, "first", "lane")
        await enqueue(storage, "second", "lane")
        await retry(storage, first, HOUR)
        assert await claim_all(storage) == []
        milliseconds(clock, HOUR)
        assert keys(await claim_all(storage)) == ["first"]

    async def test_p5_what_waits_for_its_approval_holds_its_lane(self, storage: Storage) -> None:
        """A proposal is not claimed, and nothing behind it."""
        await propose(storage, "proposal", "lane")
        await enqueue(storage, "second", "lane")
        assert await claim_all(storage) == []

    async def test_p4_two_executors_never_share_a_lane_or_an_action(self, storage: Storage, backend: Backend) -> None:
        """Claims at the same time through two storages take each lane once."""
        other = await backend.open()
        for n in range(40):
            await enqueue(storage, f"k{n}", f"lane:{n % 20}")
        batches = await asyncio.gather(
            *(one.claim([served()], 3, f"owner {n}") for n in range(6) for one in (storage, other))
        )
        claims = [held for batch in batches for held in batch]
        assert len(claims) == 20
        assert len({held.action.lane_key for held in claims}) == 20
        assert len({held.id for held in claims}) == 20

    async def test_p10_a_lost_lease_is_claimed_by_another(self, storage: Storage, clock: MovableClock) -> None:
        """Only when the lease has ended, to the millisecond; the crash counts as an attempt."""
        first = await started(storage)
        milliseconds(clock, LEASE - 1)
        assert await claim_all(storage, "two") == []
        milliseconds(clock, 1)
        second = await claim(storage, "two")
        assert (second.id, second.epoch, second.action.attempt, second.owner) == (first.id, 2, 2, "two")

    async def test_p10_others_do_not_wait_for_a_dead_holder(self, storage: Storage, clock: MovableClock) -> None:
        """Its own lane waits until the lease ends, every other goes on; then its lane goes on."""
        await started(storage, "dead", "lane")
        await enqueue(storage, "behind", "lane")
        await enqueue(storage, "elsewhere", "other")
        [elsewhere] = await claim_all(storage, "two")
        assert elsewhere.action.idempotency_key == "elsewhere"
        await storage.settle(elsewhere, DONE)
        milliseconds(clock, LEASE)
        dead = await claim(storage, "two")
        await storage.settle(dead, DONE)
        assert keys(await claim_all(storage, "two")) == ["behind"]

    async def test_an_owner_never_reclaims_its_own(self, storage: Storage, clock: MovableClock) -> None:
        """A process that stalled past its lease does not run an action beside itself."""
        await started(storage)
        milliseconds(clock, LEASE)
        assert await claim_all(storage, "one") == []
        assert await claim(storage, "two")

    async def test_a_claim_can_leave_lost_leases_alone(self, storage: Storage, clock: MovableClock) -> None:
        """With `reclaim` false only heads are taken, for an executor that does not trust the clock."""
        await started(storage, "lost")
        milliseconds(clock, LEASE)
        await enqueue(storage, "new")
        assert keys(await storage.claim([served()], 10, "two", reclaim=False)) == ["new"]

    async def test_p8_a_fenced_action_of_an_at_most_once_kind_is_not_reclaimed(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Its write may exist. Unfenced it would be claimed."""
        await declare(storage)
        await started(storage, "fenced", fenced=True)
        await started(storage, "unfenced")
        milliseconds(clock, 10 * LEASE)
        assert keys(await claim_all(storage, "two")) == ["unfenced"]

    async def test_p8_a_kind_that_nobody_declared_counts_as_at_most_once(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Doubt is resolved towards not sending twice."""
        await started(storage, fenced=True)
        milliseconds(clock, 10 * LEASE)
        assert await claim_all(storage, "two") == []

    @pytest.mark.parametrize("delivery", [Delivery.READS_BACK, Delivery.REPEATABLE])
    async def test_a_fenced_action_of_another_kind_is_reclaimed_with_its_fence(
        self, storage: Storage, clock: MovableClock, delivery: Delivery
    ) -> None:
        """The new holder sees when the first unproven write was, and must look for it first."""
        await declare(storage, delivery=delivery)
        first = await started(storage)
        fenced = await fence(storage, first)
        milliseconds(clock, LEASE)
        second = await claim(storage, "two")
        assert second.action.write_started_at == fenced.written_at

    async def test_no_attempt_is_claimed_beyond_the_last(self, storage: Storage, clock: MovableClock) -> None:
        """A lost lease of the last attempt is left to the reaper; the action's own number counts before the kind's."""
        await enqueue(storage, "two of kind")
        await enqueue(storage, "one of its own", max_attempts=1)
        await enqueue(storage, "three of its own", max_attempts=3)
        for attempt, claimed in enumerate((3, 2, 1, 0)):
            claims = await claim_all(storage, f"owner {attempt}", max_attempts=2)
            assert len(claims) == claimed
            milliseconds(clock, LEASE)

    async def test_a_paused_kind_is_not_claimed(self, storage: Storage, clock: MovableClock) -> None:
        """Neither its heads nor its lost leases, until somebody resumes it; other kinds go on."""
        await declare(storage)
        await started(storage, "lost")
        milliseconds(clock, LEASE)
        await enqueue(storage, "head")
        await enqueue(storage, "post", kind="post")
        await storage.pause("email", "ann")
        both_kinds = [served("email"), served("post")]
        assert keys(await storage.claim(both_kinds, 10, "two")) == ["post"]
        await storage.resume("email")
        assert sorted(keys(await storage.claim(both_kinds, 10, "two"))) == ["head", "lost"]

    async def test_a_cooling_kind_is_not_claimed(self, storage: Storage, clock: MovableClock) -> None:
        """Neither its heads nor its lost leases, until the time has passed."""
        await declare(storage)
        await started(storage, "lost")
        milliseconds(clock, LEASE)
        await enqueue(storage, "head")
        await storage.cool_down("email", "rate limit", MINUTE)
        milliseconds(clock, MINUTE - 1)
        assert await claim_all(storage, "two") == []
        milliseconds(clock, 1)
        assert sorted(keys(await claim_all(storage, "two"))) == ["head", "lost"]

    async def test_an_expired_action_is_not_claimed(self, storage: Storage, clock: MovableClock) -> None:
        """From the moment of its expiry on."""
        await enqueue(storage, "a", expires_at=clock.milliseconds + MINUTE)
        await enqueue(storage, "b", expires_at=clock.milliseconds + MINUTE + 1)
        milliseconds(clock, MINUTE)
        assert keys(await claim_all(storage)) == ["b"]

    async def test_an_expired_lost_lease_is_reclaimed_only_to_read_back(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """A write that may exist is still looked for; what was never written is left to expire."""
        await declare(storage, delivery=Delivery.READS_BACK)
        expires_at = clock.milliseconds + LEASE
        for key in ("unfenced", "fenced"):
            await enqueue(storage, key, expires_at=expires_at)
        for held in await claim_all(storage):
            if held.action.idempotency_key == "fenced":
                await fence(storage, held)
        milliseconds(clock, LEASE)
        assert keys(await claim_all(storage, "two")) == ["fenced"]

    async def test_a_reread_is_claimed_by_anybody_after_its_wait(self, storage: Storage, clock: MovableClock) -> None:
        """Also by the executor that asked for it."""
        await declare(storage, delivery=Delivery.READS_BACK)
        held = await started(storage, fenced=True)
        await reread(storage, held, MINUTE)
        milliseconds(clock, MINUTE - 1)
        assert await claim_all(storage, "one") == []
        milliseconds(clock, 1)
        again = await claim(storage, "one")
        assert (again.epoch, again.action.attempt, again.action.write_started_at) == (2, 2, held.claimed_at)

    async def test_p11_an_unknown_kind_is_not_claimed(self, storage: Storage, clock: MovableClock) -> None:
        """Nor reclaimed; it still holds its lane."""
        await enqueue(storage, "unknown", "lane", kind="telegram")
        await enqueue(storage, "behind", "lane")
        assert await claim_all(storage) == []
        await claim(storage, "of another build", kind="telegram")
        milliseconds(clock, LEASE)
        assert await claim_all(storage) == []

    async def test_p11_an_unknown_variant_is_not_claimed(self, storage: Storage, clock: MovableClock) -> None:
        """Nor reclaimed; it holds its lane, and known ones go on."""
        await enqueue(storage, "unknown", "lane", payload={"notice": "of a later build"})
        await enqueue(storage, "behind", "lane")
        await enqueue(storage, "known")
        assert keys(await claim_all(storage, condition=KNOWN)) == ["known"]
        assert keys(await claim_all(storage, "of another build")) == ["unknown"]
        milliseconds(clock, LEASE)
        assert keys(await claim_all(storage, "two", condition=KNOWN)) == ["known"]

    async def test_p11_the_key_can_name_the_variant(self, storage: Storage) -> None:
        """Its last segment alone decides."""
        for key in ("feedback:7:send", "feedback:7:retract", "send:7", "send", "feedback:7:resend"):
            await enqueue(storage, key)
        assert sorted(keys(await claim_all(storage, condition=KeySuffix(("send",))))) == ["feedback:7:send", "send"]

    async def test_a_row_inserted_by_sql_gets_its_digest_with_its_first_claim(
        self, storage: Storage, backend: Backend
    ) -> None:
        """Without lane, workspace and digest it is carried out like any other."""
        await backend.sql(INSERT, "email", "k", '{ "b": 1,  "a": "\\u00fc" }')
        held = await claim(storage)
        expected = digest(canonical_json({"a": "ü", "b": 1}))
        assert held.action.payload_digest == (await read(storage, held.id)).payload_digest == expected
        assert (held.action.workspace_id, held.action.lane_key) == ("default", None)

    @pytest.mark.parametrize(
        "payload",
        [
            '{"a":1,"a":2}',
            '{"a":"\\ud800"}',
            '{"a":' + "9" * 5000 + "}",
            '{"a":' + "[" * 150 + "]" * 150 + "}",
            '{"a":1e999}',
            '{"a":"\\u0000"}',
        ],
        ids=["a key twice", "a lone surrogate", "a huge number", "nested deeply", "infinity", "NUL"],
    )
    async def test_a_payload_that_cannot_be_read_stalls_nobody(
        self, storage: Storage, backend: Backend, payload: str
    ) -> None:
        """It is claimed, so that its attempt can end it INVALID_PAYLOAD, and everything beside it is claimed too."""
        await enqueue(storage, "good")
        await backend.sql(INSERT, "email", "bad", payload)
        assert sorted(keys(await claim_all(storage))) == ["bad", "good"]

    async def test_claim_one_ignores_due_at(self, storage: Storage, clock: MovableClock) -> None:
        """It takes an admitted head before its time, and is a claim like any other."""
        action_id = await enqueue(storage, due_at=clock.milliseconds + HOUR)
        held = await storage.claim_one(served(), action_id, "one")
        assert isinstance(held, Claim)
        assert held.action == await read(storage, action_id)
        assert (held.epoch, held.action.lease_expires_at) == (1, clock.milliseconds + LEASE)
        assert held.claimed_at == clock.milliseconds

    async def test_claim_one_ignores_nothing_else(self, storage: Storage, clock: MovableClock) -> None:
        """Not the lane, the state, the expiry, the kind, the variant, a pause nor a cooling."""
        await declare(storage)
        running = await started(storage, "running", "lane")
        behind = await enqueue(storage, "behind", "lane")
        proposal = (await propose(storage, "proposal")).id
        expired = await enqueue(storage, "expired", expires_at=clock.milliseconds)
        post = await enqueue(storage, "post", kind="post")
        unknown = await enqueue(storage, "unknown", payload={"notice": "of a later build"})
        before = await everything(storage)
        for action_id in (running.id, behind, proposal, expired, post, unknown, 999):
            assert await storage.claim_one(served(condition=KNOWN), action_id, "two") is None
        plain = await enqueue(storage, "plain")
        await storage.pause("email", "ann")
        assert await storage.claim_one(served(), plain, "two") is None
        await storage.resume("email")
        await storage.cool_down("email", "rate limit", MINUTE)
        assert await storage.claim_one(served(), plain, "two") is None
        milliseconds(clock, MINUTE)
        assert await storage.claim_one(served(), plain, "two") is not None
        assert (await everything(storage))[0][1:] == before[0]
