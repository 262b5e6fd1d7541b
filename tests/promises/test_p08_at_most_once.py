"""P8: for an at-most-once kind the provider call begins at most once per fence that was not proven empty."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edgeoutbox import Attempt, Defer, Done, Outbox, Reread, Result, Retry
from edgeoutbox.testing import ScriptedAdapter, Step, drain, until
from tests.executor.processes import calls, program, started
from tests.executor.world import DRIVERS, DriverType, World, ended, outcome, request, the


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.copy)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A database for programs of their own, on the machine's clock."""
    driver: DriverType = request.param
    return World(tmp_path / "app.db", driver)


@pytest.mark.parametrize(
    ("dies", "written", "ends"),
    [
        ("before", 0, ("FAILED", "ATTEMPTS_EXHAUSTED")),
        ("exits", 0, ("FAILED", "ATTEMPTS_EXHAUSTED")),
        ("fenced", 0, ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")),
        ("called", 1, ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")),
    ],
)
async def test_p8_a_process_killed_at_its_worst_moment(
    real: World, tmp_path: Path, dies: str, written: int, ends: tuple[str, str]
) -> None:
    """Killed before its fence, behind it, or after the call: however often it is started, one call at the most."""
    record = tmp_path / "record"
    async with Outbox(real.url) as outbox:
        asked = await outbox.enqueue(request("a", kind="file", payload={"dies": dies}, lane_key="lane"))
        behind = await outbox.enqueue(request("b", kind="file", lane_key="lane"))
        beside = await outbox.enqueue(request("c", kind="file"))
        for _ in range(6):
            with program(real.url, record, "--lease", "0.3") as process:
                waiting = asyncio.ensure_future(outbox.wait(behind.id, timeout=20.0))
                dead = asyncio.ensure_future(asyncio.to_thread(process.wait, 20.0))
                await asyncio.wait([waiting, dead], return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    break
                waiting.cancel()
        assert outcome(await the(outbox, asked.id)) == ends
        assert outcome(await the(outbox, behind.id)) == ("DONE", "CONFIRMED")
        await outbox.wait(beside.id, timeout=5.0)
    counted = Counter(key for key, _, _ in calls(record))
    assert (counted["a"], counted["b"]) == (written, 1)
    assert counted["c"] <= 1


async def test_p8_two_programs_killed_at_random(real: World, tmp_path: Path) -> None:
    """Two executors on one file, killed again and again: nothing twice, nothing lost, every lane in order."""
    record = tmp_path / "record"
    dice = random.Random(8)  # noqa: S311 - a schedule, no secret
    async with Outbox(real.url) as outbox:
        asked = await outbox.enqueue_many([request(f"k{n}", kind="file", lane_key=f"lane{n % 12}") for n in range(360)])
        for _ in range(5):
            with program(real.url, record, "--lease", "0.4") as one, program(real.url, record, "--lease", "0.4") as two:
                await asyncio.to_thread(started, one)
                await asyncio.to_thread(started, two)
                before = len(calls(record))
                goal = before + dice.randint(5, 40)
                await until(lambda goal=goal: len(calls(record)) >= min(goal, 350), timeout=60.0)  # type: ignore[misc]
        with program(real.url, record, "--lease", "0.4"):
            for one_asked in asked:
                await outbox.wait(one_asked.id, timeout=60.0)
        actions = [await the(outbox, one_asked.id) for one_asked in asked]
    counted = Counter(key for key, _, _ in calls(record))
    assert {key: count for key, count in counted.items() if count > 1} == {}
    for action in actions:
        assert outcome(action) in {("DONE", "CONFIRMED"), ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")}
        if action.state == "DONE":
            assert counted[action.idempotency_key] == 1
    for lane in range(12):
        sent = [int(key[1:]) for key, name, _ in calls(record) if name == f"lane{lane}"]
        assert sent == sorted(sent)


@pytest.mark.parametrize("grace", [0.0, 0.05])
@pytest.mark.parametrize("where", ["claimed", "before", "fencing", "fenced"])
async def test_p8_a_cancelled_executor(world: World, where: str, grace: float) -> None:
    """Stopped at any moment of an attempt, and started again: there is one call at the most."""
    adapter = ScriptedAdapter()
    at, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(attempt: Attempt[Any]) -> Result:
        if where == "before":
            at.set()
            await go_on.wait()
        await attempt.begin_write()
        adapter.writes.append("a")
        at.set()
        await go_on.wait()
        return Done()

    adapter.on("a", Step(slowly, fence=False))
    outbox = await world.outbox(adapter)
    begin, claim = outbox.storage.begin_write, outbox.storage.claim

    async def fencing(*args: Any) -> Any:
        answer = await begin(*args)
        if where == "fencing" and not at.is_set():
            at.set()
            await go_on.wait()
        return answer

    async def claiming(*args: Any, **options: Any) -> Any:
        claims = await claim(*args, **options)
        if where == "claimed" and claims and not at.is_set():
            at.set()
        return claims

    outbox.storage.begin_write = fencing  # type: ignore[method-assign, assignment]
    outbox.storage.claim = claiming  # type: ignore[method-assign]
    executor = await world.executor(outbox, grace=grace)
    asked = await outbox.enqueue(request())
    await at.wait()
    await executor.stop()
    stopped = await the(outbox, asked.id)
    assert stopped.state in {"ADMITTED", "UNCERTAIN"}
    assert (stopped.state == "UNCERTAIN") == (adapter.writes == ["a"])
    if stopped.state == "ADMITTED":
        assert (stopped.attempt, stopped.write_started_at) == (0, None)
    go_on.set()
    again = await world.executor(outbox)
    await drain(again, world.clock)
    action = await the(outbox, asked.id)
    assert action.ended
    assert adapter.writes == ["a"]


@pytest.mark.parametrize("seed", range(3))
async def test_p8_whatever_the_adapter_does(world: World, seed: int) -> None:  # noqa: C901 - one story, told once
    """Sixty actions with random scripts, random clock moves and two executors: one write per unproven fence."""
    dice = random.Random(seed)  # noqa: S311 - a schedule, no secret
    proven: Counter[str] = Counter()
    adapters = [ScriptedAdapter(max_attempts=6), ScriptedAdapter(max_attempts=6)]

    def answer(key: str) -> Step:
        def proves(result: Result) -> Any:
            async def say(_: Attempt[Any]) -> Result:
                proven[key] += 1
                return result

            return say

        return dice.choice(
            [
                Step(proves(Retry("421"))),
                Step(proves(Defer("450", wait=3.0))),
                Step(RuntimeError("boom")),
                Step(RuntimeError("boom"), fence=False),
                Step(Done()),
                Step(Reread("wrong")),
                Step(hangs=True),
                Step(hangs=True, fence=False),
                Step(Defer("429", wait=5.0, scope="kind"), fence=False),
            ]
        )

    for adapter in adapters:
        for n in range(60):
            adapter.on(f"k{n}", *[answer(f"k{n}") for _ in range(4)])
    outbox, one = await world.running(adapters[0])
    await world.running(adapters[1])
    asked = await outbox.enqueue_many([request(f"k{n}", lane_key=f"lane{n % 9}") for n in range(60)])

    def open_actions() -> int:
        [(count,)] = world.sql("SELECT COUNT(*) FROM agent_action WHERE ended_at IS NULL")
        return int(count)

    for _ in range(2000):
        if open_actions() == 0:
            break
        await world.passes(dice.choice([0.5, 20.0, 61.0, 130.0]))
        if dice.random() < 0.1:
            world.clock.set_wall(dice.choice([-3600.0, 3600.0, -5.0]))
        await asyncio.sleep(0.002)
    for action in asked:
        assert (await the(outbox, action.id)).ended
    writes = Counter([*adapters[0].writes, *adapters[1].writes])
    for key, count in writes.items():
        assert count <= 1 + proven[key], key
    assert one.metrics.total("action.attempts") > 0


async def test_p8_a_kind_nobody_declared_counts_as_at_most_once(world: World) -> None:
    """A row of an undeclared kind whose write started is never claimed, not even by SQL."""
    outbox = await world.outbox()
    asked = await outbox.enqueue(request(kind="unknown"))
    soon = world.clock.milliseconds + 1000
    claim = (
        "UPDATE agent_action SET state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, "
        "lease_owner = 'x', lease_expires_at = ?"
    )
    world.sql(claim, soon)
    world.sql("UPDATE agent_action SET write_started_at = 1")
    await world.passes(2.0)
    with pytest.raises(Exception, match="never claimed again"):
        world.sql(claim, soon + 10_000)
    assert (await the(outbox, asked.id)).epoch == 1


async def test_p8_an_executor_that_dies_in_its_own_process(world: World) -> None:
    """The loop is torn down under a fenced attempt; another executor of the process does not write again."""
    adapter = ScriptedAdapter()
    adapter.on("a", Step(hangs=True))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    assert executor._body is not None
    body, executor._body = executor._body, None
    body.cancel()
    attempts = list(executor._running._attempts.values())
    for task in attempts:
        task.cancel()
    again = await world.executor(outbox)
    await asyncio.wait(attempts)  # while one settles, a drain that sees nothing due would move the clock past its lease
    await drain(again, world.clock)
    assert outcome(await ended(outbox, asked.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")
    assert adapter.writes == ["a"]
