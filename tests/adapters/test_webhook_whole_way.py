"""Webhooks from enqueue to the end of their action, through outbox, executor and database."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from edgeoutbox import Action, ActionRequest, Executor, InvalidPayload, Outbox, State, StopReason
from edgeoutbox.testing import MovableClock, drain
from edgeoutbox_webhook import Endpoint, WebhookAdapter
from edgeoutbox_webhook.testing import TEST_SECRET, Answer, Hang, Lost, WebhookReceiver
from tests.adapters.webhook_building import an_adapter, repeatable
from tests.conftest import OpenOutbox


@pytest.fixture(autouse=True)
def _brisk_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reap fifty times a second, so that no test waits for the next full one."""
    monkeypatch.setattr("edgeoutbox.executor.upkeep.TICK", 0.02)


def a_request(key: str = "order:42:paid", **fields: Any) -> ActionRequest:
    """A call to `billing` in its natural lane."""
    payload = {"endpoint": "billing", "body": {"order": 42, "amount": 12.5}}
    usual: dict[str, Any] = {"kind": "webhook", "idempotency_key": key, "lane_key": "webhook:billing"}
    return ActionRequest(**{**usual, "payload": payload, **fields})


@asynccontextmanager
async def running(
    open_outbox: OpenOutbox, clock: MovableClock, adapter: WebhookAdapter
) -> AsyncIterator[tuple[Outbox, Executor]]:
    """An outbox with a running executor of the adapter."""
    outbox = await open_outbox(adapter)
    clock.on_move(outbox.wake)
    async with AsyncExitStack() as stack:
        yield outbox, await stack.enter_async_context(Executor(outbox, clock=clock))


async def the(outbox: Outbox, action_id: int) -> Action:
    """The action, which must be there."""
    found = await outbox.get(action_id)
    assert found is not None
    return found


async def test_a_call_is_made_and_its_action_is_done(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """One call, verified by the receiver, and an action that keeps the id and no payload."""
    async with WebhookReceiver() as receiver, running(open_outbox, clock, an_adapter(receiver)) as (outbox, executor):
        asked = await outbox.enqueue(a_request())
        await drain(executor, clock)
        action = await the(outbox, asked.id)
        assert asked.validated
        assert (action.state, action.stop_reason, action.payload) == (State.DONE, StopReason.CONFIRMED, None)
        assert [action.readback_ref] == receiver.effects
        assert receiver.received[0].body == b'{"amount":12.5,"order":42}'


async def test_a_call_that_names_no_lane_gets_its_endpoints(open_outbox: OpenOutbox) -> None:
    """The natural lane is the default, and another that is named wins."""
    async with WebhookReceiver() as receiver:
        outbox = await open_outbox(an_adapter(receiver))
        natural = await outbox.enqueue(a_request("a", lane_key=None))
        named = await outbox.enqueue(a_request("b", lane_key="customer:7"))
        assert (await the(outbox, natural.id)).lane_key == "webhook:billing"
        assert (await the(outbox, named.id)).lane_key == "customer:7"


async def test_a_lost_answer_ends_uncertain(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """At most once: the endpoint acted on the call, nobody heard, and it is never sent again."""
    async with (
        WebhookReceiver(Lost()) as receiver,
        running(open_outbox, clock, an_adapter(receiver)) as (outbox, executor),
    ):
        asked = await outbox.enqueue(a_request())
        following = await outbox.enqueue(a_request("order:43:paid"))
        await drain(executor, clock)
        action = await the(outbox, asked.id)
        assert (action.state, action.stop_reason) == (State.UNCERTAIN, StopReason.NO_CONFIRMATION)
        assert (await the(outbox, following.id)).state is State.DONE
        assert len(set(receiver.effects)) == len(receiver.effects) == len(receiver.received) == 2


@pytest.mark.parametrize("lost", [1, 2])  # with more, drain would move the clock by more than an attempt has
async def test_a_lost_answer_is_sent_again_where_ids_are_deduplicated(
    open_outbox: OpenOutbox, clock: MovableClock, lost: int
) -> None:
    """The same id and the same bytes until an answer comes: one effect, and DONE."""
    script = [Lost() for _ in range(lost)]
    async with (
        WebhookReceiver(*script, deduplicates=True) as receiver,
        running(open_outbox, clock, repeatable(receiver)) as (outbox, executor),
    ):
        asked = await outbox.enqueue(a_request())
        await drain(executor, clock)
        action = await the(outbox, asked.id)
        assert (action.state, action.attempt) == (State.DONE, lost + 1)
        assert len(receiver.effects) == 1
        assert {(request.webhook_id, request.body) for request in receiver.received} == {
            (action.readback_ref, receiver.received[0].body)
        }
        assert len(receiver.received) == lost + 1


async def test_after_the_time_of_the_endpoint_nothing_is_sent_again(
    open_outbox: OpenOutbox, clock: MovableClock
) -> None:
    """The endpoint may have forgotten the id, so what would be a repeat could be a second effect."""
    async with (
        WebhookReceiver(Answer(503, {"Retry-After": "3600"}, takes=True), deduplicates=True) as receiver,
        running(open_outbox, clock, repeatable(receiver)) as (outbox, executor),
    ):
        asked = await outbox.enqueue(a_request())
        await executor.until_idle()
        assert (await the(outbox, asked.id)).state is State.EXECUTING
        clock.advance(86_400)
        await drain(executor, clock)
        action = await the(outbox, asked.id)
        assert (action.state, action.stop_reason) == (State.UNCERTAIN, StopReason.NO_CONFIRMATION)
        assert len(receiver.received) == 1


async def test_endless_doubt_ends_with_the_last_attempt(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """An endpoint that never answers well is asked as often as the kind allows, and the action ends UNCERTAIN."""
    script = [Answer(500) for _ in range(5)]
    async with (
        WebhookReceiver(*script) as receiver,
        running(open_outbox, clock, repeatable(receiver, max_attempts=3)) as (outbox, executor),
    ):
        asked = await outbox.enqueue(a_request())
        await drain(executor, clock)
        action = await the(outbox, asked.id)
        assert (action.state, action.stop_reason) == (State.UNCERTAIN, StopReason.READBACK_EXHAUSTED)
        assert len(receiver.received) == 3


async def test_a_429_gives_the_action_back(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """Nothing was taken, so the attempt does not count and the call is made after the wait."""
    async with (
        WebhookReceiver(Answer(429, {"Retry-After": "30"})) as receiver,
        running(open_outbox, clock, an_adapter(receiver)) as (outbox, executor),
    ):
        asked = await outbox.enqueue(a_request())
        started = clock.milliseconds
        await drain(executor, clock)
        action = await the(outbox, asked.id)
        assert (action.state, action.attempt) == (State.DONE, 1)
        assert clock.milliseconds - started >= 30_000


async def test_a_429_while_repeating_keeps_the_fence(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """The earlier call may exist, so the action stays as it is until the repeat was answered."""
    async with (
        WebhookReceiver(Lost(), Answer(429, {"Retry-After": "30"}), deduplicates=True) as receiver,
        running(open_outbox, clock, repeatable(receiver)) as (outbox, executor),
    ):
        asked = await outbox.enqueue(a_request())
        await drain(executor, clock)
        attempts = await outbox.attempts(asked.id)
        assert [attempt.result for attempt in attempts] == ["Reread", "Defer", "Done"]
        assert (await the(outbox, asked.id)).state is State.DONE
        assert len(receiver.effects) == 1


async def test_a_dead_endpoint_leaves_the_others_alone(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """Its action waits without spending an attempt while another endpoint's is done; then it comes through as well."""
    async with WebhookReceiver() as alive, WebhookReceiver() as revived:
        dead = Endpoint("http://127.0.0.1:1/", secrets=[TEST_SECRET], allow_private=True)
        adapter = WebhookAdapter({"billing": dead, "crm": alive.endpoint()})
        async with running(open_outbox, clock, adapter) as (outbox, executor):
            waiting = await outbox.enqueue(a_request())
            other = await outbox.enqueue(
                a_request("crm:1", lane_key="webhook:crm", payload={"endpoint": "crm", "body": {}})
            )
            await executor.until_idle()
            assert (await the(outbox, other.id)).state is State.DONE
            held = await the(outbox, waiting.id)
            assert (held.state, held.attempt) == (State.ADMITTED, 0)
            assert held.due_at - clock.milliseconds >= 900_000
            adapter._endpoints["billing"] = revived.endpoint()
            await drain(executor, clock)
            assert (await the(outbox, waiting.id)).state is State.DONE


async def test_a_stopped_executor_leaves_a_doubt(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """Told to stop in the middle of a call, it records UNCERTAIN at once, and the call is not made again."""
    async with WebhookReceiver(Hang()) as receiver:
        outbox = await open_outbox(an_adapter(receiver))
        async with Executor(outbox, clock=clock, grace=0.05):
            asked = await outbox.enqueue(a_request())
            await receiver.reached()
        action = await the(outbox, asked.id)
        assert (action.state, action.stop_reason) == (State.UNCERTAIN, StopReason.ERROR_AFTER_WRITE)
        async with Executor(outbox, clock=clock) as again:
            await drain(again, clock)
        assert len(receiver.received) == 1


async def test_a_wrong_payload_is_refused_at_enqueue(open_outbox: OpenOutbox, clock: MovableClock) -> None:
    """Nothing is stored of a call that could not be made."""
    async with WebhookReceiver() as receiver, running(open_outbox, clock, an_adapter(receiver)) as (outbox, _):
        with pytest.raises(InvalidPayload, match="endpoint"):
            await outbox.enqueue(a_request(payload={"endpoint": "crm", "body": {}}))
        assert await outbox.get(key="order:42:paid") is None
