"""A kind's weather: cooling down, pause, and what waits meanwhile."""

import asyncio

import pytest

from edgeoutbox import Defer, Done, State
from edgeoutbox.testing import ScriptedAdapter, Step, drain, until
from tests.executor.world import World, ended, outcome, request, the


class Configured(ScriptedAdapter):
    """A scripted adapter with settings."""

    password = "first"  # noqa: S105 - nobody's

    def settings(self) -> str:
        """What a changed configuration would change."""
        return self.password


async def cooling(world: World) -> float:
    """Seconds that the kind still cools down."""
    [(until_when,)] = world.sql("SELECT cooling_until FROM agent_action_kind WHERE kind = 'scripted'")
    return 0.0 if until_when is None else (int(until_when) - world.clock.milliseconds) / 1000


async def test_a_cooling_kind_holds_every_process(world: World) -> None:
    """`Defer(scope="kind")` in one executor keeps all of them from claiming the kind, and no other kind."""
    adapters = [ScriptedAdapter(), ScriptedAdapter()]
    adapters[0].on("a", Step(Defer("429", wait=60.0, scope="kind"), fence=False))
    adapters[1]._scripts = adapters[0]._scripts
    outbox, one = await world.running(adapters[0])
    _, two = await world.running(adapters[1])
    asked = await outbox.enqueue(request())
    await until(lambda: one.metrics.total("action.attempts") + two.metrics.total("action.attempts") == 1)
    other, _ = await world.running(ScriptedAdapter("other"))
    behind = await outbox.enqueue(request("b"))
    await ended(other, (await other.enqueue(request("c", kind="other"))).id)
    await one.until_idle()
    await two.until_idle()
    assert len(adapters[0].calls) + len(adapters[1].calls) == 1
    assert "cools down until" in await outbox.why(behind.id)
    assert "429" in await outbox.why(asked.id)
    await world.passes(60.1)
    assert outcome(await ended(outbox, behind.id)) == ("DONE", "CONFIRMED")
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert (await the(outbox, asked.id)).attempt == 1


async def test_long_waits_double_up_to_four_hours(world: World) -> None:
    """An outage without a wait rests the kind 15 minutes, then twice as long each time, at most 4 hours."""
    adapter = ScriptedAdapter()
    adapter.on("a", *[Step(Defer("cannot connect", scope="kind"), fence=False)] * 7)
    outbox, executor = await world.running(adapter)
    await outbox.enqueue(request())
    waits = []
    for attempt in range(1, 8):
        await until(lambda attempt=attempt: executor.metrics.total("action.attempts") == attempt)  # type: ignore[misc]
        waits.append(round(await cooling(world)))
        await world.passes(waits[-1] + 0.1)
    assert waits == [900, 1800, 3600, 7200, 14400, 14400, 14400]
    assert executor.metrics.total("action.attempts", result="Defer") == 7


async def test_a_long_rest_ends_the_doubling(world: World) -> None:
    """After the kind worked for longer than it last rested, an outage begins again at 15 minutes."""
    adapter = ScriptedAdapter()
    outage = Step(Defer("cannot connect", scope="kind"), fence=False)
    adapter.on("a", outage, Done())
    adapter.on("b", outage, Done())
    outbox, executor = await world.running(adapter)
    await outbox.enqueue(request("a"))
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    await world.passes(900.1)
    await ended(outbox, 1)
    await world.passes(1000.0)
    await outbox.enqueue(request("b"))
    await until(lambda: executor.metrics.total("action.attempts") == 3)
    assert round(await cooling(world)) == 900


async def test_a_longer_cooling_stays(world: World) -> None:
    """A short rate limit during an outage does not shorten the outage's rest."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("long", Step(Defer("down", wait=600.0, scope="kind"), fence=False))
    adapter.on("short", Step(Defer("429", wait=5.0, scope="kind"), fence=False, gate=gate))
    outbox, executor = await world.running(adapter)
    await outbox.enqueue(request("short"))
    await adapter.wait_for_calls("short")
    await outbox.enqueue(request("long"))
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    gate.set()
    await until(lambda: executor.metrics.total("action.attempts") == 2)
    assert round(await cooling(world)) == 600


async def test_many_attempts_of_one_outage_are_one_step_of_it(world: World) -> None:
    """Eight attempts that fail to connect at once rest the kind for 15 minutes, not for hours."""
    adapter = ScriptedAdapter()
    outbox = await world.outbox(adapter)
    for n in range(8):
        adapter.on(f"k{n}", Step(Defer("cannot connect", scope="kind"), fence=False))
    await outbox.enqueue_many([request(f"k{n}") for n in range(8)])
    executor = await world.executor(outbox)
    await until(lambda: executor.metrics.total("action.attempts") == 8)
    assert round(await cooling(world)) == 900


async def test_resume_ends_a_cooling(world: World) -> None:
    """A person who knows better need not wait."""
    adapter = ScriptedAdapter()
    adapter.on("a", Step(Defer("down", scope="kind"), fence=False), Done())
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    await outbox.resume("scripted")
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")


@pytest.mark.parametrize("changed", [True, False])
async def test_starting_with_changed_settings_ends_a_cooling(world: World, changed: bool) -> None:
    """A corrected password is tried at once; a restart with the old one is not."""
    adapter = Configured()
    adapter.on("a", Step(Defer("cannot log in", scope="kind"), fence=False))
    outbox = await world.outbox(adapter)
    executor = await world.executor(outbox)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    await executor.stop()
    corrected = Configured()
    corrected.password = "second" if changed else "first"
    again, restarted = await world.running(corrected)
    if changed:
        assert outcome(await ended(again, asked.id)) == ("DONE", "CONFIRMED")
    else:
        await restarted.until_idle()
        assert (await the(again, asked.id)).state is State.ADMITTED
        assert round(await cooling(world)) == 900


async def test_no_secret_of_the_settings_is_stored(world: World) -> None:
    """What tells changed settings apart reveals nothing of them."""
    adapter = Configured()
    adapter.password = "correct horse battery staple"  # noqa: S105 - nobody's
    await world.running(adapter)
    [(stored,)] = world.sql("SELECT settings_digest FROM agent_action_kind")
    assert adapter.password not in stored
    assert len(stored.partition(":")[2]) == 4


async def test_pause_holds_and_resume_lets_go(world: World) -> None:
    """Only people pause a kind: nothing is claimed until somebody resumes it, and what runs goes on."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("runs", Step(gate=gate))
    outbox, executor = await world.running(adapter)
    runs = await outbox.enqueue(request("runs"))
    await adapter.wait_for_writes("runs")
    await outbox.pause("scripted", by="ops")
    waits = await outbox.enqueue(request("waits"))
    gate.set()
    assert outcome(await ended(outbox, runs.id)) == ("DONE", "CONFIRMED")
    await world.passes(30.0)
    await drain(executor, world.clock)
    assert adapter.writes == ["runs"]
    assert "paused by ops" in await outbox.why(waits.id)
    await outbox.resume("scripted")
    assert outcome(await ended(outbox, waits.id)) == ("DONE", "CONFIRMED")


async def test_a_pause_holds_every_process(world: World) -> None:
    """What one process paused no other claims, also what it enqueues itself, until yet another resumes it."""
    adapters = [ScriptedAdapter(), ScriptedAdapter()]
    first, one = await world.running(adapters[0])
    await first.pause("scripted", by="ops")
    second, other = await world.running(adapters[1])
    waiting = [(await outbox.enqueue(request(key))).id for outbox, key in ((first, "a"), (second, "b"))]
    await world.passes(30.0)
    for executor in (one, other):
        await drain(executor, world.clock)
    assert adapters[0].calls == adapters[1].calls == []
    assert "paused by ops" in await second.why(waiting[0])
    await second.resume("scripted")
    assert [outcome(await ended(first, id_)) for id_ in waiting] == [("DONE", "CONFIRMED")] * 2
    assert sorted(adapters[0].writes + adapters[1].writes) == ["a", "b"]


async def test_a_paused_kind_still_expires(world: World) -> None:
    """A pause keeps nothing alive past its expiry."""
    outbox, _ = await world.running(ScriptedAdapter())
    await outbox.pause("scripted", by="ops")
    asked = await outbox.enqueue(request(expires_at=world.clock.milliseconds + 5000))
    await world.passes(5.1)
    assert outcome(await ended(outbox, asked.id)) == ("CANCELLED", "EXPIRED")


async def test_drain_says_when_an_action_would_never_end(world: World) -> None:
    """An action that defers for the tenth time makes drain raise, naming the action."""
    adapter = ScriptedAdapter()
    adapter.on("a", *[Step(Defer("429", wait=1.0), fence=False)] * 50)
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    with pytest.raises(RuntimeError, match=f"action {asked.id} of kind scripted deferred"):
        await drain(executor, world.clock)
