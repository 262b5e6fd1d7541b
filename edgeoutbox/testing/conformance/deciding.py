"""Admit, refuse and withdraw."""

import pytest

from edgeoutbox.errors import ActionRunning, DigestMismatch, NoSuchAction, NotPossible
from edgeoutbox.keys import canonical_json, digest
from edgeoutbox.kinds import Delivery
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Decision, Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    KNOWN,
    LEASE,
    MINUTE,
    Topic,
    a_request,
    claim,
    declare,
    enqueue,
    everything,
    milliseconds,
    propose,
    read,
    retry,
    served,
    started,
)

DIGEST = a_request().payload_digest
OTHER_DIGEST = "sha256:" + "0" * 64


class Deciding(Topic):
    """What people decide, and when it is too late to."""

    async def test_a_proposal_is_admitted_with_the_digest_of_its_payload(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """Who decided, when and why is kept, and it can be claimed."""
        await declare(storage, approval=True)
        proposal = await propose(storage)
        milliseconds(clock, MINUTE)
        action = await storage.decide(proposal.id, Decision("admit", "ann", "looks right", DIGEST))
        assert action == await read(storage, proposal.id)
        assert (action.state, action.decided_by, action.decision_note) == (State.ADMITTED, "ann", "looks right")
        assert (action.decided_at, action.admitted_at) == (clock.milliseconds, clock.milliseconds)
        assert (await claim(storage)).id == proposal.id

    @pytest.mark.parametrize("given", [OTHER_DIGEST, None, ""])
    async def test_what_was_approved_is_what_runs(self, storage: Storage, given: str | None) -> None:
        """Without the digest of the stored payload nothing is admitted."""
        proposal = await propose(storage)
        before = await everything(storage)
        with pytest.raises(DigestMismatch, match=f"action {proposal.id} of kind email"):
            await storage.decide(proposal.id, Decision("admit", "ann", None, given))
        assert await everything(storage) == before

    async def test_the_digest_is_computed_and_not_believed(self, storage: Storage, backend: Backend) -> None:
        """A row that carries the digest of something else is not admitted with that digest, nor with its own."""
        await backend.sql(
            "INSERT INTO agent_action (kind, idempotency_key, payload, payload_digest, state) VALUES (?, ?, ?, ?, ?)",
            "email",
            "forged",
            '{"pay":"all"}',
            DIGEST,
            "PROPOSED",
        )
        [proposal] = (await everything(storage))[0]
        for given in (DIGEST, digest(canonical_json({"pay": "all"}))):
            with pytest.raises(DigestMismatch):
                await storage.decide(proposal.id, Decision("admit", "ann", None, given))

    async def test_a_proposal_inserted_by_sql_gets_its_digest_with_its_admission(
        self, storage: Storage, backend: Backend
    ) -> None:
        """Without one of its own, that of its payload is compared and then kept."""
        await backend.sql(
            "INSERT INTO agent_action (kind, idempotency_key, payload, state) VALUES (?, ?, ?, ?)",
            "email",
            "k",
            '{ "notice": "receipt" }',
            "PROPOSED",
        )
        [proposal] = (await everything(storage))[0]
        action = await storage.decide(proposal.id, Decision("admit", "ann", None, DIGEST))
        assert (action.state, action.payload_digest) == (State.ADMITTED, DIGEST)

    async def test_a_payload_that_readers_read_differently_is_not_admitted(
        self, storage: Storage, backend: Backend
    ) -> None:
        """A key twice in an object: nobody can say what was approved."""
        await backend.sql(
            "INSERT INTO agent_action (kind, idempotency_key, payload, state) VALUES (?, ?, ?, ?)",
            "email",
            "k",
            '{"to":"a","to":"b"}',
            "PROPOSED",
        )
        [proposal] = (await everything(storage))[0]
        with pytest.raises(NotPossible, match="names a key twice"):
            await storage.decide(proposal.id, Decision("admit", "ann", None, DIGEST))

    async def test_an_expired_proposal_is_not_admitted(self, storage: Storage, clock: MovableClock) -> None:
        """It says so, and it can still be refused."""
        proposal = await propose(storage, expires_at=clock.milliseconds + 1)
        milliseconds(clock, 1)
        with pytest.raises(NotPossible, match="has expired"):
            await storage.decide(proposal.id, Decision("admit", "ann", None, DIGEST))
        assert (await storage.decide(proposal.id, Decision("refuse", "ann"))).stop_reason is StopReason.REFUSED

    async def test_a_proposal_is_refused(self, storage: Storage, clock: MovableClock) -> None:
        """It ends CANCELLED without its payload, and its lane goes on."""
        proposal = await propose(storage, "k", "lane")
        behind = await enqueue(storage, "behind", "lane")
        action = await storage.decide(proposal.id, Decision("refuse", "ann", "not today"))
        assert (action.state, action.stop_reason, action.payload) == (State.CANCELLED, StopReason.REFUSED, None)
        assert (action.decided_by, action.decided_at, action.decision_note) == ("ann", clock.milliseconds, "not today")
        assert (await claim(storage)).id == behind

    @pytest.mark.parametrize("verdict", ["admit", "refuse"])
    async def test_only_a_proposal_is_admitted_or_refused(self, storage: Storage, verdict: str) -> None:
        """In every other state the answer names the state, and nothing changes."""
        ended = await started(storage, "ended")
        await storage.settle(ended, DONE)
        executing = await started(storage, "executing")
        admitted = await enqueue(storage, "admitted")
        before = await everything(storage)
        decision = Decision("admit" if verdict == "admit" else "refuse", "ann", None, DIGEST)
        for action_id, state in ((ended.id, "DONE"), (executing.id, "EXECUTING"), (admitted, "ADMITTED")):
            with pytest.raises(NotPossible, match=f"action {action_id} of kind email is {state}"):
                await storage.decide(action_id, decision)
        assert await everything(storage) == before

    @pytest.mark.parametrize("start", ["proposed", "admitted", "between attempts"])
    async def test_what_has_not_started_is_withdrawn(self, storage: Storage, start: str) -> None:
        """Proposed, admitted or waiting for its retry; the lane goes on."""
        if start == "proposed":
            action_id = (await propose(storage, "k", "lane")).id
        else:
            action_id = await enqueue(storage, "k", "lane")
            if start == "between attempts":
                await retry(storage, await claim(storage))
        behind = await enqueue(storage, "behind", "lane")
        action = await storage.decide(action_id, Decision("withdraw", "ann", "changed my mind"))
        assert (action.state, action.stop_reason, action.payload) == (State.CANCELLED, StopReason.WITHDRAWN, None)
        assert (action.decided_by, action.decision_note) == ("ann", "changed my mind")
        assert (await claim(storage)).id == behind

    async def test_withdrawing_keeps_who_admitted(self, storage: Storage) -> None:
        """A withdrawal without a name does not erase the name of the decision before it."""
        proposal = await propose(storage)
        await storage.decide(proposal.id, Decision("admit", "ann", "yes", DIGEST))
        action = await storage.decide(proposal.id, Decision("withdraw"))
        assert (action.decided_by, action.decision_note) == ("ann", "yes")

    async def test_what_executes_is_not_withdrawn(self, storage: Storage) -> None:
        """It may be in the provider's hands, and the answer says so."""
        held = await started(storage)
        before = await everything(storage)
        with pytest.raises(ActionRunning, match=f"action {held.id} of kind email is executing"):
            await storage.decide(held.id, Decision("withdraw"))
        assert await everything(storage) == before

    async def test_what_has_ended_is_not_withdrawn(self, storage: Storage) -> None:
        """The answer says how it ended."""
        held = await started(storage)
        await storage.settle(held, DONE)
        with pytest.raises(NotPossible, match=r"has ended DONE \(CONFIRMED\)"):
            await storage.decide(held.id, Decision("withdraw"))

    @pytest.mark.parametrize("verdict", ["admit", "refuse", "withdraw", "withdraw_lost"])
    async def test_nothing_is_decided_about_what_is_not_there(self, storage: Storage, verdict: str) -> None:
        """An unknown id raises, whatever the verdict."""
        decision = Decision(verdict)  # type: ignore[arg-type]  # one of the four literals, by parameter
        with pytest.raises(NoSuchAction, match="no action has the id 999"):
            await storage.decide(999, decision)

    @pytest.mark.parametrize(
        ("fenced", "state", "reason"),
        [
            (False, State.CANCELLED, StopReason.WITHDRAWN),
            (True, State.UNCERTAIN, StopReason.LEASE_LOST_AFTER_WRITE),
        ],
    )
    async def test_a_lost_action_that_nobody_serves_is_withdrawn(
        self, storage: Storage, clock: MovableClock, fenced: bool, state: State, reason: StopReason
    ) -> None:
        """When a write may exist it ends UNCERTAIN, else CANCELLED; its lane goes on."""
        await declare(storage, delivery=Delivery.READS_BACK)
        held = await started(storage, "k", "lane", fenced=fenced)
        behind = await enqueue(storage, "behind", "lane")
        milliseconds(clock, LEASE)
        action = await storage.decide(held.id, Decision("withdraw_lost", "ann"))
        assert (action.state, action.stop_reason, action.payload) == (state, reason, None)
        assert (action.decided_by, action.lease_owner) == ("ann", None)
        assert (await claim(storage)).id == behind

    async def test_a_live_lease_is_not_lost(self, storage: Storage, clock: MovableClock) -> None:
        """To the millisecond."""
        held = await started(storage)
        milliseconds(clock, LEASE - 1)
        before = await everything(storage)
        with pytest.raises(ActionRunning, match="still has its lease"):
            await storage.decide(held.id, Decision("withdraw_lost"))
        assert await everything(storage) == before

    async def test_what_an_executor_serves_is_not_lost(self, storage: Storage, clock: MovableClock) -> None:
        """It will take it up itself; one that knows other variants, or has left, does not count."""
        held = await started(storage)
        milliseconds(clock, LEASE)
        await storage.heartbeat("two", "1.0", {"email": KNOWN})
        with pytest.raises(ActionRunning, match="is served by a running executor"):
            await storage.decide(held.id, Decision("withdraw_lost"))
        unknown = await enqueue(storage, "unknown", payload={"notice": "of a later build"})
        [lost] = [one for one in await storage.claim([served()], 9, "three") if one.id == unknown]
        milliseconds(clock, LEASE)
        await storage.heartbeat("two", "1.0", {"email": KNOWN})
        assert (await storage.decide(lost.id, Decision("withdraw_lost"))).stop_reason is StopReason.WITHDRAWN
        await storage.leave("two")
        assert (await storage.decide(held.id, Decision("withdraw_lost"))).stop_reason is StopReason.WITHDRAWN

    async def test_only_what_executes_is_withdrawn_as_lost(self, storage: Storage) -> None:
        """An action that waits is withdrawn without further ado."""
        action_id = await enqueue(storage)
        with pytest.raises(NotPossible, match="is ADMITTED, not EXECUTING"):
            await storage.decide(action_id, Decision("withdraw_lost"))

    async def test_a_run_is_withdrawn_at_once(self, storage: Storage) -> None:
        """Everything of it that has not started, latest first; what executes and other runs stay."""
        running = await enqueue(storage, "running", run_id="run")
        await claim(storage)
        first = await enqueue(storage, "first", "lane", run_id="run")
        other = await enqueue(storage, "other", "lane", run_id="another run")
        last = (await propose(storage, "last", "lane", run_id="run")).id
        withdrawn = await storage.withdraw_run("run", Decision("withdraw", "ann"))
        assert [action.id for action in withdrawn] == [last, first]
        assert {action.stop_reason for action in withdrawn} == {StopReason.WITHDRAWN}
        assert (await read(storage, running)).state is State.EXECUTING
        assert (await read(storage, other)).is_head
        assert await storage.withdraw_run("run", Decision("withdraw")) == []
