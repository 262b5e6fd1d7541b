"""Why: one sentence per situation, and each is true."""

import asyncio

import pytest

from edgeoutbox import ActionRequest, Defer, NoSuchAction, Reread, Retry, Uncertain, key_suffix
from edgeoutbox.states import MEANINGS, StopReason
from edgeoutbox.testing import ScriptedAdapter, Step, until
from edgeoutbox.waiting import in_utc
from tests.executor.world import World, ended, request

THERE = """
INSERT INTO agent_action_executor (owner, version, kinds, started_at, seen_at)
VALUES (?, '1', '{"scripted": {"parts": []}}', 0, ?)
"""
"""An executor that was seen at a time."""


async def test_nobody_serves_the_kind(world: World) -> None:
    """Without an executor the action names its own cause first, and then that none serves its kind."""
    outbox = await world.outbox(ScriptedAdapter())
    asked = await outbox.enqueue(request(due_at=world.clock.milliseconds + 5000))
    due = await outbox.enqueue(request("due"))
    nobody = "no running executor serves its kind."
    assert await outbox.why(due.id) == f"Action {due.id} (scripted) waits because {nobody}"
    why = await outbox.why(asked.id)
    assert "(scripted) is due at " in why
    assert why.endswith(f"; and {nobody}")
    await outbox.pause("scripted", by="anna")
    assert (await outbox.why(due.id)).endswith(f"waits because its kind was paused by anna; and {nobody}")
    await outbox.resume("scripted")
    await world.executor(outbox)
    why = await outbox.why(asked.id)
    assert "is due at" in why
    assert nobody not in why


async def test_an_executor_that_left_or_fell_silent_serves_nobody(world: World) -> None:
    """An executor that stopped says so; one that was killed is not believed for longer than a minute."""
    outbox = await world.outbox(ScriptedAdapter())
    asked = await outbox.enqueue(request(due_at=world.clock.milliseconds + 10**8))
    executor = await world.executor(outbox)
    assert "no running executor" not in await outbox.why(asked.id)
    await executor.stop()
    assert "no running executor serves its kind" in await outbox.why(asked.id)
    world.sql(THERE, "killed", world.clock.milliseconds)
    assert "no running executor" not in await outbox.why(asked.id)
    await world.passes(61.0)
    assert "no running executor serves its kind" in await outbox.why(asked.id)


async def test_nobody_knows_the_variant(world: World) -> None:
    """An executor of the kind that cannot decode the row is no help, and the sentence says which."""
    adapter = ScriptedAdapter(variants=key_suffix("send"))
    outbox, _ = await world.running(adapter)
    producer = await world.outbox()
    asked = await producer.enqueue(ActionRequest(kind="scripted", idempotency_key="a:retract", payload={}))
    assert "no running executor knows its variant; check what its payload names" in await outbox.why(asked.id)


async def test_waiting_for_its_turn_its_approval_its_time(world: World) -> None:
    """Behind another action, for a decision, and for a later moment."""
    outbox, _ = await world.running(ScriptedAdapter())
    head = await outbox.propose(request("head", lane_key="lane"))
    behind = await outbox.enqueue(request("behind", lane_key="lane"))
    later = await outbox.enqueue(request("later", due_at=world.clock.milliseconds + 60_000))
    assert await outbox.why(head.id) == f"Action {head.id} (scripted) waits for somebody to admit or refuse it."
    assert await outbox.why(behind.id) == (
        f"Action {behind.id} (scripted) waits in its lane behind action {head.id} (scripted), "
        "which waits for somebody to admit or refuse it."
    )
    assert f"Action {later.id} (scripted) is due at " in await outbox.why(later.id)


async def test_the_lane_is_followed_to_the_cause(world: World) -> None:
    """What waits behind another action says what holds that one back: its kind's pause or rest, its lost executor."""
    adapter = ScriptedAdapter()
    adapter.on("head", Step(Defer("no STARTTLS", scope="kind"), fence=False))
    outbox, executor = await world.running(adapter)
    head = await outbox.enqueue(request("head", lane_key="lane"))
    behind = await outbox.enqueue(request("behind", lane_key="lane"))
    start = f"Action {behind.id} (scripted) waits in its lane behind action {head.id} (scripted), which "
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    why = await outbox.why(behind.id)
    assert why.startswith(f"{start}waits because its kind cools down until ")
    assert why.endswith(": no STARTTLS.")
    await outbox.pause("scripted", by="anna")
    with pytest.raises(TimeoutError, match=r"which waits because its kind was paused by anna\."):
        await outbox.wait(behind.id, timeout=0.01)
    await executor.stop()
    held = await outbox.enqueue(request("held", lane_key="other"))
    behind = await outbox.enqueue(request("behind it", lane_key="other"))
    world.taken("dead", 1000, "idempotency_key = 'held'")
    await world.passes(1.1)
    assert f"behind action {held.id} (scripted), which lost its executor at " in await outbox.why(behind.id)


async def test_waiting_to_be_tried_again(world: World) -> None:
    """After a retry it names the attempt; after a deferral, which counted as none, it names none; both say why."""
    adapter = ScriptedAdapter()
    adapter.on("retried", Retry("421", wait=60.0))
    adapter.on("deferred", Step(Defer("429", wait=60.0), fence=False))
    outbox, executor = await world.running(adapter)
    retried = await outbox.enqueue(request("retried"))
    deferred = await outbox.enqueue(request("deferred"))
    await until(lambda: executor.metrics.total("action.attempts") == 2)
    assert (await outbox.why(retried.id)).endswith(" to be tried again after attempt 1: 421.")
    assert (await outbox.why(deferred.id)).endswith(" to be tried again: 429.")


async def test_executing_and_reading_back(world: World) -> None:
    """While it runs it names attempt and lease; after a Reread it says that it may exist."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("runs", Step(gate=gate))
    adapter.on("reads", Reread("no answer", wait=60.0))
    outbox, executor = await world.running(adapter)
    runs = await outbox.enqueue(request("runs"))
    reads = await outbox.enqueue(request("reads"))
    await adapter.wait_for_writes("runs")
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    assert "is executing: attempt 1, whose lease ends at " in await outbox.why(runs.id)
    why = await outbox.why(reads.id)
    assert "may exist at the provider and waits until " in why
    assert why.endswith(" to be read back: no answer.")
    gate.set()
    await ended(outbox, runs.id)


async def test_given_up_to_be_read_back(world: World) -> None:
    """After an orderly stop nobody was lost: it waits to be read back, by an executor that is there or not."""
    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("a", Reread("no answer", wait=60.0))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    await executor.stop()
    nobody = "no running executor serves its kind"
    assert (await outbox.why(asked.id)).endswith(f" to be read back: no answer; and {nobody}.")
    await world.passes(61.0)
    what = f"Action {asked.id} (scripted) may exist at the provider and waits to be read back, and "
    assert await outbox.why(asked.id) == f"{what}{nobody}; start one that does."
    world.sql(THERE, "there", world.clock.milliseconds)
    assert await outbox.why(asked.id) == f"{what}the next free executor of its kind takes it up."
    await outbox.pause("scripted", by="anna")
    assert await outbox.why(asked.id) == f"{what}waits because its kind was paused by anna."


async def test_executing_by_an_executor_that_fell_silent(world: World) -> None:
    """While its lease lasts, a killed executor still holds the action, and the sentence says when it was seen."""
    outbox = await world.outbox(ScriptedAdapter())
    asked = await outbox.enqueue(request())
    world.taken("killed", 120_000)
    said = await outbox.why(asked.id)
    assert "whose lease ends at " in said
    assert "seen" not in said
    world.sql(THERE, "killed", world.clock.milliseconds)
    seen = in_utc(world.clock.milliseconds)
    assert await outbox.why(asked.id) == said
    await world.passes(61.0)
    assert await outbox.why(asked.id) == f"{said[:-1]}; its executor was last seen at {seen}."


async def lose(world: World, *, fenced: bool) -> int:
    """An action whose executor died, and whose lease has ended."""
    producer = await world.outbox(ScriptedAdapter())
    asked = await producer.enqueue(request())
    world.taken("dead", 120_000)
    if fenced:
        world.sql("UPDATE agent_action SET write_started_at = ?", world.clock.milliseconds)
    await world.passes(121.0)
    return asked.id


@pytest.mark.parametrize("fenced", [True, False])
async def test_lost_and_served_by_nobody(world: World, fenced: bool) -> None:
    """It says that the executor was lost and what a person can do, and that is possible."""
    action_id = await lose(world, fenced=fenced)
    outbox = await world.outbox()
    why = await outbox.why(action_id)
    assert "lost its executor" in why
    assert "withdraw it as lost" in why
    assert (await outbox.withdraw(action_id, lost=True)).ended


@pytest.mark.parametrize("weather", ["paused", "cooling", "fine"])
@pytest.mark.parametrize("fenced", [True, False])
async def test_lost_and_served(world: World, fenced: bool, weather: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost and fenced, an at-most-once action will end UNCERTAIN whatever the weather; unfenced, it waits for it."""
    monkeypatch.setattr("edgeoutbox.executor.upkeep.TICK", 3600.0)
    action_id = await lose(world, fenced=fenced)
    outbox = await world.outbox(ScriptedAdapter())
    if weather == "paused":
        await outbox.pause("scripted", by="ops")
    elif weather == "cooling":
        await outbox.storage.cool_down("scripted", "429", 60_000)
    world.sql(THERE, "there", world.clock.milliseconds)
    why = await outbox.why(action_id)
    if fenced:
        assert "UNCERTAIN" in why
        assert "paused" not in why
        assert "cools" not in why
    else:
        assert {"paused": "paused by ops", "cooling": "cools down", "fine": "next free executor"}[weather] in why


async def test_ended_and_expired(world: World) -> None:
    """An ended action names state and reason; an expired one says that it will be cancelled."""
    adapter = ScriptedAdapter()
    adapter.on("a", Uncertain("no answer"))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await ended(outbox, asked.id)
    meaning = MEANINGS[StopReason.NO_CONFIRMATION]
    why = await outbox.why(asked.id)
    assert why == f"Action {asked.id} (scripted) ended UNCERTAIN: NO_CONFIRMATION (no answer); {meaning}."
    await executor.stop()
    soon = await outbox.enqueue(request("b", expires_at=world.clock.milliseconds + 1000))
    await world.passes(1.1)
    why = await outbox.why(soon.id)
    assert "expired at" in why
    assert why.endswith("by an executor of its kind; but no running executor serves its kind.")


async def test_no_such_action(world: World) -> None:
    """An id that nothing has raises, naming it."""
    outbox = await world.outbox()
    with pytest.raises(NoSuchAction, match="no action has the id 77"):
        await outbox.why(77)


async def test_wait(world: World) -> None:
    """It returns the ended action; one that does not end raises TimeoutError, an erased one NoSuchAction."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("a", Step(gate=gate))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request(subject_account_id="p1"))
    with pytest.raises(TimeoutError):
        await outbox.wait(asked.id, timeout=0.05)
    waiting = asyncio.ensure_future(outbox.wait(asked.id, timeout=5.0))
    await adapter.wait_for_writes("a")
    await outbox.erase("p1")
    with pytest.raises(NoSuchAction):
        await waiting
    gate.set()


async def test_wait_sees_an_end_by_another_program(world: World) -> None:
    """It wakes for the commit of somebody else."""
    outbox = await world.outbox(ScriptedAdapter())
    asked = await outbox.enqueue(request())
    waiting = asyncio.ensure_future(outbox.wait(asked.id, timeout=5.0))
    world.sql("UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL")
    assert (await waiting).state == "CANCELLED"


async def test_backlog(world: World) -> None:
    """It counts by kind and state, says who is served, and what cools or is paused."""
    adapter = ScriptedAdapter()
    adapter.on("u", Uncertain("no answer"))
    outbox, _ = await world.running(adapter)
    await ended(outbox, (await outbox.enqueue(request("u"))).id)
    await ended(outbox, (await outbox.enqueue(request("d"))).id)
    await outbox.propose(request("p"))
    await outbox.enqueue(request("later", due_at=world.clock.milliseconds + 10**8))
    await outbox.enqueue(ActionRequest(kind="nobodys", idempotency_key="n", payload={}))
    await outbox.pause("scripted", by="ops")
    nobodys, scripted = await outbox.backlog()
    assert (nobodys.kind, nobodys.served, nobodys.admitted) == ("nobodys", False, 1)
    assert nobodys.oldest_due_at == world.clock.milliseconds
    assert (scripted.served, scripted.proposed, scripted.admitted, scripted.executing) == (True, 1, 1, 0)
    assert (scripted.uncertain, scripted.failed, scripted.oldest_due_at, scripted.paused_by) == (1, 0, None, "ops")
