"""What becomes of an attempt, whatever the adapter says or fails to say."""

import asyncio
import logging
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from edgeoutbox import (
    Abandoned,
    Attempt,
    Cancelled,
    Defer,
    Done,
    Failed,
    FenceRefused,
    InvalidPayload,
    Reread,
    Result,
    Retry,
    SecondWrite,
    State,
    StopReason,
    Uncertain,
    WriteWindow,
    one,
)
from edgeoutbox.states import MEANINGS
from edgeoutbox.testing import ScriptedAdapter, Step, drain, until
from tests.executor.world import DATABASE_ERRORS, World, ended, last_attempt, outcome, request, the

AT_MOST_ONCE_ENDS: list[tuple[Step, tuple[str, str]]] = [
    (Step(Done()), ("DONE", "CONFIRMED")),
    (Step(Done(read_back=True)), ("DONE", "READ_BACK")),
    (Step(Uncertain("no answer")), ("UNCERTAIN", "NO_CONFIRMATION")),
    (Step(Failed(StopReason.REJECTED, "550")), ("FAILED", "REJECTED")),
    (Step(Failed(StopReason.UNDELIVERABLE, "no recipient")), ("FAILED", "UNDELIVERABLE")),
    (Step(Failed(StopReason.NOT_CONFIGURED, "no relay"), fence=False), ("FAILED", "NOT_CONFIGURED")),
    (Step(Cancelled(StopReason.NOT_NEEDED), fence=False), ("CANCELLED", "NOT_NEEDED")),
    (Step(Cancelled(StopReason.ABSENT)), ("CANCELLED", "ABSENT")),
    (Step(RuntimeError("boom")), ("UNCERTAIN", "ERROR_AFTER_WRITE")),
    (Step(TimeoutError()), ("UNCERTAIN", "ERROR_AFTER_WRITE")),
    (Step(asyncio.CancelledError()), ("UNCERTAIN", "ERROR_AFTER_WRITE")),
    (Step(FenceRefused()), ("UNCERTAIN", "ERROR_AFTER_WRITE")),
    (Step(Abandoned()), ("UNCERTAIN", "ERROR_AFTER_WRITE")),
    (Step(Reread("nothing to read")), ("UNCERTAIN", "NO_CONFIRMATION")),
]


@pytest.mark.parametrize(("step", "end"), AT_MOST_ONCE_ENDS, ids=lambda value: str(getattr(value, "answer", "")))
async def test_an_at_most_once_result_ends_the_action_as_it_says(
    world: World, step: Step, end: tuple[str, str]
) -> None:
    """Whatever is said after the fence, the action ends at once, and the provider was reached at most once."""
    adapter = ScriptedAdapter()
    adapter.on("a", step)
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    action = await ended(outbox, asked.id)
    await drain(executor, world.clock)
    assert outcome(action) == end
    assert action.payload is None
    assert len(adapter.calls) == 1
    assert (await last_attempt(outbox, asked.id)).recorded is True


UNFENCED_STEPS: list[Step] = [
    Step(Retry("421", wait=5.0)),
    Step(RuntimeError("boom"), fence=False),
    Step(TimeoutError(), fence=False),
    Step(asyncio.CancelledError(), fence=False),
    Step(FenceRefused("of its own making"), fence=False),
    Step(Abandoned(), fence=False),
]


@pytest.mark.parametrize("step", UNFENCED_STEPS, ids=lambda step: f"{type(step.answer).__name__}-{step.fence}")
async def test_nothing_written_is_tried_again_and_counts(world: World, step: Step) -> None:
    """A proven retry, and every failure before the fence, gives the action back without a fence; the next succeeds."""
    adapter = ScriptedAdapter()
    adapter.on("a", step, Done())
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    waiting = await the(outbox, asked.id)
    assert (waiting.state, waiting.write_started_at, waiting.attempt) == (State.ADMITTED, None, 1)
    await drain(executor, world.clock)
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert [call.attempt for call in adapter.calls] == [1, 2]


@pytest.mark.parametrize("answer", [None, "sent", 250, object(), Exception], ids=lambda answer: type(answer).__name__)
@pytest.mark.parametrize("fence", [True, False])
async def test_a_result_that_is_none_of_ours_is_an_exception(world: World, answer: Any, fence: bool) -> None:
    """An adapter that forgets to return a result leaves no action behind that nobody may touch any more."""

    async def confused(_: Attempt[Any]) -> Result:
        return answer  # type: ignore[no-any-return]

    adapter = ScriptedAdapter(max_attempts=1)
    adapter.on("a", Step(confused, fence=fence))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    expected = ("UNCERTAIN", "ERROR_AFTER_WRITE") if fence else ("FAILED", "ATTEMPTS_EXHAUSTED")
    assert outcome(await ended(outbox, asked.id)) == expected


STRANGE_RESULTS: list[tuple[Result, tuple[str, str]]] = [
    (Done(readback_ref=7), ("DONE", "CONFIRMED")),  # type: ignore[arg-type]
    (Done(readback_ref=b"id"), ("DONE", "CONFIRMED")),  # type: ignore[arg-type]
    (Done(readback_ref="\ud800"), ("DONE", "CONFIRMED")),
    (Done(evidence={"answer": object()}), ("DONE", "CONFIRMED")),  # type: ignore[dict-item]
    (Done(evidence={"answer": "x" * 5000}), ("DONE", "CONFIRMED")),
    (Done(evidence={"answer": float("nan")}), ("DONE", "CONFIRMED")),
    (Done(evidence={"answer": "\ud800"}), ("DONE", "CONFIRMED")),
    (Done(evidence=None), ("DONE", "CONFIRMED")),  # type: ignore[arg-type]
    (Failed("REJECTED", "550"), ("FAILED", "REJECTED")),  # type: ignore[arg-type]
    (Failed(StopReason.REJECTED, None), ("FAILED", "REJECTED")),  # type: ignore[arg-type]
    (Failed(StopReason.REJECTED, "\udcff"), ("FAILED", "REJECTED")),
    (Uncertain("x" * 100_000), ("UNCERTAIN", "NO_CONFIRMATION")),
]


@pytest.mark.parametrize(("result", "end"), STRANGE_RESULTS, ids=range(len(STRANGE_RESULTS)))
async def test_a_certain_result_is_kept_whatever_came_with_it(
    world: World, result: Result, end: tuple[str, str]
) -> None:
    """Evidence, reasons and references that cannot be stored never cost the result."""
    adapter = ScriptedAdapter()
    adapter.on("a", result)
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    assert outcome(await ended(outbox, asked.id)) == end
    assert len(adapter.writes) == 1


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), -5.0, 10.0**300, "soon"], ids=str)
async def test_a_strange_wait_neither_loses_the_action_nor_hurries_it(world: World, wait: Any) -> None:
    """A wait that is no sensible number still gives the action back, and it is tried again some day."""
    adapter = ScriptedAdapter()
    adapter.on("a", Retry("later", wait=wait), Done())
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") >= 1)
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) in {("DONE", "CONFIRMED"), ("UNCERTAIN", "ERROR_AFTER_WRITE")}


async def test_retry_at_the_last_attempt_ends_exhausted(world: World) -> None:
    """The last attempt's Retry ends the action FAILED, without a fence: nothing of it exists."""
    adapter = ScriptedAdapter(max_attempts=3)
    adapter.on("a", *[Retry("421", wait=1.0)] * 5)
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await drain(executor, world.clock)
    action = await the(outbox, asked.id)
    assert outcome(action) == ("FAILED", "ATTEMPTS_EXHAUSTED")
    assert (action.attempt, action.write_started_at, len(adapter.calls)) == (3, None, 3)


async def test_an_actions_own_max_attempts_wins(world: World) -> None:
    """`max_attempts` of the request replaces the kind's."""
    adapter = ScriptedAdapter(max_attempts=30)
    adapter.on("a", *[Retry("421", wait=1.0)] * 5)
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(max_attempts=2))
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("FAILED", "ATTEMPTS_EXHAUSTED")
    assert len(adapter.calls) == 2


async def test_a_deferral_does_not_count(world: World) -> None:
    """Deferred more often than there are attempts, the action still has its attempt."""
    adapter = ScriptedAdapter(max_attempts=1)
    adapter.on("a", *[Defer("429", wait=5.0)] * 5, Done())
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await drain(executor, world.clock)
    action = await the(outbox, asked.id)
    assert (outcome(action), action.attempt, action.epoch) == (("DONE", "CONFIRMED"), 1, 6)


async def test_reread_keeps_the_fence_and_reads_back_first(world: World) -> None:
    """After a Reread the action stays EXECUTING, fenced and ownerless until the wait is over; then it reads back."""
    adapter = ScriptedAdapter(delivery="reads_back")
    adapter.on("a", Reread("no answer", wait=30.0), Step(Done("msg-1", read_back=True), fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    waiting = await the(outbox, asked.id)
    assert (waiting.state, waiting.lease_owner, waiting.attempt) == (State.EXECUTING, None, 1)
    assert waiting.write_started_at is not None
    await world.passes(29.0)
    await executor.until_idle()
    assert len(adapter.calls) == 1
    await world.passes(1.1)
    action = await ended(outbox, asked.id)
    assert (outcome(action), action.readback_ref) == (("DONE", "READ_BACK"), "msg-1")
    assert [call.inherited for call in adapter.calls] == [False, True]
    assert adapter.writes == ["a"]


async def test_reread_at_the_last_attempt_is_uncertain(world: World) -> None:
    """When no attempt is left to read back, nobody can know."""
    adapter = ScriptedAdapter(delivery="reads_back", max_attempts=2)
    adapter.on("a", Reread("no answer", wait=1.0), Step(Reread("still none", wait=1.0), fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await drain(executor, world.clock)
    assert outcome(await the(outbox, asked.id)) == ("UNCERTAIN", "READBACK_EXHAUSTED")


class Misspelled(ScriptedAdapter):
    """An adapter with a mistake in it."""

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Ask the payload for what it does not have, with the payload in the message."""
        raise AttributeError(str(attempt.payload))


async def test_what_an_adapter_raises_is_logged_with_its_place(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The type of the exception and the line that raised it, innermost first, and not its message."""
    outbox, _ = await world.running(Misspelled(max_attempts=1))
    asked = await outbox.enqueue(request(payload={"text": "a secret"}))
    assert outcome(await ended(outbox, asked.id)) == ("FAILED", "ATTEMPTS_EXHAUSTED")
    [line] = [record for record in caplog.records if record.__dict__.get("event") == "adapter.raised"]
    assert (line.__dict__["event_action_id"], line.__dict__["event_error"]) == (asked.id, "AttributeError")
    innermost, *_ = line.__dict__["event_where"].split(" < ")
    raised_at = Misspelled.execute.__code__.co_firstlineno + 2
    assert innermost == f"{__file__}:{raised_at}"
    assert "a secret" not in caplog.text


async def test_reread_by_an_at_most_once_kind_is_an_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An at-most-once kind cannot reread: UNCERTAIN, and an error line that names the action."""
    adapter = ScriptedAdapter()
    adapter.on("a", Reread("cannot"))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await ended(outbox, asked.id)
    [line] = [record for record in caplog.records if record.__dict__.get("event") == "adapter.misuse"]
    assert (line.levelno, line.__dict__["event_action_id"]) == (logging.ERROR, asked.id)


async def test_done_without_a_fence_is_recorded_and_an_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An adapter that called the provider unfenced is believed, and denounced."""
    adapter = ScriptedAdapter()
    adapter.on("a", Step(Done(), fence=False))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert [r.levelno for r in caplog.records if r.__dict__.get("event") == "adapter.misuse"] == [logging.ERROR]


async def test_a_kind_that_writes_nothing_needs_no_fence(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A model draft is DONE without a fence and without a complaint; its exceptions are retries."""
    adapter = ScriptedAdapter(delivery="writes_nothing")
    adapter.on("a", RuntimeError("boom"), Done())
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: len(adapter.calls) == 1)
    await drain(executor, world.clock)
    action = await ended(outbox, asked.id)
    assert (outcome(action), action.write_started_at) == (("DONE", "CONFIRMED"), None)
    assert [r for r in caplog.records if r.__dict__.get("event") == "adapter.misuse"] == []


async def test_one_warning_line_per_uncertain_end(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An UNCERTAIN end is one warning with id, kind and reason, whoever logs what else."""
    adapter = ScriptedAdapter()
    adapter.on("a", Uncertain("no answer"))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await ended(outbox, asked.id)
    await until(lambda: any(r.__dict__.get("event") == "action.ended.uncertain" for r in caplog.records))
    [line] = [record for record in caplog.records if record.__dict__.get("event") == "action.ended.uncertain"]
    assert (line.levelno, line.__dict__["event_action_id"]) == (logging.WARNING, asked.id)
    assert line.__dict__["event_action_kind"] == "scripted"
    assert line.__dict__["event_reason"] == "no answer"


async def test_the_warning_of_a_lost_executor_says_what_it_means(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody gave a reason for this end, so its warning says what its stop reason means."""
    outbox = await world.outbox(ScriptedAdapter())
    asked = await outbox.enqueue(request())
    world.taken("dead", 1000)
    world.sql("UPDATE agent_action SET write_started_at = ?", world.clock.milliseconds)
    await world.passes(1.1)
    await world.executor(outbox)
    await ended(outbox, asked.id)
    await until(lambda: any(r.__dict__.get("event") == "action.ended.uncertain" for r in caplog.records))
    [line] = [record for record in caplog.records if record.__dict__.get("event") == "action.ended.uncertain"]
    assert line.__dict__["event_reason"] == MEANINGS[StopReason.LEASE_LOST_AFTER_WRITE]


@pytest.mark.parametrize(("delivery", "end"), [("at_most_once", "refused"), ("reads_back", "given")])
async def test_a_second_begin_write(world: World, delivery: str, end: str) -> None:
    """One attempt of an at-most-once kind has one fence; other kinds get a new window of the same fence."""
    windows: list[WriteWindow] = []

    async def twice(attempt: Attempt[Any]) -> Result:
        windows.append(await attempt.begin_write())
        try:
            windows.append(await attempt.begin_write())
        except SecondWrite:
            return Done("refused")
        return Done("given")

    adapter = ScriptedAdapter(delivery=delivery)
    adapter.on("a", Step(twice, fence=False))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    assert (await ended(outbox, asked.id)).readback_ref == end
    assert len(windows) == (1 if end == "refused" else 2)


async def test_a_swallowed_second_write_keeps_the_first_fence(world: World) -> None:
    """An adapter that dies of its second fence dies after the first: the action is never written again."""

    async def twice(attempt: Attempt[Any]) -> Result:
        await attempt.begin_write()
        await attempt.begin_write()
        return Done()

    adapter = ScriptedAdapter()
    adapter.on("a", Step(twice, fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    assert outcome(await ended(outbox, asked.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")
    await drain(executor, world.clock)
    assert len(adapter.calls) == 1


async def test_a_swallowed_refusal_is_believed_but_denounced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An adapter that writes although its fence was refused says DONE; it is not sent again."""

    async def stubborn(attempt: Attempt[Any]) -> Result:
        await world.passes(10.0)
        try:
            await attempt.begin_write()
        except FenceRefused:
            return Done("sent all the same")
        return Done("was not refused")

    adapter = ScriptedAdapter()
    adapter.on("a", Step(stubborn, fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(expires_at=world.clock.milliseconds + 5000))
    action = await ended(outbox, asked.id)
    await drain(executor, world.clock)
    assert (outcome(action), action.readback_ref) == (("DONE", "CONFIRMED"), "sent all the same")
    assert len(adapter.calls) == 1
    assert any(r.__dict__.get("event") == "adapter.misuse" for r in caplog.records)


async def test_a_swallowed_refusal_of_a_machine_that_slept_is_believed_too(world: World) -> None:
    """Also when the machine slept between fence and call: what the adapter says it wrote is not written again."""

    async def stubborn(attempt: Attempt[Any]) -> Result:
        begin = outbox.storage.begin_write

        async def asleep(*args: Any) -> Any:
            answer = await begin(*args)
            await world.passes(3600.0)
            return answer

        outbox.storage.begin_write = asleep  # type: ignore[method-assign, assignment]
        try:
            await attempt.begin_write()
        except FenceRefused:
            return Done("sent all the same")
        return Done("was not refused")

    adapter = ScriptedAdapter()
    adapter.on("a", Step(stubborn, fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    assert (await the(outbox, asked.id)).readback_ref == "sent all the same"


class Picky(BaseModel):
    """A payload whose validators misbehave on demand."""

    mood: str = ""

    @field_validator("mood")
    @classmethod
    def _judge(cls, mood: str) -> str:
        if mood == "raises":
            raise RuntimeError("a validator's own bug")
        if mood == "refuses":
            raise ValueError("not today")
        return mood


async def test_an_invalid_payload_by_sql_ends_and_the_lane_goes_on(world: World) -> None:
    """A row that another program inserted wrong ends FAILED INVALID_PAYLOAD; the next in its lane runs."""
    adapter = ScriptedAdapter(variants=one(Picky))
    outbox = await world.outbox(adapter)
    world.sql(
        "INSERT INTO agent_action (kind, idempotency_key, payload, lane_key) VALUES ('scripted', 'bad', ?, 'lane')",
        '{"mood": 7}',
    )
    behind = await outbox.enqueue(request("good", lane_key="lane"))
    await world.executor(outbox)
    assert outcome(await ended(outbox, behind.id)) == ("DONE", "CONFIRMED")
    bad = await outbox.get(key="bad")
    assert bad is not None
    assert outcome(bad) == ("FAILED", "INVALID_PAYLOAD")
    assert adapter.writes == ["good"]


POISON = {
    "a number of 5000 digits": '{"mood": ' + "1" * 5000 + "}",
    "nested 900 deep": '{"mood": ' + "[" * 900 + "]" * 900 + "}",
    "a key twice": '{"mood": "a", "mood": "b"}',
    "a lone surrogate": '{"mood": "\\ud800"}',
    "a validator that breaks": '{"mood": "raises"}',
    "1e999": '{"mood": 1e999}',
}


@pytest.mark.parametrize("payload", POISON.values(), ids=POISON.keys())
async def test_a_poisonous_row_stalls_nobody(world: World, payload: str) -> None:
    """However broken a row is that SQL put there, it ends FAILED, its lane goes on, and so does everybody else."""
    adapter = ScriptedAdapter(variants=one(Picky), max_attempts=1)
    outbox = await world.outbox(adapter)
    insert = "INSERT INTO agent_action (kind, idempotency_key, payload, lane_key) VALUES ('scripted', 'bad', ?, 'lane')"
    if world.stores(payload):
        world.sql(insert, payload)
    else:
        with pytest.raises(DATABASE_ERRORS):
            world.sql(insert, payload)
        return
    behind = await outbox.enqueue(request("behind", lane_key="lane"))
    beside = await outbox.enqueue(request("beside"))
    await world.executor(outbox)
    assert outcome(await ended(outbox, beside.id)) == ("DONE", "CONFIRMED")
    assert outcome(await ended(outbox, behind.id)) == ("DONE", "CONFIRMED")
    bad = await outbox.get(key="bad")
    assert bad is not None
    assert bad.state is State.FAILED


async def test_an_invalid_payload_is_refused_at_enqueue(world: World) -> None:
    """With the adapter at hand a wrong payload is refused, naming the field, and nothing is stored."""
    outbox = await world.outbox(ScriptedAdapter(variants=one(Picky)))
    with pytest.raises(InvalidPayload, match="mood"):
        await outbox.enqueue(request(payload={"mood": 7}))
    assert (await outbox.list()).actions == ()
