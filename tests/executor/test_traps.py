"""The traps of the semantics, each by its name."""

import asyncio
import logging
from typing import Any

import pytest

from edgeoutbox import (
    ActionRunning,
    Attempt,
    Defer,
    Done,
    FenceRefused,
    NotClaimable,
    NotPossible,
    Reread,
    Result,
    Retry,
    State,
)
from edgeoutbox.storage.protocol import Settlement
from edgeoutbox.testing import ScriptedAdapter, Step, drain, until
from tests.executor.world import World, ended, last_attempt, outcome, request, the


async def attempts_made(executor: Any, count: int) -> None:
    """Wait until so many attempts were settled."""
    await until(lambda: executor.metrics.total("action.attempts") >= count)


@pytest.mark.parametrize(
    "second",
    [
        RuntimeError("boom"),
        TimeoutError(),
        Defer("429", wait=60.0),
        Defer("429", wait=60.0, scope="kind"),
        Defer("down", scope="kind"),
    ],
    ids=["exception", "timeout", "429", "429-kind", "outage"],
)
async def test_an_inherited_fence_survives_the_next_attempt(world: World, second: Any) -> None:
    """An exception or a rate limit in the attempt that reads back proves nothing about the earlier write."""
    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("a", Reread("no answer", wait=10.0), Step(second, fence=False), Step(Done(read_back=True), fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await attempts_made(executor, 1)
    first = (await the(outbox, asked.id)).write_started_at
    assert first is not None
    await world.passes(10.1)
    await attempts_made(executor, 2)
    waiting = await the(outbox, asked.id)
    assert (waiting.state, waiting.write_started_at, waiting.lease_owner) == (State.EXECUTING, first, None)
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("DONE", "READ_BACK")
    assert [call.inherited for call in adapter.calls] == [False, True, True]
    assert adapter.writes == ["a"]


async def test_only_an_explicit_retry_clears_an_inherited_fence(world: World) -> None:
    """The proof that nothing of any earlier write exists gives the action back unfenced, to be written anew."""
    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("a", Reread("no answer", wait=1.0), Step(Retry("not there", wait=1.0), fence=False), Done())
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await attempts_made(executor, 1)
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert [call.inherited for call in adapter.calls] == [False, True, False]


async def test_a_deferral_under_an_inherited_fence_does_not_count(world: World) -> None:
    """It acts as a Reread that gives its attempt back, so that a long outage spends none."""
    adapter = ScriptedAdapter(delivery="reads_back", max_attempts=2)
    deferrals = [Step(Defer("429", wait=1.0), fence=False)] * 5
    adapter.on("a", Reread("no answer", wait=1.0), *deferrals, Step(Done(read_back=True), fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await attempts_made(executor, 1)
    await drain(executor, world.clock)
    action = await the(outbox, asked.id)
    assert (outcome(action), action.attempt) == (("DONE", "READ_BACK"), 2)


async def test_after_reread_the_old_coroutine_is_refused(world: World) -> None:
    """The coroutine that answered Reread can neither fence nor settle the action any more."""
    old: list[Attempt[Any]] = []

    async def answer(attempt: Attempt[Any]) -> Result:
        old.append(attempt)
        return Reread("no answer", wait=10.0)

    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("a", answer, Step(Done(read_back=True), fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await attempts_made(executor, 1)
    with pytest.raises(FenceRefused):
        await old[0].begin_write()
    claim = old[0].claim  # type: ignore[attr-defined]
    assert await outbox.storage.settle(claim, Settlement(State.ADMITTED, "Retry", clears_fence=True)) is False
    waiting = await the(outbox, asked.id)
    assert (waiting.state, waiting.write_started_at is not None) == (State.EXECUTING, True)
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("DONE", "READ_BACK")


async def test_an_erased_lane_head_passes_the_lane_on(world: World) -> None:
    """Erasing the head of a lane, waiting or executing, lets the next action of the lane run."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("head", Step(gate=gate))
    outbox, _ = await world.running(adapter)
    await outbox.enqueue(request("head", lane_key="lane", subject_account_id="p1"))
    await adapter.wait_for_writes("head")
    await outbox.enqueue(request("second", lane_key="lane", subject_account_id="p1"))
    third = await outbox.enqueue(request("third", lane_key="lane"))
    assert await outbox.erase("p1") == 2
    assert outcome(await ended(outbox, third.id)) == ("DONE", "CONFIRMED")
    gate.set()


async def test_a_proposal_that_expires_as_lane_head_lets_the_lane_go_on(world: World) -> None:
    """Nobody decided in time: the proposal is CANCELLED EXPIRED, and what waited behind it runs."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    head = await outbox.propose(request("head", lane_key="lane", expires_at=world.clock.milliseconds + 60_000))
    behind = await outbox.enqueue(request("behind", lane_key="lane"))
    await executor.until_idle()
    assert adapter.calls == []
    await world.passes(60.1)
    assert outcome(await ended(outbox, behind.id)) == ("DONE", "CONFIRMED")
    assert outcome(await the(outbox, head.id)) == ("CANCELLED", "EXPIRED")
    assert adapter.writes == ["behind"]


async def test_expiry_while_executing_unfenced(world: World) -> None:
    """An action that expires before its fence is not written: begin_write is refused and it ends EXPIRED."""
    gate = asyncio.Event()

    async def late(attempt: Attempt[Any]) -> Result:
        await gate.wait()
        await attempt.begin_write()
        return Done()

    adapter = ScriptedAdapter()
    adapter.on("a", Step(late, fence=False))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request(expires_at=world.clock.milliseconds + 10_000))
    await adapter.wait_for_calls("a")
    await world.passes(10.0)
    gate.set()
    assert outcome(await ended(outbox, asked.id)) == ("CANCELLED", "EXPIRED")


async def test_expiry_while_executing_fenced(world: World) -> None:
    """An action that expires behind its fence has been written: the provider's answer is what counts."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("a", Step(gate=gate))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request(expires_at=world.clock.milliseconds + 10_000))
    await adapter.wait_for_writes("a")
    await world.passes(11.0)
    gate.set()
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")


async def test_expiry_under_an_inherited_fence_only_reads_back(world: World) -> None:
    """After expiry a fenced action may still be read back, but its adapter gets no fence for another write."""
    refused: list[bool] = []

    async def read_then_write(attempt: Attempt[Any]) -> Result:
        try:
            await attempt.begin_write()
        except FenceRefused:
            refused.append(True)
        return Done(read_back=True)

    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("a", Reread("no answer", wait=20.0), Step(read_then_write, fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(expires_at=world.clock.milliseconds + 10_000))
    await attempts_made(executor, 1)
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("DONE", "READ_BACK")
    assert refused == [True]


async def test_a_refused_fence_by_expiry_under_an_inherited_one_ends_uncertain_at_the_last(world: World) -> None:
    """When FenceRefused rises out of the last read-back attempt, nobody can know what the first write did."""
    adapter = ScriptedAdapter(delivery="reads_back", max_attempts=2)
    adapter.on("a", Reread("no answer", wait=20.0), Done())
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(expires_at=world.clock.milliseconds + 10_000))
    await attempts_made(executor, 1)
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("UNCERTAIN", "READBACK_EXHAUSTED")
    assert adapter.writes == ["a"]


async def test_expiry_between_attempts(world: World) -> None:
    """Waiting for its retry, an action expires like any other that waits: nothing of it exists."""
    adapter = ScriptedAdapter()
    adapter.on("a", Retry("421", wait=100.0))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(expires_at=world.clock.milliseconds + 10_000))
    await attempts_made(executor, 1)
    await world.passes(10.1)
    assert outcome(await ended(outbox, asked.id)) == ("CANCELLED", "EXPIRED")
    assert len(adapter.calls) == 1


@pytest.mark.parametrize("lease", [5.0, 59.999, 60.0])
async def test_a_lease_shorter_than_its_window_never_stalls_the_lane(world: World, lease: float) -> None:
    """No fence fits into such a lease: the action runs out of attempts, and the next of its lane gets its turn."""
    adapter = ScriptedAdapter(lease=lease, write_window=60.0, max_attempts=2)
    outbox, executor = await world.running(adapter)
    first = await outbox.enqueue(request("first", lane_key="lane"))
    second = await outbox.enqueue(request("second", lane_key="lane"))
    await attempts_made(executor, 1)
    await drain(executor, world.clock)
    assert outcome(await the(outbox, first.id)) == ("FAILED", "ATTEMPTS_EXHAUSTED")
    assert outcome(await the(outbox, second.id)) == ("FAILED", "ATTEMPTS_EXHAUSTED")
    assert adapter.writes == []


async def test_an_attempt_leaves_the_window_of_its_lease_free(world: World) -> None:
    """An adapter that never comes to its fence is ended while the lease could still hold a write."""
    adapter = ScriptedAdapter(lease=100.0, write_window=40.0)
    adapter.on("a", Step(hangs=True, fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_calls("a")
    await world.passes(60.1)
    await attempts_made(executor, 1)
    assert (await the(outbox, asked.id)).state is State.ADMITTED
    assert (await last_attempt(outbox, asked.id)).result == "Timeout"


@pytest.mark.parametrize("slept", [60.1, 3600.0])
async def test_a_machine_that_slept_between_fence_and_call(world: World, slept: float) -> None:
    """The call must not start: this attempt's fence is taken back and the action is tried again."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    begin = outbox.storage.begin_write
    naps = [slept]

    async def asleep(*args: Any) -> Any:
        answer = await begin(*args)
        if naps:
            await world.passes(naps.pop())
        return answer

    outbox.storage.begin_write = asleep  # type: ignore[method-assign, assignment]
    asked = await outbox.enqueue(request())
    await attempts_made(executor, 1)
    waiting = await the(outbox, asked.id)
    assert (waiting.state, waiting.write_started_at, adapter.writes) == (State.ADMITTED, None, [])
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert adapter.writes == ["a"]


async def test_a_machine_that_sleeps_during_the_call_ends_the_attempt(world: World) -> None:
    """When the machine wakes after the window, the call is cancelled and the action is not written again."""
    adapter = ScriptedAdapter()
    adapter.on("a", Step(hangs=True))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    await world.passes(3600.0)
    assert outcome(await ended(outbox, asked.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")
    await drain(executor, world.clock)
    assert len(adapter.calls) == 1


async def test_a_supersede_repeated_with_the_same_key_supersedes_nothing(world: World) -> None:
    """The repeat of a superseding enqueue finds its own action and leaves what came after it alone."""
    adapter = ScriptedAdapter()
    outbox = await world.outbox(adapter)
    old = await outbox.enqueue(request("old", lane_key="lane"))
    new = await outbox.enqueue(request("new", lane_key="lane"), supersede=True)
    newer = await outbox.enqueue(request("newer", lane_key="lane"))
    again = await outbox.enqueue(request("new", lane_key="lane"), supersede=True)
    assert (new.superseded, again.superseded, again.id, again.created) == ((old.id,), (), new.id, False)
    assert outcome(await the(outbox, old.id)) == ("CANCELLED", "SUPERSEDED")
    assert (await the(outbox, newer.id)).state is State.ADMITTED
    await world.executor(outbox)
    await ended(outbox, newer.id)
    assert adapter.writes == ["new", "newer"]


async def test_supersede_between_attempts_and_beside_an_executing_one(world: World) -> None:
    """What waits for its retry is superseded; what is executing is not, and its successor waits for it."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("runs", Step(gate=gate))
    adapter.on("retries", Retry("421", wait=1000.0))
    outbox, executor = await world.running(adapter)
    retries = await outbox.enqueue(request("retries", lane_key="one"))
    runs = await outbox.enqueue(request("runs", lane_key="two"))
    await adapter.wait_for_writes("runs")
    await attempts_made(executor, 1)
    first = await outbox.enqueue(request("first", lane_key="one"), supersede=True)
    second = await outbox.enqueue(request("second", lane_key="two"), supersede=True)
    assert (first.superseded, second.superseded) == ((retries.id,), ())
    await ended(outbox, first.id)
    assert (await the(outbox, second.id)).state is State.ADMITTED
    gate.set()
    await ended(outbox, second.id)
    assert outcome(await the(outbox, runs.id)) == ("DONE", "CONFIRMED")


async def test_withdraw_and_forget_of_an_executing_action(world: World) -> None:
    """Withdrawing an executing action is refused; forgetting it waits for its end and then leaves nothing."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("a", Step(gate=gate))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    with pytest.raises(ActionRunning, match=f"action {asked.id} of kind scripted"):
        await outbox.withdraw(asked.id)
    with pytest.raises(ActionRunning):
        await outbox.withdraw(asked.id, lost=True)
    assert await outbox.forget("a") is True
    assert (await the(outbox, asked.id)).state is State.EXECUTING
    gate.set()
    await executor.until_idle()
    assert await outbox.get(asked.id) is None
    assert world.sql("SELECT COUNT(*) FROM agent_action_attempt") == [(0,)]
    assert adapter.writes == ["a"]
    assert await outbox.forget("a") is False


async def test_withdraw_between_attempts(world: World) -> None:
    """An action that waits for its retry has not started again: it can be withdrawn, once."""
    adapter = ScriptedAdapter()
    adapter.on("a", Retry("421", wait=1000.0))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await attempts_made(executor, 1)
    assert outcome(await outbox.withdraw(asked.id, by="ops")) == ("CANCELLED", "WITHDRAWN")
    with pytest.raises(NotPossible):
        await outbox.withdraw(asked.id)
    await drain(executor, world.clock)
    assert len(adapter.calls) == 1


async def test_two_processes_that_declare_a_kind_differently(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The stricter guarantee stays for both, the looser one is told, and its executor acts as the database says."""
    strict, loose = ScriptedAdapter(), ScriptedAdapter(delivery="repeatable")
    loose.on("a", RuntimeError("boom"))
    await world.outbox(strict)
    outbox, executor = await world.running(loose)
    assert any(record.__dict__.get("event") == "kind.stricter" for record in caplog.records)
    asked = await outbox.enqueue(request())
    assert outcome(await ended(outbox, asked.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")
    await drain(executor, world.clock)
    assert loose.writes == ["a"]


async def test_a_stricter_declaration_reaches_an_executor_that_runs(world: World) -> None:
    """An executor that declared the kind looser, before, does not write again what another now calls at most once."""
    loose = ScriptedAdapter(delivery="repeatable")
    loose.on("a", Reread("no answer", wait=5.0))
    outbox, executor = await world.running(loose)
    asked = await outbox.enqueue(request())
    await attempts_made(executor, 1)
    await world.outbox(ScriptedAdapter())
    await world.passes(5.1)
    assert outcome(await ended(outbox, asked.id)) == ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")
    await drain(executor, world.clock)
    assert loose.writes == ["a"]


async def test_a_row_inserted_by_sql_without_lane_workspace_or_digest(world: World) -> None:
    """The smallest INSERT is an action like any other: defaults and the claim fill it, and it is carried out."""
    adapter = ScriptedAdapter()
    outbox, _ = await world.running(adapter)
    world.sql(
        "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('scripted', 'a', '{\"b\": 1, \"a\": [2]}')"
    )
    await adapter.wait_for_writes("a")
    found = await outbox.get(key="a")
    assert found is not None
    action = await ended(outbox, found.id)
    assert (outcome(action), action.workspace_id, action.lane_key) == (("DONE", "CONFIRMED"), "default", None)
    twin = request("b", payload={"a": [2], "b": 1})
    assert action.payload_digest == twin.payload_digest


async def test_an_adapter_that_ignores_its_cancellation(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Past its deadline the attempt is settled without the adapter, and the lane goes on."""
    release = asyncio.Event()

    async def deaf(_: Attempt[Any]) -> Result:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return Done()

    adapter = ScriptedAdapter()
    adapter.on("a", deaf)
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request(lane_key="lane"))
    behind = await outbox.enqueue(request("behind", lane_key="lane"))
    await adapter.wait_for_writes("a")
    await world.passes(60.0 + 6.0)
    assert outcome(await ended(outbox, asked.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")
    assert outcome(await ended(outbox, behind.id)) == ("DONE", "CONFIRMED")
    [line] = [record for record in caplog.records if record.__dict__.get("event") == "adapter.overran"]
    assert line.levelno == logging.ERROR
    release.set()


@pytest.mark.parametrize("locked", [False, True])
async def test_a_call_shielded_from_its_cancellation_is_not_started_after_the_settlement(
    world: World, locked: bool
) -> None:
    """What the executor settled as never written must not be written by a coroutine that outlives its attempt."""
    writes: list[str] = []
    outliving: list[asyncio.Task[None]] = []
    stored, go_on = asyncio.Event(), asyncio.Event()

    async def shielded(attempt: Attempt[Any]) -> Result:
        async def send() -> None:
            if locked:
                await go_on.wait()
            await attempt.begin_write()
            writes.append("first")

        outliving.append(asyncio.ensure_future(send()))
        await asyncio.shield(outliving[0])
        return Done()

    adapter = ScriptedAdapter()
    adapter.on("a", Step(shielded, fence=False), Done())
    outbox, executor = await world.running(adapter, grace=0.0)
    begin, settle = outbox.storage.begin_write, outbox.storage.settle

    async def slow_begin(*args: Any) -> Any:
        answer = await begin(*args)
        if not locked and not stored.is_set():
            stored.set()
            await go_on.wait()
        return answer

    async def slow_settle(*args: Any) -> Any:
        if locked and not go_on.is_set():
            go_on.set()
            await asyncio.wait(outliving)
        return await settle(*args)

    outbox.storage.begin_write = slow_begin  # type: ignore[method-assign, assignment]
    outbox.storage.settle = slow_settle  # type: ignore[method-assign, assignment]
    asked = await outbox.enqueue(request())
    await adapter.wait_for_calls("a")
    if not locked:
        await stored.wait()
    await executor.stop()
    go_on.set()
    await asyncio.wait(outliving)
    await drain(await world.executor(outbox), world.clock)
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert [*writes, *adapter.writes] == ["a"]
    assert isinstance(outliving[0].exception(), FenceRefused)


async def test_run_now_whose_caller_went_away_still_runs(world: World) -> None:
    """Cancelling the caller of run_now does not leave an action behind that is claimed and never run."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(due_at=world.clock.milliseconds + 3_600_000))
    claim_one = outbox.storage.claim_one
    claimed = asyncio.Event()

    async def slow(*args: Any) -> Any:
        claim = await claim_one(*args)
        claimed.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return claim

    outbox.storage.claim_one = slow  # type: ignore[method-assign, assignment]
    asking = asyncio.ensure_future(executor.run_now(asked.id))
    await claimed.wait()
    asking.cancel()
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")


async def test_run_now_ignores_due_at_and_nothing_else(world: World) -> None:
    """It runs what is due later; a proposal, what waits in its lane, a paused kind and an ended action it refuses."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    later = world.clock.milliseconds + 3_600_000
    first = await outbox.enqueue(request("first", lane_key="lane", due_at=later))
    second = await outbox.enqueue(request("second", lane_key="lane", due_at=later))
    proposal = await outbox.propose(request("proposal"))
    with pytest.raises(NotClaimable, match=f"behind action {first.id}"):
        await executor.run_now(second.id)
    with pytest.raises(NotClaimable, match="admit or refuse"):
        await executor.run_now(proposal.id)
    await outbox.pause("scripted", by="ops")
    with pytest.raises(NotClaimable, match="paused by ops"):
        await executor.run_now(first.id)
    await outbox.resume("scripted")
    assert outcome(await executor.run_now(first.id)) == ("DONE", "CONFIRMED")
    with pytest.raises(NotClaimable, match="ended DONE"):
        await executor.run_now(first.id)
    assert adapter.writes == ["first"]


async def test_run_now_returns_an_action_that_waits_again(world: World) -> None:
    """It returns after its attempt, whatever that came to."""
    adapter = ScriptedAdapter()
    adapter.on("a", Retry("421", wait=50.0))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(due_at=world.clock.milliseconds + 3_600_000))
    action = await executor.run_now(asked.id)
    assert (action.state, action.attempt, action.last_error) == (State.ADMITTED, 1, "421")
