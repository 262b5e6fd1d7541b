"""Calls that are sent again with the same id, in time and too late, seen from one attempt."""

from collections.abc import Callable

import pytest

from edgeoutbox.results import Defer, Done, Reread, Uncertain
from edgeoutbox.testing.attempt import CREATED_AT
from edgeoutbox_webhook import Endpoint, WebhookAdapter
from edgeoutbox_webhook.testing import TEST_SECRET, Answer, Lost, WebhookReceiver
from tests.adapters.webhook_building import NOWHERE, WaitingAttempt, a_call, an_attempt, repeatable

LATEST = 85_476_000
"""Milliseconds after the first write in which a call that is deduplicated for a day may be sent again."""


async def test_a_call_is_sent_again_with_its_id_and_counts_once() -> None:
    """The answer is lost, the repeat is recognised, and the result is DONE."""
    async with WebhookReceiver(Lost(), deduplicates=True) as receiver:
        adapter = repeatable(receiver)
        first = await adapter.execute(an_attempt())
        second = await adapter.execute(an_attempt(inherited_write_at=CREATED_AT))
    assert isinstance(first, Reread)
    assert isinstance(second, Done)
    assert [request.webhook_id for request in receiver.received] == receiver.effects * 2


@pytest.mark.parametrize(
    ("age", "sends"), [(0, True), (LATEST - 1, True), (LATEST, False), (LATEST * 9, False), (-1, False)]
)
async def test_the_time_counts_from_the_first_write(age: int, sends: bool) -> None:
    """In time it is sent; from the last moment on it ends UNCERTAIN, and so it does when the clock makes no sense."""
    async with WebhookReceiver() as receiver:
        attempt = an_attempt(inherited_write_at=CREATED_AT - age)
        result = await repeatable(receiver).execute(attempt)
        assert receiver.connections == sends
    assert isinstance(result, Done if sends else Uncertain)
    assert attempt.writes == sends


class Later(WaitingAttempt):
    """An attempt whose fence was stored long after it was claimed."""

    after: int = 0

    @property
    def write_started_at(self) -> int | None:
        """When the fence was stored."""
        return CREATED_AT + self.after if self.writes else None


@pytest.mark.parametrize(("after", "sends"), [(999, True), (1000, False)])
async def test_the_moment_of_the_fence_decides(after: int, sends: bool) -> None:
    """When the time runs out between the claim and the fence, nothing is sent, and the answer is UNCERTAIN."""
    async with WebhookReceiver() as receiver:
        attempt = Later(a_call(), an_attempt().action, inherited_write_at=CREATED_AT - LATEST + 1000)
        attempt.after = after
        result = await repeatable(receiver).execute(attempt)
        await receiver.idle()
        assert len(receiver.received) == sends
    assert isinstance(result, Done if sends else Uncertain)


async def test_an_endpoint_that_cannot_be_reached_again_does_not_wait_past_its_time() -> None:
    """Every wait under an earlier fence leaves room for another try, until there is no time left."""
    adapters: dict[str, Callable[[], WebhookAdapter]] = {
        "unreachable": lambda: WebhookAdapter(
            {"billing": _refusing(), "no": NOWHERE}, delivery="repeatable", deduplicates_for="24h"
        ),
        "unknown": lambda: WebhookAdapter({"no": NOWHERE}, delivery="repeatable", deduplicates_for="24h"),
    }
    for name, make in adapters.items():
        soon = await make().execute(an_attempt(inherited_write_at=CREATED_AT - LATEST + 60_000))
        over = await make().execute(an_attempt(inherited_write_at=CREATED_AT - LATEST))
        assert isinstance(soon, Defer), name
        assert (soon.scope, soon.wait) == ("action", 15.0), name
        assert isinstance(over, Uncertain), name


def _refusing() -> Endpoint:
    return Endpoint("http://127.0.0.1:1/", secrets=[TEST_SECRET], allow_private=True)


async def test_too_many_calls_while_repeating_keep_the_fence() -> None:
    """A 429 is a deferral, which gives nothing back under an earlier fence."""
    async with WebhookReceiver(Answer(429, {"Retry-After": "30"})) as receiver:
        result = await repeatable(receiver).execute(an_attempt(inherited_write_at=CREATED_AT))
    assert isinstance(result, Defer)
    assert result.wait == 30.0


class Timeless(WaitingAttempt):
    """An attempt that does not say when its fence was stored."""

    @property
    def write_started_at(self) -> int | None:
        """Not told."""
        return None


async def test_an_attempt_that_tells_no_times_goes_by_its_claim() -> None:
    """Where the fence does not say when it was stored, the moment of the claim counts."""
    async with WebhookReceiver() as receiver:
        late = Timeless(a_call(), an_attempt().action, inherited_write_at=CREATED_AT - LATEST)
        in_time = Timeless(a_call(), an_attempt().action, inherited_write_at=CREATED_AT - LATEST + 1)
        assert isinstance(await repeatable(receiver).execute(late), Uncertain)
        assert isinstance(await repeatable(receiver).execute(in_time), Done)
