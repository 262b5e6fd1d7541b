"""Clocks that are set, machines that sleep, and leases among several executors."""

import asyncio
from typing import Any

import pytest

from edgeoutbox import Attempt, Done, Executor, Result, State
from edgeoutbox.executor.drift import Drift
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.testing import MovableClock, ScriptedAdapter, Step, drain, until
from tests.executor.world import World, ended, outcome, request, the


def lease_left(world: World, action_id: int) -> float:
    """Seconds until the lease of an action ends, by the database's clock."""
    [(ends,)] = world.sql("SELECT lease_expires_at FROM agent_action WHERE id = ?", action_id)
    return (int(ends) - world.clock.milliseconds) / 1000


@pytest.fixture
def _rare_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep house only when the test says so."""
    monkeypatch.setattr("edgeoutbox.executor.upkeep.TICK", 3600.0)


async def step_clock(world: World, seconds: float, *executors: Executor) -> None:
    """Set the wall clock while no claim is under way: whoever asked before the step could not have seen it."""
    await until(lambda: not any(executor._taking for executor in executors))
    world.clock.set_wall(seconds)


@pytest.mark.usefixtures("_rare_upkeep")
@pytest.mark.parametrize(
    "steps", [(3600.0, -3600.0), (-3600.0, 3600.0), (-60.0, -60.0), (7200.0,), (-7200.0,)], ids=str
)
@pytest.mark.parametrize("fence", [True, False])
async def test_the_clock_stepped_under_running_attempts_of_two_executors(
    world: World, steps: tuple[float, ...], fence: bool
) -> None:
    """However the clock is set, two executors that saw it leave each other's running attempts alone."""
    gate = asyncio.Event()
    adapters = [ScriptedAdapter(), ScriptedAdapter()]
    for adapter in adapters:
        for key in "abcd":
            adapter.on(key, Step(gate=gate, fence=fence))
    (outbox, one), (_, two) = [await world.running(adapter) for adapter in adapters]
    asked = [await outbox.enqueue(request(key, lane_key=key)) for key in "abcd"]
    await until(lambda: sum(len(adapter.writes if fence else adapter.calls) for adapter in adapters) == 4)
    for step in steps:
        await step_clock(world, step, one, two)
        for executor in (one, two):
            await executor._upkeep.once()
            await executor._upkeep.once()
        for action in asked:
            assert (await the(outbox, action.id)).epoch == 1
    gate.set()
    for action in asked:
        assert outcome(await ended(outbox, action.id)) == ("DONE", "CONFIRMED")
    assert sum(len(adapter.calls) for adapter in adapters) == 4


@pytest.mark.parametrize("step", [-60.0, -100.0, -3600.0, -86400.0], ids=str)
@pytest.mark.parametrize("newcomers_lease", [120.0, 30.0, 600.0])
async def test_a_newcomer_after_the_clock_stepped_back_leaves_running_attempts_alone(
    world: World, step: float, newcomers_lease: float
) -> None:
    """An executor that starts after the step sees no drift; it may shorten leases from the future, but only once."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("a", Step(gate=gate))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    world.clock.set_wall(step)
    _, newcomer = await world.running(ScriptedAdapter(lease=newcomers_lease, write_window=10.0))
    for _ in range(20):
        await newcomer._upkeep.once()
        await world.passes(1.0)
    assert (await the(outbox, asked.id)).state is State.EXECUTING
    assert lease_left(world, asked.id) > 0
    gate.set()
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")


async def test_a_lease_from_the_future_is_shortened_so_that_its_lane_goes_on(world: World) -> None:
    """When its holder died and the clock stepped back a day, the lane does not wait a day for the lease."""
    producer = await world.outbox(ScriptedAdapter(delivery="writes_nothing"))
    asked = await producer.enqueue(request())
    [kind] = producer.adapters.values()
    served = producer.storage
    world.taken("dead", 120_000)
    assert sql_of(kind.kind.variants.condition) == "TRUE"
    assert (await served.get(action_id=asked.id)) is not None
    world.clock.set_wall(-86_400.0)
    executor = await world.executor(producer)
    await executor.until_idle()
    assert 0 < lease_left(world, asked.id) <= 120.0
    for _ in range(13):
        await world.passes(10.0)
        await executor._upkeep.once()
    assert outcome(await ended(producer, asked.id)) == ("DONE", "CONFIRMED")


@pytest.mark.usefixtures("_rare_upkeep")
async def test_whoever_saw_the_clock_jump_takes_nothing_for_one_lease(world: World) -> None:
    """A lost lease is left alone for as long as it could still be somebody's, and then taken."""
    adapter = ScriptedAdapter(lease=120.0)
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(due_at=world.clock.milliseconds + 10**8))
    world.taken("other", 120_000)
    await step_clock(world, 3600.0, executor)
    await executor.until_idle()
    assert executor._drift.suspicious()
    assert (await the(outbox, asked.id)).epoch == 1
    await world.passes(119.0)
    await executor.until_idle()
    assert (await the(outbox, asked.id)).epoch == 1
    await world.passes(2.0)
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert [call.epoch for call in adapter.calls] == [2]


@pytest.mark.parametrize(("step", "suspicious"), [(0.9, False), (-0.9, False), (1.1, True), (-1.1, True)])
def test_drift_is_a_step_of_over_a_second(step: float, suspicious: bool) -> None:
    """A clock that is slewed is no clock that was set."""
    clock = MovableClock()
    drift = Drift(clock, lease=120.0)
    clock.set_wall(step)
    assert drift.suspicious() is suspicious


async def test_slow_drift_adds_up(world: World) -> None:
    """A clock that runs away in small steps is noticed when it has gone a second."""
    drift = Drift(world.clock, lease=60.0)
    seen = []
    for _ in range(6):
        world.clock.set_wall(0.25)
        seen.append(drift.suspicious())
    assert seen == [False, False, False, False, True, True]


async def test_two_executors_share_the_work_and_never_an_action(world: World) -> None:
    """Sixty actions, two executors: each action is called once, by one of them, under epoch one."""
    adapters = [ScriptedAdapter(), ScriptedAdapter()]
    outbox, _ = await world.running(adapters[0])
    await world.running(adapters[1])
    asked = await outbox.enqueue_many([request(f"k{n}", lane_key=f"lane{n % 20}") for n in range(60)])
    for one in asked:
        assert outcome(await ended(outbox, one.id)) == ("DONE", "CONFIRMED")
    calls = [*adapters[0].calls, *adapters[1].calls]
    assert sorted(call.key for call in calls) == sorted(f"k{n}" for n in range(60))
    assert {call.epoch for call in calls} == {1}


async def test_a_lost_lease_is_taken_by_another_executor_and_the_old_one_is_refused(world: World) -> None:
    """Reclaimed in the middle of its attempt, the old executor gets no fence and its settlement changes nothing."""
    gate = asyncio.Event()
    first, second = ScriptedAdapter(), ScriptedAdapter()

    async def late(attempt: Attempt[Any]) -> Result:
        await gate.wait()
        await attempt.begin_write()
        return Done("first")

    first.on("a", Step(late, fence=False))
    second.on("a", Done("second"))
    outbox, one = await world.running(first)
    asked = await outbox.enqueue(request())
    await first.wait_for_calls("a")
    next(iter(one._running._attempts)).deadline += 10_000.0
    await world.passes(121.0)
    other, _ = await world.running(second)
    assert (await ended(other, asked.id)).readback_ref == "second"
    gate.set()
    await until(lambda: one.metrics.total("action.attempts") == 1)
    log = await outbox.attempts(asked.id)
    assert [(record.epoch, record.result) for record in log] == [(1, None), (2, "Done")]
    assert second.writes == ["a"]


async def test_a_late_result_is_kept_in_the_log(world: World) -> None:
    """A result that comes after another claim ended the action changes nothing, and its evidence is not lost."""
    gate = asyncio.Event()
    first, second = ScriptedAdapter(delivery="reads_back"), ScriptedAdapter(delivery="reads_back")
    first.on("a", Step(Done("first", evidence={"code": 250}), gate=gate))
    second.on("a", Step(Done("second", read_back=True), fence=False))
    outbox, one = await world.running(first)
    asked = await outbox.enqueue(request())
    await first.wait_for_writes("a")
    next(iter(one._running._attempts)).deadline += 10_000.0
    await world.passes(121.0)
    other, _ = await world.running(second)
    assert (await ended(other, asked.id)).readback_ref == "second"
    gate.set()
    await until(lambda: one.metrics.total("action.attempts", recorded="false") == 1)
    late, early = await outbox.attempts(asked.id)
    assert (late.recorded, late.result, late.readback_ref, dict(late.evidence)) == (
        False,
        "Done",
        "first",
        {"code": 250},
    )
    assert (early.recorded, early.readback_ref) == (True, "second")
    assert (await the(outbox, asked.id)).readback_ref == "second"


@pytest.mark.parametrize("delivery", ["at_most_once", "repeatable"])
async def test_an_executor_never_takes_its_own_running_attempts(world: World, delivery: str) -> None:
    """An attempt that outlives its lease is not reclaimed, nor reaped, by the executor that runs it."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter(delivery=delivery, lease=60.0, write_window=50.0)
    adapter.on("a", Step(gate=gate))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    next(iter(executor._running._attempts)).deadline += 10_000.0
    await world.passes(100.0)
    await executor._upkeep.once()
    await until(lambda: not executor._taking)
    assert len(adapter.calls) == 1
    gate.set()
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert len(adapter.calls) == 1


async def test_a_kinds_concurrency_bounds_its_attempts(world: World) -> None:
    """Never more attempts of a kind at once than its own bound allows; another kind is not held."""
    at_once, most = [0], [0]

    async def counted(_: Attempt[Any]) -> Result:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        await asyncio.sleep(0)
        at_once[0] -= 1
        return Done()

    adapter, other = ScriptedAdapter(concurrency=3), ScriptedAdapter("other")
    for n in range(20):
        adapter.on(f"k{n}", counted)
    outbox = await world.outbox(adapter, other)
    asked = await outbox.enqueue_many([request(f"k{n}") for n in range(20)])
    beside = await outbox.enqueue(request("other", kind="other"))
    await world.executor(outbox)
    for one in (*asked, beside):
        assert outcome(await ended(outbox, one.id)) == ("DONE", "CONFIRMED")
    assert most == [3]


async def test_a_kinds_concurrency_also_bounds_what_is_reclaimed(world: World) -> None:
    """Lost leases and due heads together stay within the kind's bound."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter(concurrency=2, delivery="repeatable")
    outbox = await world.outbox(adapter)
    for n in range(6):
        adapter.on(f"k{n}", Step(gate=gate))
    asked = await outbox.enqueue_many([request(f"k{n}") for n in range(6)])
    world.taken("dead", -1, "id <= 3")
    executor = await world.executor(outbox)
    await adapter.wait_for_calls("k0")
    await until(lambda: len(adapter.calls) >= 2)
    assert len(executor._running) == 2
    gate.set()
    for one in asked:
        await ended(outbox, one.id)
    assert len(adapter.calls) == 6


async def test_the_executors_concurrency_bounds_all_kinds_together(world: World) -> None:
    """`Executor(concurrency=2)` runs two attempts, however many kinds wait."""
    gate = asyncio.Event()
    adapters = [ScriptedAdapter(name) for name in ("one", "two", "three")]
    outbox = await world.outbox(*adapters)
    for adapter in adapters:
        for n in range(3):
            adapter.on(f"{adapter.kind.name}{n}", Step(gate=gate))
    asked = [await outbox.enqueue(request(f"{a.kind.name}{n}", kind=a.kind.name)) for a in adapters for n in range(3)]
    executor = await world.executor(outbox, concurrency=2)
    await until(lambda: sum(len(adapter.writes) for adapter in adapters) == 2)
    assert len(executor._running) == 2
    gate.set()
    for one in asked:
        await ended(outbox, one.id)


async def test_until_idle_ignores_what_is_due_later(world: World) -> None:
    """It returns when nothing is due, and drain goes on to what is due later."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    await outbox.enqueue(request("now"))
    later = await outbox.enqueue(request("later", due_at=world.clock.milliseconds + 86_400_000))
    await executor.until_idle()
    assert adapter.writes == ["now"]
    assert (await the(outbox, later.id)).state is State.ADMITTED
    await drain(executor, world.clock)
    assert adapter.writes == ["now", "later"]
