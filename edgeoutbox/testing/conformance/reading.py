"""get, list, lane, attempts, backlog, next_due and situation."""

import pytest

from edgeoutbox.errors import StorageError
from edgeoutbox.kinds import Delivery
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Query, Settlement, Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    FAILED,
    HOUR,
    KNOWN,
    LEASE,
    MINUTE,
    SECOND,
    UNCERTAIN,
    Topic,
    a_request,
    claim,
    claim_all,
    declare,
    enqueue,
    milliseconds,
    propose,
    read,
    reread,
    retry,
    served,
    started,
)
from edgeoutbox.variants import ALWAYS, AllOf, Each, KeySuffix, OneOf, Switch


class Reading(Topic):
    """Reads change nothing and leave nothing out."""

    async def test_an_action_is_found_by_id_and_by_key(self, storage: Storage) -> None:
        """Or is not there."""
        action_id = await enqueue(storage, "k")
        by_id, by_key = await storage.get(action_id=action_id), await storage.get(key="k")
        assert by_id is not None
        assert by_id == by_key
        assert await storage.get(action_id=999) is await storage.get(key="other") is None

    async def test_a_list_is_newest_first_and_pages(self, storage: Storage) -> None:
        """The cursor goes on where the page before ended."""
        ids = [await enqueue(storage, f"k{n}") for n in range(5)]
        pages = []
        after = None
        while page := await storage.list(Query(after=after, limit=2)):
            pages.append([action.id for action in page])
            after = page[-1].id
        assert pages == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]

    async def test_a_list_filters_by_every_field(self, storage: Storage) -> None:
        """State, kind, lane, run and subject, alone and together."""
        await enqueue(storage, "a", "lane", run_id="run", subject_account_id="acc")
        await enqueue(storage, "b", "lane", kind="post", run_id="run")
        await enqueue(storage, "c", "other", subject_account_id="acc")
        await propose(storage, "d", "lane")

        async def found(query: Query) -> str:
            return "".join(sorted(action.idempotency_key for action in await storage.list(query)))

        assert await found(Query()) == "abcd"
        assert await found(Query(state=State.PROPOSED)) == "d"
        assert await found(Query(kind="email")) == "acd"
        assert await found(Query(lane_key="lane")) == "abd"
        assert await found(Query(run_id="run")) == "ab"
        assert await found(Query(subject_account_id="acc")) == "ac"
        assert await found(Query(subject_account_id="acc", lane_key="lane", state=State.ADMITTED)) == "a"

    async def test_p11_a_lane_is_shown_whole_and_in_order(self, storage: Storage) -> None:
        """Open actions of any kind, decodable or not; ended ones are gone from it."""
        held = await started(storage, "ended", "lane")
        await storage.settle(held, DONE)
        for key, kind in (("a", "email"), ("b", "telegram"), ("c", "email")):
            await enqueue(storage, key, "lane", kind=kind, payload={"notice": "of a later build"})
        await enqueue(storage, "elsewhere", "other")
        assert [action.idempotency_key for action in await storage.lane("lane")] == ["a", "b", "c"]
        assert await storage.lane("nobody's") == []

    async def test_the_dispatch_log_is_oldest_first(self, storage: Storage, clock: MovableClock) -> None:
        """One record per claim; an action that was never claimed has none."""
        await enqueue(storage)
        for owner in ("one", "two"):
            held = await claim(storage, owner)
            await retry(storage, held, SECOND)
            milliseconds(clock, SECOND)
        assert [(log.epoch, log.owner) for log in await storage.attempts(held.id)] == [(1, "one"), (2, "two")]
        assert await storage.attempts(await enqueue(storage, "new")) == []

    async def test_the_backlog_counts_what_is_open_and_what_went_wrong(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """By kind, with the oldest due, the weather, and whether an executor is there."""
        await declare(storage)
        for key, settlement in (("uncertain", UNCERTAIN), ("failed", FAILED), ("done", DONE)):
            await storage.settle(await started(storage, key), settlement)
        await started(storage, "executing")
        await propose(storage, "proposed")
        oldest = clock.milliseconds - MINUTE
        await enqueue(storage, "due", due_at=oldest)
        await enqueue(storage, "later", due_at=clock.milliseconds + HOUR)
        await enqueue(storage, "post", kind="post")
        until = await storage.cool_down("email", "rate limit", MINUTE)
        await storage.pause("email", "ann")
        await storage.heartbeat("one", "1.0", {"email": ALWAYS})
        email, post = await storage.backlog({})
        assert (email.kind, email.served, post.kind, post.served) == ("email", True, "post", False)
        assert (email.proposed, email.admitted, email.executing, email.uncertain, email.failed) == (1, 2, 1, 1, 1)
        assert (email.oldest_due_at, email.cooling_until, email.cooling_reason) == (oldest, until, "rate limit")
        assert (email.paused_by, post.admitted, post.paused_by) == ("ann", 1, None)

    async def test_p11_the_backlog_does_not_count_what_a_served_kind_cannot_decode(self, storage: Storage) -> None:
        """A row of a later build is nobody's backlog here; kinds that are not served are counted whole."""
        await enqueue(storage, "known")
        await enqueue(storage, "unknown", payload={"notice": "of a later build"})
        await enqueue(storage, "post", kind="post", payload={"notice": "of a later build"})
        email, post = await storage.backlog({"email": KNOWN})
        assert (email.admitted, post.admitted) == (1, 1)

    async def test_next_due_is_the_next_moment_at_which_something_happens(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """A due time, the end of another's lease, of a cooling, or an owed hook; the nearest of them."""
        await declare(storage, hook=True)
        await declare(storage, "post")
        both = [served("email"), served("post")]
        assert await storage.next_due(both, "one") is None
        await enqueue(storage, "later", due_at=clock.milliseconds + HOUR)
        assert await storage.next_due(both, "one") == HOUR
        await enqueue(storage, "sooner", kind="post", due_at=clock.milliseconds + MINUTE)
        assert await storage.next_due(both, "one") == MINUTE
        assert await storage.next_due([served("email")], "one") == HOUR
        await storage.cool_down("post", "rate limit", 10 * MINUTE)
        assert await storage.next_due(both, "one") == 10 * MINUTE
        held = await started(storage, "running", lease=LEASE)
        assert await storage.next_due(both, "two") == LEASE
        assert await storage.next_due(both, "one") == 10 * MINUTE
        await storage.settle(held, DONE)
        assert await storage.next_due(both, "one") == 0

    async def test_next_due_foresees_nothing_behind_a_pause_a_lane_or_an_unknown_variant(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """What cannot be claimed then is no reason to wake."""
        await declare(storage)
        later = clock.milliseconds + MINUTE
        await propose(storage, "proposal", "lane", due_at=later)
        await enqueue(storage, "behind", "lane", due_at=later)
        await enqueue(storage, "unknown", payload={"notice": "of a later build"}, due_at=later)
        assert await storage.next_due([served(condition=KNOWN)], "one") is None
        await enqueue(storage, "known", due_at=later)
        assert await storage.next_due([served(condition=KNOWN)], "one") == MINUTE
        await storage.pause("email", "ann")
        assert await storage.next_due([served(condition=KNOWN)], "one") is None

    async def test_next_due_foresees_the_end_of_a_reread(self, storage: Storage) -> None:
        """Also for the executor that asked for it."""
        await declare(storage, delivery=Delivery.READS_BACK)
        held = await started(storage, fenced=True)
        await reread(storage, held, MINUTE)
        assert await storage.next_due([served()], "one") == MINUTE

    async def test_a_situation_shows_what_an_action_waits_for(self, storage: Storage, clock: MovableClock) -> None:
        """Its lane's head, its kind's policy, and the executors that are there."""
        policy = await declare(storage)
        head = await enqueue(storage, "head", "lane")
        behind = await enqueue(storage, "behind", "lane")
        await storage.heartbeat("one", "1.0", {"email": KNOWN})
        situation = await storage.situation(behind)
        assert situation is not None
        assert (situation.now, situation.action, situation.policy) == (
            clock.milliseconds,
            await read(storage, behind),
            policy,
        )
        [executor] = situation.executors
        assert (executor.owner, executor.version, dict(executor.kinds)) == ("one", "1.0", {"email": KNOWN})
        of_head = await storage.situation(head)
        assert of_head is not None
        assert of_head.lane_head is None
        assert situation.lane_head == of_head
        assert await storage.situation(999) is None

    async def test_an_executor_is_there_while_it_says_so(self, storage: Storage, clock: MovableClock) -> None:
        """For a minute after its last word, or until it leaves."""
        action_id = await enqueue(storage)

        async def owners() -> list[str]:
            situation = await storage.situation(action_id)
            assert situation is not None
            return [executor.owner for executor in situation.executors]

        await storage.heartbeat("one", "1.0", {})
        milliseconds(clock, MINUTE // 2)
        await storage.heartbeat("two", "1.0", {})
        assert await owners() == ["one", "two"]
        milliseconds(clock, MINUTE // 2 + 1)
        assert await owners() == ["two"]
        await storage.heartbeat("one", "1.0", {})
        assert await owners() == ["one", "two"]
        await storage.leave("two")
        assert await owners() == ["one"]

    async def test_who_holds_a_lease_was_last_seen_then(self, storage: Storage, clock: MovableClock) -> None:
        """However long ago; nothing is said of a holder that left, or when nobody holds it."""
        held = await started(storage)

        async def seen() -> int | None:
            situation = await storage.situation(held.id)
            assert situation is not None
            return situation.owner_seen_at

        assert await seen() is None
        await storage.heartbeat(held.owner, "1.0", {})
        then = clock.milliseconds
        milliseconds(clock, HOUR)
        assert await seen() == then
        await storage.leave(held.owner)
        assert await seen() is None

    @pytest.mark.parametrize(
        "condition",
        [
            ALWAYS,
            OneOf(("a", "b"), ("x", 1, True, False, 0)),
            AllOf((OneOf(("a",), ("x",)), Each(("l",), Each((), OneOf(("b",), (2,)))))),
            Switch(("notice",), (("a", ALWAYS), ("b", OneOf(("c",), ("it's",))))),
            AllOf((KeySuffix(("send", "retract")), ALWAYS)),
        ],
        ids=["always", "one of", "each", "switch", "suffix"],
    )
    async def test_what_an_executor_serves_comes_back_as_it_was_said(
        self, storage: Storage, condition: AllOf | OneOf | Each | Switch | KeySuffix
    ) -> None:
        """Other processes read the same condition, down to the types of its values."""
        await storage.heartbeat("one", "1.0", {"email": condition})
        situation = await storage.situation(await enqueue(storage))
        assert situation is not None
        assert repr(situation.executors[0].kinds["email"]) == repr(condition)

    async def test_the_clock_is_the_databases(self, storage: Storage, clock: MovableClock) -> None:
        """`now` is what the defaults and the triggers read."""
        assert await storage.now() == clock.milliseconds

    async def test_a_closed_storage_says_so(self, storage: Storage, backend: Backend) -> None:
        """Nothing hangs, and the answer says what to do."""
        other = await backend.open()
        await other.close()
        for operation in (
            other.enqueue([a_request()]),
            other.get(key="k"),
            other.claim([served()], 1, "one"),
            other.now(),
        ):
            with pytest.raises(StorageError, match="closed"):
                await operation
        assert await claim_all(storage) == []

    async def test_migrating_an_up_to_date_database_changes_nothing(self, storage: Storage, backend: Backend) -> None:
        """A second opening finds everything as it was."""
        held = await started(storage)
        await storage.migrate()
        await (await backend.open()).migrate()
        assert await storage.settle(held, Settlement(State.ADMITTED, "Retry", clears_fence=True)) is True
