"""Enqueue, propose and supersede."""

import asyncio

import pytest

from edgeoutbox.errors import ForbiddenByGuard, InvalidRequest, KeyOfAnotherKind, LaneBusy, UndecodableInLane
from edgeoutbox.model import ActionRequest
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Storage, Supersede
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    HOUR,
    INSERT,
    KNOWN,
    MINUTE,
    Topic,
    a_request,
    claim,
    declare,
    enqueue,
    everything,
    propose,
    read,
    retry,
    started,
)
from edgeoutbox.variants import ALWAYS

SUPERSEDE = Supersede(decodable={"email": ALWAYS, "post": ALWAYS})


class Enqueueing(Topic):
    """What an enqueue stores, and what a second one of its key finds."""

    async def test_an_action_is_stored_as_it_was_requested(self, storage: Storage, clock: MovableClock) -> None:
        """Every field of the request is a column of the action, and the payload is canonical JSON."""
        now = clock.milliseconds
        request = ActionRequest(
            kind="email",
            idempotency_key="order:ü:1",
            payload={"b": [1, None, True, "ß"], "a": {"y": 1, "x": 2.5}},
            lane_key="mail:acc-7",
            workspace_id="north",
            run_id="run-1",
            subject_account_id="acc-7",
            max_attempts=3,
            due_at=now + MINUTE,
            expires_at=now + HOUR,
            trace_parent=f"00-{'1' * 32}-{'2' * 16}-01",
        )
        [answer] = await storage.enqueue([request])
        action = await read(storage, answer.id)
        for field in set(ActionRequest.model_fields) - {"payload"}:
            assert getattr(action, field) == getattr(request, field), field
        assert action.payload == '{"a":{"x":2.5,"y":1},"b":[1,null,true,"ß"]}'
        assert action.payload_digest == request.payload_digest
        assert (action.state, action.is_head, action.epoch, action.attempt) == (State.ADMITTED, True, 0, 0)
        assert (action.created_at, action.admitted_at) == (now, now)
        assert (action.lease_owner, action.lease_expires_at) == (None, None)
        assert (action.write_started_at, action.ended_at) == (None, None)
        assert (answer.created, answer.same_content, answer.state) == (True, True, State.ADMITTED)

    async def test_an_action_without_a_time_is_due_now(self, storage: Storage, clock: MovableClock) -> None:
        """What is left out gets its default on the database's clock."""
        action = await read(storage, await enqueue(storage))
        assert (action.due_at, action.workspace_id, action.lane_key) == (clock.milliseconds, "default", None)

    async def test_many_are_stored_in_their_order(self, storage: Storage) -> None:
        """Ids rise in the order of the requests."""
        answers = await storage.enqueue([a_request(f"order:{n}", "lane") for n in range(5)])
        assert [action.idempotency_key for action in await storage.lane("lane")] == [f"order:{n}" for n in range(5)]
        assert [answer.id for answer in answers] == sorted(answer.id for answer in answers)

    async def test_p1_many_are_stored_all_or_none(self, storage: Storage) -> None:
        """One request that is refused leaves nothing of the others."""
        await enqueue(storage, "taken", kind="post")
        before = await everything(storage)
        with pytest.raises(KeyOfAnotherKind):
            await storage.enqueue([a_request("a"), a_request("taken"), a_request("b")])
        assert await everything(storage) == before

    async def test_p2_a_repeat_answers_with_the_first_and_changes_nothing(self, storage: Storage) -> None:
        """The same request again finds the first action."""
        first = await enqueue(storage, "k", "lane")
        before = await everything(storage)
        [answer] = await storage.enqueue([a_request("k", "lane", due_at=1)])
        assert (answer.id, answer.created, answer.same_content) == (first, False, True)
        assert await everything(storage) == before

    @pytest.mark.parametrize(
        ("lane", "payload"),
        [("other", {"notice": "receipt"}), ("lane", {"notice": "reminder"}), (None, {"notice": "receipt"})],
    )
    async def test_p2_a_repeat_with_other_content_says_so(
        self, storage: Storage, lane: str | None, payload: dict[str, str]
    ) -> None:
        """A key that is used for something else is answered with `same_content` false, and changes nothing."""
        first = await enqueue(storage, "k", "lane")
        before = await everything(storage)
        [answer] = await storage.enqueue([a_request("k", lane, payload=payload)])
        assert (answer.id, answer.created, answer.same_content) == (first, False, False)
        assert await everything(storage) == before

    async def test_p2_a_repeat_compares_content_and_not_text(self, storage: Storage, backend: Backend) -> None:
        """A row that another program inserted, without a digest and with spaces, has the same content."""
        await backend.sql(INSERT, "email", "k", '{ "b" : 1, "a" : [ ] }')
        [same] = await storage.enqueue([a_request("k", payload={"a": [], "b": 1})])
        [other] = await storage.enqueue([a_request("k", payload={"a": [], "b": 2})])
        assert (same.created, same.same_content, other.same_content) == (False, True, False)

    async def test_p2_a_key_of_another_kind_is_refused(self, storage: Storage) -> None:
        """The key stays with the kind that has it."""
        await enqueue(storage, "k")
        before = await everything(storage)
        with pytest.raises(KeyOfAnotherKind, match="kind email holds this idempotency key"):
            await storage.enqueue([a_request("k", kind="post")])
        assert await everything(storage) == before

    async def test_p2_an_ended_action_still_holds_its_key(self, storage: Storage) -> None:
        """A late repeat is answered with what became of the first; its content is still compared, by digest."""
        held = await started(storage, "k")
        await storage.settle(held, DONE)
        [same] = await storage.enqueue([a_request("k")])
        [other] = await storage.enqueue([a_request("k", payload={"notice": "reminder"})])
        assert (same.id, same.created, same.same_content, same.state) == (held.id, False, True, State.DONE)
        assert (other.id, other.same_content) == (held.id, False)

    async def test_p2_a_key_twice_in_one_enqueue_is_one_action(self, storage: Storage) -> None:
        """The second request of a batch finds the first."""
        first, second = await storage.enqueue([a_request("k"), a_request("k")])
        assert (first.id, first.created, second.id, second.created) == (first.id, True, first.id, False)

    async def test_p2_two_programs_that_enqueue_one_key_make_one_action(
        self, storage: Storage, backend: Backend
    ) -> None:
        """Of any number of enqueues at the same time, exactly one creates."""
        other = await backend.open()
        answers = await asyncio.gather(*(one.enqueue([a_request("k")]) for one in (storage, other) for _ in range(10)))
        assert [answer.created for [answer] in answers].count(True) == 1
        assert len({answer.id for [answer] in answers}) == 1

    async def test_a_proposal_waits_to_be_admitted(self, storage: Storage) -> None:
        """It has been admitted at no time yet, and a repeat of it stays a proposal."""
        answer = await propose(storage, "k")
        [again] = await storage.enqueue([a_request("k")])
        assert (answer.state, again.state) == (State.PROPOSED, State.PROPOSED)
        assert (await read(storage, answer.id)).admitted_at is None

    async def test_p3_a_kind_that_requires_approval_is_not_enqueued(self, storage: Storage) -> None:
        """It is refused by the database itself, and may be proposed."""
        await declare(storage, approval=True)
        with pytest.raises(ForbiddenByGuard, match="requires approval"):
            await storage.enqueue([a_request()])
        assert (await propose(storage)).created

    async def test_p3_only_an_instance_level_kind_has_no_workspace(self, storage: Storage) -> None:
        """Any other is refused, and nothing of its batch is stored."""
        await declare(storage, "backup", instance_level=True)
        await enqueue(storage, "b", kind="backup", workspace_id=None)
        before = await everything(storage)
        with pytest.raises(ForbiddenByGuard, match="workspace_id"):
            await storage.enqueue([a_request("a"), a_request("c", workspace_id=None)])
        assert await everything(storage) == before

    async def test_supersede_ends_what_waits_in_the_lane(self, storage: Storage) -> None:
        """Every proposed and admitted action of the lane, of any kind, between attempts too; other lanes stay."""
        between = await started(storage, "between", "lane")
        await retry(storage, between)
        waiting = await enqueue(storage, "post", "lane", kind="post")
        proposal = await propose(storage, "proposal", "lane")
        elsewhere = await enqueue(storage, "elsewhere", "other")
        [answer] = await storage.enqueue([a_request("new", "lane")], supersede=SUPERSEDE)
        assert answer.created
        assert answer.superseded == (between.id, waiting, proposal.id)
        for ended in answer.superseded:
            action = await read(storage, ended)
            assert (action.state, action.stop_reason, action.payload) == (State.CANCELLED, StopReason.SUPERSEDED, None)
        assert [action.id for action in await storage.lane("lane")] == [answer.id]
        assert (await read(storage, answer.id)).is_head
        assert (await read(storage, elsewhere)).state is State.ADMITTED

    async def test_supersede_repeated_with_the_same_key_supersedes_nothing(self, storage: Storage) -> None:
        """A retry of the caller does not end what came after its first call, nor its own action."""
        [first] = await storage.enqueue([a_request("new", "lane")], supersede=SUPERSEDE)
        later = await enqueue(storage, "later", "lane")
        before = await everything(storage)
        [again] = await storage.enqueue([a_request("new", "lane")], supersede=SUPERSEDE)
        assert (again.id, again.created, again.superseded) == (first.id, False, ())
        assert await everything(storage) == before
        assert (await read(storage, later)).state is State.ADMITTED

    async def test_supersede_leaves_what_executes(self, storage: Storage) -> None:
        """By default the new action waits behind the running one."""
        running = await started(storage, "running", "lane")
        waiting = await enqueue(storage, "waiting", "lane")
        [answer] = await storage.enqueue([a_request("new", "lane")], supersede=SUPERSEDE)
        assert answer.superseded == (waiting,)
        assert [action.id for action in await storage.lane("lane")] == [running.id, answer.id]
        assert not (await read(storage, answer.id)).is_head

    async def test_supersede_can_refuse_a_lane_that_runs(self, storage: Storage) -> None:
        """With `if_running` refuse nothing is superseded and nothing stored."""
        await started(storage, "running", "lane")
        await enqueue(storage, "waiting", "lane")
        before = await everything(storage)
        with pytest.raises(LaneBusy, match="of kind email is executing in this lane"):
            await storage.enqueue([a_request("new", "lane")], supersede=Supersede("refuse", SUPERSEDE.decodable))
        assert await everything(storage) == before

    @pytest.mark.parametrize("kind", ["email", "post"])
    async def test_p11_supersede_refuses_a_lane_with_rows_it_cannot_decode(self, storage: Storage, kind: str) -> None:
        """An unknown variant or kind in the lane is not ended by a build that does not know what it is."""
        await enqueue(storage, "known", "lane")
        await enqueue(storage, "unknown", "lane", kind=kind, payload={"notice": "of a later build"})
        before = await everything(storage)
        with pytest.raises(UndecodableInLane, match="cannot be decoded here"):
            await storage.enqueue([a_request("new", "lane")], supersede=Supersede(decodable={"email": KNOWN}))
        assert await everything(storage) == before

    async def test_supersede_needs_a_lane(self, storage: Storage) -> None:
        """An action that is alone in its lane supersedes nothing, and saying so is a mistake."""
        with pytest.raises(InvalidRequest, match="lane_key"):
            await storage.enqueue([a_request("new")], supersede=SUPERSEDE)
        assert await storage.get(key="new") is None

    async def test_p5_what_follows_a_superseded_lane_is_claimed(self, storage: Storage) -> None:
        """The lane goes on with the new action at once."""
        await enqueue(storage, "old", "lane")
        [answer] = await storage.enqueue([a_request("new", "lane")], supersede=SUPERSEDE)
        assert (await claim(storage)).id == answer.id
