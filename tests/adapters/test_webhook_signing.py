"""Ids, signatures and bodies: what every attempt sends."""

import base64
import json

import pytest
from standardwebhooks import Webhook as SecondImplementation
from standardwebhooks import WebhookVerificationError

from edgeoutbox.errors import ConfigurationError, InvalidPayload
from edgeoutbox.results import Done, Failed
from edgeoutbox.states import StopReason
from edgeoutbox_webhook import Endpoint, Webhook
from edgeoutbox_webhook.signing import webhook_id
from edgeoutbox_webhook.testing import Answer, Lost, Received, WebhookReceiver
from tests.adapters.webhook_building import a_call, an_adapter, an_attempt, repeatable

OLD = "whsec_" + base64.b64encode(b"o" * 24).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 64).decode()


async def sent(call: Webhook, *secrets: str) -> Received:
    """What reaches a receiver with these secrets."""
    async with WebhookReceiver(secrets=secrets) as receiver:
        result = await an_adapter(receiver).execute(an_attempt(call))
    assert isinstance(result, Done)
    return receiver.received[0]


async def test_a_second_implementation_verifies_the_call() -> None:
    """The signature, the id and the timestamp are those that the Standard Webhooks library asks for."""
    call = a_call(body={"name": "Zoë 😀", "amount": 12.5, "nested": {"b": [1, None], "a": "\n"}})
    request = await sent(call, OLD)
    assert SecondImplementation(OLD).verify(request.body, dict(request.headers)) == call.body
    with pytest.raises(WebhookVerificationError):
        SecondImplementation(NEW).verify(request.body, dict(request.headers))
    with pytest.raises(WebhookVerificationError):
        SecondImplementation(OLD).verify(request.body + b" ", dict(request.headers))


async def test_while_secrets_rotate_each_of_them_verifies() -> None:
    """Two secrets sign the same call, newest first, separated by a space."""
    request = await sent(a_call(), NEW, OLD)
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    for secret in (NEW, OLD):
        SecondImplementation(secret).verify(request.body, dict(request.headers))


async def test_every_attempt_sends_the_same_id_and_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the timestamp and the signature over it differ between attempts of an action."""
    async with WebhookReceiver(Lost(), Answer()) as receiver:
        for moment in (1_800_000_000.0, 1_800_000_700.0):
            monkeypatch.setattr("edgeoutbox_webhook.adapter.time.time", lambda moment=moment: moment)
            await repeatable(receiver).execute(an_attempt(a_call(body={"b": 1, "a": 2})))
            monkeypatch.undo()
    first, second = receiver.received
    changing = {"webhook-timestamp", "webhook-signature"}
    assert first.body == second.body == b'{"a":2,"b":1}'
    assert {name for name in first.headers if first.headers[name] != second.headers[name]} == changing
    assert (first.headers["webhook-timestamp"], second.headers["webhook-timestamp"]) == ("1800000000", "1800000700")


def test_an_id_depends_on_kind_endpoint_and_key_and_tells_nothing_of_them() -> None:
    """It is a hash with a fixed value, so that no later version sends another id for the same action."""
    given = webhook_id("webhook", "billing", "order:42:paid")
    assert given == "msg_5dc64d3f7aaaf04b5b3e2b63c8c73fb4e047d63a"
    others = {webhook_id("hook", "billing", "order:42:paid"), webhook_id("webhook", "crm", "order:42:paid")}
    assert given not in others | {webhook_id("webhook", "billing", "order:43:paid")}
    assert "order" not in given


async def test_a_type_puts_the_body_into_the_recommended_envelope() -> None:
    """Type, time of the action and data; the time does not change between attempts."""
    request = await sent(a_call(type="invoice.paid"), OLD)
    assert json.loads(request.body) == {
        "type": "invoice.paid",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "data": {"order": 42, "paid": True},
    }


async def test_a_body_that_json_cannot_hold_is_refused_before_anything_is_opened() -> None:
    """At enqueue it is an error for the caller; a row that another program wrote ends FAILED."""
    impossible = a_call(body={"amount": float("nan")})
    async with WebhookReceiver() as receiver:
        adapter = an_adapter(receiver)
        with pytest.raises(InvalidPayload, match="body: "):
            await adapter.prepare(impossible)
        result = await adapter.execute(an_attempt(impossible))
    assert isinstance(result, Failed)
    assert result.stop_reason is StopReason.INVALID_PAYLOAD
    assert receiver.connections == 0


async def test_a_header_cannot_be_injected() -> None:
    """Nothing of a payload or a key gets into a header as it is."""
    async with WebhookReceiver() as receiver:
        action = {"idempotency_key": "a\r\nx-evil: 1"}
        await an_adapter(receiver).execute(an_attempt(a_call(body={"a\r\nx-evil": "1\r\n\r\n"}), action=action))
    assert set(receiver.received[0].headers) == {
        *("host", "content-type", "content-length", "connection", "user-agent"),
        *("webhook-id", "webhook-timestamp", "webhook-signature"),
    }


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "hunter2",
        "whsec_hunter2",
        OLD.removeprefix("whsec_"),
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        OLD + "\n",
        "whsec_ü" + "A" * 40,
    ],
)
def test_a_secret_that_is_none_is_refused(secret: str) -> None:
    """A secret has its prefix, is base64 and is long enough; the message shows nothing of it."""
    with pytest.raises(ConfigurationError, match="secrets: a secret is whsec_") as refused:
        Endpoint("https://billing.example", secrets=[secret])
    assert "hunter2" not in str(refused.value)
