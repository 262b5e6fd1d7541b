"""What the Slack tests arrange: an adapter for a server on loopback, literal messages, and attempts of them."""

from typing import Any

from edgeoutbox.results import Result
from edgeoutbox.testing.attempt import CREATED_AT, ScriptedAttempt, an_action
from edgeoutbox_slack import Message, SlackAdapter, SlackNotice
from edgeoutbox_slack.testing import SlackServer

CHANNEL = "C0GENERAL"
JANE = "U0JANE"
POST = "chat.postMessage"
HISTORY = "conversations.history"
REPLIES = "conversations.replies"
OPEN = "conversations.open"
WHO = "auth.test"

KEY = "release:7:announced"
NOW = CREATED_AT / 1000
"""The server's time when an attempt of these tests is claimed, in seconds."""


def a_server(*script: Any, **options: Any) -> SlackServer:
    """A server with one channel and one person, at the time of `an_action`."""
    server = SlackServer(*script, **{"now": lambda: NOW, **options})
    server.add_channel(CHANNEL)
    server.add_person(JANE)
    return server


def an_adapter(server: SlackServer, **options: Any) -> SlackAdapter:
    """An adapter for a server, without pauses and quick to give up."""
    usual: dict[str, Any] = {"token": server.token, "base_url": server.base_url, "timeout": 5.0}
    return SlackAdapter(**{**usual, "post_interval": 0.0, "history_interval": 0.0, **options})


def a_message(**fields: Any) -> Message:
    """A short literal message."""
    return Message(**{"channel": CHANNEL, "text": "Release 7 is out.", **fields})


def an_attempt(payload: SlackNotice[Any] | None = None, **options: Any) -> ScriptedAttempt[SlackNotice[Any]]:
    """An attempt of a short message, or of this payload; `key` is its idempotency key, `attempt` its number."""
    usual = {"idempotency_key": options.pop("key", KEY), "attempt": options.pop("attempt", 1), "kind": "slack_post"}
    action = an_action(**usual, **options.pop("fields", {}))
    return ScriptedAttempt(a_message() if payload is None else payload, action, **options)


def a_later_attempt(payload: SlackNotice[Any] | None = None, **options: Any) -> ScriptedAttempt[SlackNotice[Any]]:
    """The second attempt, half an hour after the first may have posted."""
    written = CREATED_AT + options.pop("written_at", 0)
    fields = {"lease_expires_at": CREATED_AT + 1_800_000 + 120_000, **options.pop("fields", {})}
    return an_attempt(payload, inherited_write_at=written, attempt=options.pop("attempt", 2), fields=fields, **options)


def code_of(result: Result) -> object:
    """The code that a result's evidence names."""
    return result.evidence.get("code")
