"""P12: payloads, secrets and addresses appear in no log line, metric, error or stored error text."""

import asyncio
import json
import logging
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from edgeoutbox import (
    Attempt,
    Defer,
    Done,
    EdgeoutboxError,
    EndedAction,
    Failed,
    Reread,
    Result,
    Retry,
    StopReason,
    Transaction,
    Uncertain,
    one,
)
from edgeoutbox.testing import HookedAdapter, ScriptedAdapter, Step, drain, until
from tests.executor.world import World, request, sqlite_only

SECRET = "s3cret-jane@example.org"  # noqa: S105 - nobody's


class Letter(BaseModel):
    """A payload with validators that say too much."""

    to: str = ""
    headers: dict[str, str] = {}
    count: int = 0

    @field_validator("to")
    @classmethod
    def _judge(cls, to: str) -> str:
        if to.startswith("refused:"):
            raise ValueError(f"cannot write to {to}")
        if to.startswith("asserted:"):
            raise AssertionError(f"cannot write to {to}")
        if to.startswith("broken:"):
            raise RuntimeError(f"cannot write to {to}")
        return to


class LetterAdapter(ScriptedAdapter):
    """Its settings hold a secret."""

    def settings(self) -> str:
        """A password."""
        return SECRET


def everything_stored(world: World) -> str:
    """Every text in the database but the payloads and subjects of open actions, which are what the tables are for."""
    texts = []
    for table in ("agent_action_attempt", "agent_action_kind", "agent_action_executor", "agent_action_ended"):
        texts += world.sql(f"SELECT * FROM {table}")  # noqa: S608 - our own names
    texts += world.sql("SELECT last_error, readback_ref, decision_note, stop_reason FROM agent_action")
    texts += world.sql("SELECT * FROM agent_action WHERE ended_at IS NOT NULL")
    return repr(texts)


def everything_logged(caplog: pytest.LogCaptureFixture) -> str:
    """Every record with all that hangs on it: message, arguments, extras and traceback.

    aiosqlite's own debug lines, which it writes for every statement of every program, are not ours.
    """
    formatter = logging.Formatter()
    ours = [record for record in caplog.records if record.name != "aiosqlite"]
    return "\n".join(f"{formatter.format(record)} {record.__dict__!r}" for record in ours)


async def raises_in_a_chain(attempt: Attempt[Any]) -> Result:
    """An exception whose cause and message name the payload."""
    try:
        raise KeyError(SECRET)  # noqa: TRY301 - a cause is what this is about
    except KeyError as error:
        raise RuntimeError(f"cannot send {attempt.payload}") from error


class Leaky(Exception):
    """An exception that is all secret."""

    def __str__(self) -> str:
        return SECRET

    def __repr__(self) -> str:
        return SECRET


STEPS: dict[str, Step] = {
    "exception-before": Step(Leaky(SECRET), fence=False),
    "exception-behind": Step(Leaky(SECRET)),
    "chain": Step(raises_in_a_chain),
    "os-error": Step(OSError(110, SECRET, SECRET)),
    "done": Step(Done("msg-1")),
    "retry": Step(Retry("421")),
    "defer": Step(Defer("450", wait=1.0)),
    "reread": Step(Reread("no answer")),
    "uncertain": Step(Uncertain("no answer")),
    "failed": Step(Failed(StopReason.REJECTED, "550")),
    "hangs": Step(hangs=True),
}


async def test_p12_nothing_private_is_logged_counted_or_stored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Every kind of end, with secrets in payload, subject, settings and exceptions: none shows anywhere."""
    caplog.set_level(logging.DEBUG)

    failing = [True]

    async def hook(_: EndedAction, __: Transaction) -> None:
        if failing:
            failing.pop()
            raise Leaky(SECRET)

    hooked = HookedAdapter(hook, kind="hooked", variants=one(Letter))
    adapter = LetterAdapter(variants=one(Letter), max_attempts=2)
    outbox = await world.outbox(adapter, hooked)
    for key, step in STEPS.items():
        adapter.on(key, step)
        await outbox.enqueue(
            request(key, payload={"to": SECRET, "headers": {SECRET: SECRET}}, subject_account_id=SECRET)
        )
    await outbox.enqueue(request("hook", kind="hooked", payload={"to": SECRET}))
    for key, payload in {
        "refused": {"to": f"refused:{SECRET}"},
        "asserted": {"to": f"asserted:{SECRET}"},
        "broken": {"to": f"broken:{SECRET}"},
        "a key of a mapping": {"headers": {SECRET: 7}},
        "no number": {"count": SECRET},
        "another type": {"to": [SECRET]},
    }.items():
        world.sql(
            "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('scripted', ?, ?)",
            key,
            json.dumps(payload),
        )
    world.sql(
        "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('scripted', 'twice', ?)",
        f'{{"to": "{SECRET}", "to": "{SECRET}"}}',
    )
    executor = await world.executor(outbox)
    await adapter.wait_for_writes("hangs")
    await until(lambda: executor.metrics.total("action.attempts") >= len(STEPS))
    await world.passes(70.0)
    await drain(executor, world.clock)
    assert SECRET not in everything_logged(caplog)
    assert SECRET not in repr(executor.metrics.snapshot())
    [(left,)] = world.sql("SELECT COUNT(*) FROM agent_action WHERE ended_at IS NULL")
    assert left == 0
    world.sql("DELETE FROM agent_action WHERE subject_account_id IS NOT NULL")
    assert SECRET not in everything_stored(world)


@pytest.mark.parametrize(
    "payload",
    [
        {"to": [SECRET]},
        {"count": SECRET},
        {SECRET: 1},
        {"headers": {SECRET: 7}},
        {"to": SECRET + "\0"},
        {"to": SECRET + "\ud800"},
        {SECRET + "\0": 1},
    ],
    ids=range(7),
)
async def test_p12_a_refused_enqueue_names_no_value(world: World, payload: dict[str, Any]) -> None:
    """What is wrong with a payload is said without any of its values."""
    outbox = await world.outbox(ScriptedAdapter(variants=one(Letter)))
    with pytest.raises(EdgeoutboxError) as raised:
        await outbox.enqueue(request(payload=payload))
    shown = repr(raised.value) + str(raised.value) + repr(raised.value.__cause__)
    values = [value for value in payload.values() if value != 1] or [SECRET + "\0"]
    assert str(values[0]) not in shown
    if not any(SECRET in key for key in payload) and "headers" not in payload:
        assert SECRET not in shown


async def test_p12_reprs_show_no_payload(world: World) -> None:
    """An action and its attempt can be printed: payload and subject are not part of it."""
    outbox = await world.outbox()
    asked = await outbox.enqueue(request(payload={"to": SECRET}, subject_account_id=SECRET))
    assert SECRET not in repr(await outbox.get(asked.id))
    assert SECRET not in repr(await outbox.list())


async def test_p12_an_unforeseen_error_tells_no_secret(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An error that nobody foresaw is one line with its type, and the executor goes on when it is over."""
    outbox, _ = await world.running(ScriptedAdapter())
    claim = outbox.storage.claim
    failed = asyncio.Event()

    async def broken(*_: Any, **__: Any) -> Any:
        failed.set()
        raise Leaky(SECRET)

    outbox.storage.claim = broken  # type: ignore[method-assign]
    outbox.wake()
    await failed.wait()
    outbox.storage.claim = claim  # type: ignore[method-assign]
    asked = await outbox.enqueue(request())
    assert (await outbox.wait(asked.id, 10.0)).state == "DONE"
    events = [record.__dict__.get("event") for record in caplog.records]
    assert (events.count("storage.unavailable"), events.count("storage.available")) == (1, 1)
    assert SECRET not in everything_logged(caplog)


@sqlite_only("Postgres refuses this payload when it comes")
async def test_p12_a_key_of_an_unreadable_payload_is_not_stored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A NUL that an escape hides ends the action, and its field's name is nobody's business."""
    outbox, executor = await world.running(ScriptedAdapter())
    world.sql(
        "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('scripted', 'k', ?)",
        json.dumps({SECRET: "\0"}),
    )
    await drain(executor, world.clock)
    action = await outbox.get(key="k")
    assert action is not None
    assert (action.state, action.stop_reason) == ("FAILED", "INVALID_PAYLOAD")
    assert SECRET not in f"{action.last_error} {everything_logged(caplog)}"
