"""What each answer of an endpoint leads to: the rows of the table, and every way to give no answer."""

import asyncio
import itertools
from functools import partial

import pytest

from edgeoutbox.results import Cancelled, Defer, Done, Failed, Reread, Result, Retry, Uncertain
from edgeoutbox.states import StopReason
from edgeoutbox.testing.attempt import CREATED_AT
from edgeoutbox_webhook.answers import Meaning, meaning
from edgeoutbox_webhook.testing import Answer, Drop, Endless, Hang, Lost, Step, WebhookReceiver, redirect
from tests.adapters.webhook_building import NOWHERE, an_adapter, an_attempt, repeatable

TAKEN = (200, 201, 202, 204, 207, 299)
REFUSED = (400, 401, 403, 404, 405, 410, 413, 415, 422)
REDIRECTED = (300, 301, 302, 304, 305, 307, 308)
UNKNOWN = (303, 402, 406, 408, 409, 411, 418, 421, 425, 426, 451, 499, 500, 501, 502, 503, 504, 599, 600, 999)


async def result_of(step: Step, *, again: bool = False, earlier: bool = False, window: float = 60.0) -> Result:
    """The result of one attempt that meets this; `again`: of a repeatable kind."""
    async with WebhookReceiver(step) as receiver:
        adapter = (repeatable if again else an_adapter)(receiver)
        attempt = an_attempt(window=window, inherited_write_at=CREATED_AT if earlier else None)
        result = await adapter.execute(attempt)
    assert attempt.writes == 1
    return result


@pytest.mark.parametrize("status", TAKEN)
async def test_success_is_done(status: int) -> None:
    """Every 2xx confirms the call, and its id is the reference to it."""
    result = await result_of(Answer(status))
    assert isinstance(result, Done)
    assert result.readback_ref == result.evidence["webhook_id"]
    assert result.evidence["status"] == status


@pytest.mark.parametrize("status", [*REFUSED, *REDIRECTED])
async def test_a_refusal_is_failed(status: int) -> None:
    """These say that the call was not taken; 410 says that nobody is there any more."""
    result = await result_of(Answer(status))
    assert isinstance(result, Failed)
    assert result.stop_reason is (StopReason.UNDELIVERABLE if status == 410 else StopReason.REJECTED)
    assert str(status) in result.reason


@pytest.mark.parametrize("status", UNKNOWN)
async def test_an_answer_that_proves_nothing_is_a_doubt(status: int) -> None:
    """At most once it ends UNCERTAIN; where ids are deduplicated it is sent again."""
    assert isinstance(await result_of(Answer(status)), Uncertain)
    assert isinstance(await result_of(Answer(status), again=True), Reread)


def test_no_status_is_both_proof_and_doubt() -> None:
    """Over every number that a status line can hold, what is not listed here proves nothing."""
    listed = {*range(200, 300), *REFUSED, *REDIRECTED, 429}
    assert all((meaning(status) is Meaning.UNKNOWN) == (status not in listed) for status in range(1000))


async def test_a_redirect_is_not_followed() -> None:
    """The place that it names gets nothing, whatever the status."""
    async with WebhookReceiver() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            await result_of(redirect(elsewhere.url, status))
    assert elsewhere.connections == 0


NO_ANSWERS: dict[str, Step] = {
    "lost": Lost(),
    "lost after it was taken and half a status line": Lost(b"HTTP/1.1 20"),
    "lost in the headers": Lost(b"HTTP/1.1 200 OK\r\nContent-"),
    "no status": Lost(b"HTTP/1.1\r\n\r\n"),
    "a status of two digits": Lost(b"HTTP/1.1 20 OK\r\n\r\n"),
    "no http": Lost(b"220 mail.example ESMTP\r\n"),
    "bytes": Lost(bytes(range(256))),
    "a header without end": Lost(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000),
    "headers without end": Lost(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000),
    "only a promise to go on": Lost(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "another protocol": Lost(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    "nothing": Hang(),
}


@pytest.mark.parametrize("step", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_no_valid_answer_is_a_doubt(step: Step) -> None:
    """Cut, hung or garbage: it may have been taken, whatever the client library calls it."""
    window = 0.3 if isinstance(step, Hang) else 60.0
    assert isinstance(await result_of(step, window=window), Uncertain)
    assert isinstance(await result_of(step, again=True, window=window), Reread)


@pytest.mark.parametrize(
    "step",
    [
        Endless(),
        Answer(200, body=b"x" * 3_000_000),
        Answer(200, {"Content-Encoding": "gzip"}, b"not gzip"),
        Answer(200, {"Content-Length": "100"}),
    ],
    ids=["endless", "large", "badly compressed", "cut"],
)
async def test_the_body_of_an_answer_does_not_count(step: Step) -> None:
    """The status is the answer; what follows it is read a little, for politeness, and never decides."""
    assert isinstance(await result_of(step), Done)


async def test_a_body_that_hangs_costs_little_time() -> None:
    """It is given a second of a window of sixty."""
    async with asyncio.timeout(10.0):
        assert isinstance(await result_of(Hang(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")), Done)


async def test_a_body_without_end_is_read_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much time there is for it, only its beginning is read."""
    monkeypatch.setattr("edgeoutbox_webhook.exchange._READING", 60.0)
    async with asyncio.timeout(10.0):
        assert isinstance(await result_of(Endless()), Done)


async def test_nothing_after_its_headers_takes_an_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the time is up just as the answer has come."""

    async def late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("edgeoutbox_webhook.exchange._take_leave", late)
    assert isinstance(await result_of(Answer(200)), Done)


def _has_spoken(receiver: WebhookReceiver, step: Drop) -> bool:
    """Whether the receiver has done its first step: said what it says, or ended the connection."""
    return step not in receiver.script and (bool(step.says) or not receiver._sessions)


async def test_what_is_said_before_the_call_is_no_answer_to_it() -> None:
    """An endpoint that confirms before it was asked has confirmed nothing, and nothing is sent to it."""
    early = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    for step in (Drop(), Drop(early)):
        async with WebhookReceiver(step, Answer()) as receiver:
            attempt = an_attempt(until=partial(_has_spoken, receiver, step))
            result = await an_adapter(receiver).execute(attempt)
            assert isinstance(result, Retry), step
            assert receiver.received == []


async def test_nothing_sent_keeps_an_earlier_fence() -> None:
    """That this call was not sent says nothing of the one before, so it is put off instead of given back."""
    step = Drop()
    async with WebhookReceiver(step) as receiver:
        attempt = an_attempt(until=partial(_has_spoken, receiver, step), inherited_write_at=CREATED_AT)
        result = await repeatable(receiver).execute(attempt)
    assert isinstance(result, Defer)
    assert result.scope == "action"


@pytest.mark.parametrize("status", [*REFUSED, *REDIRECTED])
async def test_a_refused_repeat_is_a_doubt(status: int) -> None:
    """The endpoint refuses now, which says nothing about the earlier call: it may have been taken."""
    result = await result_of(Answer(status), again=True, earlier=True)
    assert isinstance(result, Uncertain)
    assert "earlier" in result.reason


@pytest.mark.parametrize(("header", "wait"), [({"Retry-After": "7"}, 7.0), ({}, 60.0), ({"Retry-After": "soon"}, 60.0)])
async def test_too_many_calls_are_put_off_as_the_endpoint_asks(header: dict[str, str], wait: float) -> None:
    """A 429 rests the kind of one endpoint for the given time, without spending an attempt."""
    result = await result_of(Answer(429, header))
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", wait)


async def test_without_a_time_a_429_waits_longer_each_time() -> None:
    """The wait doubles with each deferral of the action, up to four hours."""
    waits = []
    for deferrals in (0, 1, 2, 30):
        async with WebhookReceiver(Answer(429)) as receiver:
            attempt = an_attempt(action={"epoch": 3 + deferrals, "attempt": 3})
            result = await an_adapter(receiver).execute(attempt)
        assert isinstance(result, Defer)
        waits.append(result.wait)
    assert waits == [60.0, 120.0, 240.0, 14_400.0]


async def test_a_5xx_says_when_to_repeat() -> None:
    """For a repeatable kind its Retry-After counts, and never exceeds what is left of the time."""
    result = await result_of(Answer(503, {"Retry-After": "120"}), again=True)
    assert isinstance(result, Reread)
    assert result.wait is not None
    assert 120.0 <= result.wait <= 132.0
    late = await result_of(Answer(503, {"Retry-After": "99999999"}), again=True, earlier=True)
    assert isinstance(late, Reread)
    assert late.wait is not None
    assert late.wait <= 14_400.0 * 1.1


async def test_one_endpoint_that_asks_for_rest_does_not_hold_up_the_others() -> None:
    """With several endpoints a 429 puts off the action, and what follows for that endpoint, not the kind."""
    async with WebhookReceiver(Answer(429, {"Retry-After": "600"})) as busy, WebhookReceiver() as free:
        adapter = an_adapter(busy, endpoints={"billing": busy.endpoint(), "crm": free.endpoint(), "no": NOWHERE})
        first = await adapter.execute(an_attempt())
        second = await adapter.execute(an_attempt())
        other = await adapter.execute(an_attempt(an_attempt().payload.model_copy(update={"endpoint": "crm"})))
    assert isinstance(first, Defer)
    assert isinstance(second, Defer)
    assert first.scope == second.scope == "action"
    for deferred in (first, second):
        assert deferred.wait is not None
        assert 600.0 <= deferred.wait <= 660.0
    assert busy.connections == 1
    assert isinstance(other, Done)


async def test_no_result_holds_what_was_sent_or_said() -> None:
    """Evidence and reasons are our own words and codes: nothing of the payload, the URL or the answer."""
    secret_words = (b"hunter2", "hunter2")
    answers: list[Step] = [
        Answer(status, {"Location": "hunter2", "Retry-After": "hunter2"}, secret_words[0])
        for status in (200, 400, 410, 307, 429, 500)
    ]
    for step, again in itertools.product([*answers, Lost(b"hunter2")], [False, True]):
        result = await result_of(step, again=again)
        assert not isinstance(result, Cancelled)
        assert "hunter2" not in repr(result)
        assert "hook" not in repr(result).replace("webhook", "")
        assert "paid" not in repr(result)
