"""What the webhook tests arrange: an adapter for receivers on loopback, attempts, and a resolver that is told."""

import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from edgeoutbox.adapter import WriteWindow
from edgeoutbox.testing.attempt import ScriptedAttempt, an_action
from edgeoutbox.testing.clock import until
from edgeoutbox_webhook import Endpoint, Webhook, WebhookAdapter
from edgeoutbox_webhook.testing import TEST_SECRET, WebhookReceiver

NOWHERE = Endpoint("https://nowhere.invalid/hook", secrets=[TEST_SECRET])
"""An endpoint beside the one under test, so that the kind is not of one endpoint alone."""


def an_adapter(receiver: WebhookReceiver, **options: Any) -> WebhookAdapter:
    """An adapter with the receiver as its one endpoint, `billing`, and quick to give up."""
    endpoints = options.pop("endpoints", {"billing": receiver.endpoint()})
    return WebhookAdapter(endpoints, **{"timeout": 5.0, **options})


def repeatable(receiver: WebhookReceiver, **options: Any) -> WebhookAdapter:
    """The same for endpoints that deduplicate for a day."""
    return an_adapter(receiver, **{"delivery": "repeatable", "deduplicates_for": "24h", **options})


def a_call(**fields: Any) -> Webhook:
    """A short call to `billing`."""
    return Webhook(**{"endpoint": "billing", "body": {"order": 42, "paid": True}, **fields})


def an_attempt(payload: Webhook | None = None, **options: Any) -> ScriptedAttempt[Webhook]:
    """An attempt of a short call, or of this payload.

    `action` holds fields of its action; `until` is a condition that its fence waits for.
    """
    fields = {"kind": "webhook", "idempotency_key": "order:42:paid", **options.pop("action", {})}
    condition = options.pop("until", None)
    attempt = WaitingAttempt(payload or a_call(), an_action(**fields), **options)
    attempt.condition = condition
    return attempt


class WaitingAttempt(ScriptedAttempt[Webhook]):
    """An attempt whose fence is stored only once a condition of the test holds."""

    condition: Callable[[], bool] | None = None

    async def begin_write(self) -> WriteWindow:
        """Wait, and give the fence."""
        if self.condition is not None:
            await until(self.condition)
        return await super().begin_write()


class ToldResolver(AbstractResolver):
    """Answers each question with the next list of addresses; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = deque(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of this turn."""
        del family
        self.asked += 1
        addresses = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""
