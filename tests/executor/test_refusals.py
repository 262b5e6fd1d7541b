"""What is refused stays refused, and what the database refuses is not held for ever."""

import logging
from enum import IntEnum
from typing import Any

import pytest
from pydantic import BaseModel

from edgeoutbox import (
    Attempt,
    ConfigurationError,
    Defer,
    Done,
    Executor,
    FenceRefused,
    InvalidPayload,
    InvalidRequest,
    Result,
    one,
)
from edgeoutbox.testing import ScriptedAdapter, Step, drain, until
from tests.executor.world import World, ended, last_attempt, outcome, request, the


async def test_p8_an_adapter_that_asks_again_after_the_machine_slept_gets_no_fence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal is final for its attempt: else a write could begin that is then recorded as empty."""
    adapter = ScriptedAdapter(lease=120.0, write_window=60.0)
    outbox, executor = await world.running(adapter)
    begin_write = outbox.storage.begin_write
    slept: list[None] = []

    async def asleep(*held: Any) -> Any:
        answer = await begin_write(*held)
        if not slept:
            slept.append(None)
            world.clock.suspend(5.0)
        return answer

    monkeypatch.setattr(outbox.storage, "begin_write", asleep)

    async def stubborn(attempt: Attempt[Any]) -> Result:
        with pytest.raises(FenceRefused):
            await attempt.begin_write()
        await attempt.begin_write()
        adapter.writes.append("a")
        raise ValueError

    adapter.on("a", Step(stubborn, fence=False))
    asked = await outbox.enqueue(request())
    await drain(executor, world.clock)
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert adapter.writes == ["a"]
    assert [attempt.result for attempt in await outbox.attempts(asked.id)] == ["Asleep", "Done"]


async def test_p10_a_settlement_that_the_database_refuses_is_logged_and_let_go(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger of the application's can refuse an end; it is logged, and the lane waits for no more than the lease."""
    adapter = ScriptedAdapter()
    outbox, _ = await world.running(adapter)
    world.refuses_done()
    first = await outbox.enqueue(request("a", lane_key="lane"))
    second = await outbox.enqueue(request("b", lane_key="lane"))
    await until(lambda: "action.settle.refused" in caplog.text)
    while (logged := await last_attempt(outbox, first.id)).settled_at is None:
        await outbox.storage.changed(outbox.storage.mark(), 0.05)
    assert (logged.result, logged.recorded) == ("Done", False)
    await world.allows_done()
    await world.passes(121.0)
    assert outcome(await ended(outbox, first.id)) == ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")
    assert outcome(await ended(outbox, second.id)) == ("DONE", "CONFIRMED")
    assert adapter.writes == ["a", "b"]


class Level(IntEnum):
    """A number that a variant is chosen by."""

    LOW = 1


class Levelled(BaseModel):
    """A payload whose validation is laxer than its condition."""

    level: Level


@pytest.mark.parametrize("level", ["1", 1.0])
async def test_p11_a_payload_that_would_never_be_claimed_is_refused_at_enqueue(world: World, level: object) -> None:
    """Pydantic reads "1" as the number 1, and the database does not: such a row would wait for ever."""
    outbox = await world.outbox(ScriptedAdapter(variants=one(Levelled)))
    with pytest.raises(InvalidPayload, match="JSON type"):
        await outbox.enqueue(request(payload={"level": level}))
    assert (await outbox.list()).actions == ()


async def test_a_producer_does_not_end_a_cooling(world: World) -> None:
    """Only who carries a kind out with other settings ends its rest; who enqueues with an adapter changes nothing."""
    adapter = ScriptedAdapter()
    adapter.on("a", Defer("no relay", scope="kind"))
    outbox, executor = await world.running(adapter)
    await outbox.enqueue(request())
    await executor.until_idle()
    until_when = (await outbox.kinds())["scripted"].cooling_until
    other = ScriptedAdapter()
    other.settings = lambda: "another relay"  # type: ignore[method-assign]
    producer = await world.outbox(other)
    assert (await producer.kinds())["scripted"].cooling_until == until_when is not None
    await world.executor(producer)
    assert (await producer.kinds())["scripted"].cooling_until is None


async def test_an_attempt_that_only_read_back_logs_no_write_of_its_own(world: World) -> None:
    """The dispatch log says which attempt wrote."""
    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("a", ValueError("lost"), Step(Done("found", read_back=True), fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await drain(executor, world.clock)
    first, second = await outbox.attempts(asked.id)
    assert first.write_started_at is not None
    assert second.write_started_at is None
    assert outcome(await the(outbox, asked.id)) == ("DONE", "READ_BACK")


async def test_a_changed_retention_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The last declaration wins, and says so."""
    caplog.set_level(logging.INFO, "edgeoutbox")
    await world.outbox(ScriptedAdapter(retention_days=30))
    await world.outbox(ScriptedAdapter(retention_days=1))
    assert "kind.changed action_kind=scripted retention_days=1" in caplog.text


async def test_if_running_without_supersede_is_refused(world: World) -> None:
    """It would be ignored, and the caller would believe that it was not."""
    outbox = await world.outbox(ScriptedAdapter())
    with pytest.raises(InvalidRequest, match="supersede"):
        await outbox.enqueue(request(lane_key="lane"), if_running="refuse")


async def test_waiting_for_an_executor_that_does_not_run_is_refused(world: World) -> None:
    """It would wait for ever."""
    outbox = await world.outbox(ScriptedAdapter())
    with pytest.raises(RuntimeError, match="async with Executor"):
        await Executor(outbox).until_idle()


async def test_a_kind_that_nobody_declared_is_said_once_it_is_enqueued(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistyped kind waits for ever, so it is logged where other kinds have their adapters."""
    outbox = await world.outbox(ScriptedAdapter())
    await outbox.enqueue(request(kind="scriptde"))
    assert "action.kind.unknown action_kind=scriptde" in caplog.text


async def test_an_adapter_that_forgets_to_return_its_payload_is_named(world: World) -> None:
    """A `prepare` without a return is the adapter's mistake, not the payload's."""
    adapter = ScriptedAdapter()

    async def prepare(_: object) -> None:
        return None

    adapter.prepare = prepare  # type: ignore[assignment, method-assign]
    outbox = await world.outbox(adapter)
    with pytest.raises(ConfigurationError, match=r"kind scripted: its adapter's prepare\(\) returned None"):
        await outbox.enqueue(request())


async def test_a_wait_that_ends_too_soon_says_why(world: World) -> None:
    """The error says what the action waits for."""
    outbox = await world.outbox(ScriptedAdapter())
    asked = await outbox.enqueue(request())
    with pytest.raises(TimeoutError, match="no running executor"):
        await outbox.wait(asked.id, timeout=0.01)
