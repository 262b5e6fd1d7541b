"""The built-in adapters as subjects of the crash matrix: each with the server that its package brings for tests.

python -m edgeoutbox.testing.crash --subject tests/crash/subjects.py:smtp
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from edgeoutbox import ActionRequest
from edgeoutbox.testing import ScriptedRelay
from edgeoutbox.testing.crash import Subject
from edgeoutbox.testing.relay_script import Hang as RelayHangs
from edgeoutbox.testing.relay_script import On as RelayLine
from edgeoutbox.testing.relay_script import Point
from edgeoutbox_slack import SlackAdapter
from edgeoutbox_slack.testing import Hang as SlackHangs
from edgeoutbox_slack.testing import On, SlackServer
from edgeoutbox_smtp import Relay, Security, SmtpAdapter
from edgeoutbox_webhook import Endpoint, WebhookAdapter
from edgeoutbox_webhook.testing import TEST_SECRET, WebhookReceiver
from edgeoutbox_webhook.testing import Hang as ReceiverHangs

CHANNEL = "C0GENERAL"


def smtp_adapter(host: str, port: int) -> SmtpAdapter:
    """An SMTP adapter for a relay on this machine."""
    return SmtpAdapter(Relay(host=host, port=port, security=Security.PLAINTEXT), sender="shop@example.com")


@asynccontextmanager
async def smtp(_: Path) -> AsyncIterator[Subject]:
    """Email: at most once."""
    async with ScriptedRelay() as relay:

        def request(key: str) -> ActionRequest:
            email = {"notice": "message", "to": ["jane@example.com"], "subject": key, "text": "Thank you."}
            return ActionRequest(kind="email", idempotency_key=key, payload=email)

        def effects(key: str) -> int:
            return sum(key.encode() in message.content for message in relay.messages)

        def hold() -> None:
            relay.script.append(RelayLine(Point.DOT, RelayHangs(), connection=1, keeps=True))

        yield Subject(smtp_adapter, (relay.host, relay.port), request, effects, hold)


def slack_adapter(token: str, base_url: str) -> SlackAdapter:
    """A Slack adapter for a server on this machine."""
    return SlackAdapter(token, base_url=base_url, post_interval=0.0, history_interval=0.0)


@asynccontextmanager
async def slack(_: Path) -> AsyncIterator[Subject]:
    """A post to Slack: read back, and never made again, since a history cannot show that nothing is there."""
    start = time.time()
    async with SlackServer() as server:
        server.add_channel(CHANNEL)

        def request(key: str) -> ActionRequest:
            post = {"notice": "message", "channel": CHANNEL, "text": key}
            return ActionRequest(kind="slack_post", idempotency_key=key, payload=post)

        def effects(key: str) -> int:
            return sum(key == post.text for post in server.posts)

        def hold() -> None:
            server.script.append(On("chat.postMessage", SlackHangs(), call=1, keeps=True))

        yield Subject(
            slack_adapter, (server.token, server.base_url), request, effects, hold, writes_again=False, start=start
        )


def webhook_adapter(url: str, options: Mapping[str, Any]) -> WebhookAdapter:
    """A webhook adapter for a receiver on this machine."""
    return WebhookAdapter({"billing": Endpoint(url, secrets=[TEST_SECRET], allow_private=True)}, **options)


@asynccontextmanager
async def _webhook(options: Mapping[str, Any], _: Path) -> AsyncIterator[Subject]:
    repeatable = options.get("delivery") == "repeatable"
    async with WebhookReceiver(deduplicates=repeatable) as receiver:
        ids: dict[str, set[str]] = {}

        def request(key: str) -> ActionRequest:
            call = {"endpoint": "billing", "body": {"order": key}}
            return ActionRequest(kind="webhook", idempotency_key=key, payload=call)

        def effects(key: str) -> int:
            ids.setdefault(key, set()).update(one.webhook_id for one in receiver.received if key.encode() in one.body)
            return sum(receiver.effects.count(webhook_id) for webhook_id in ids[key])

        yield Subject(webhook_adapter, (receiver.url, options), request, effects, partial(receiver.on, ReceiverHangs()))


webhook = partial(_webhook, {})
webhook_repeatable = partial(_webhook, {"delivery": "repeatable", "deduplicates_for": "24h"})

SUBJECTS: Mapping[str, Any] = {
    "smtp": smtp,
    "slack": slack,
    "webhook": webhook,
    "webhook_repeatable": webhook_repeatable,
}
