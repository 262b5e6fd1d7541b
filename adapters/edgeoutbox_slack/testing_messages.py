"""What a workspace for tests is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Refused(Exception):
    """A request that Slack answers with an error code."""

    def __init__(self, code: str, **more: object) -> None:
        super().__init__(code)
        self.answer: dict[str, Any] = {"ok": False, "error": code, **more}


@dataclass
class Channel:
    """A conversation: a channel (`C...`), or the direct messages with a person (`D...`)."""

    id: str
    private: bool = False
    member: bool = True
    archived: bool = False
    person: str | None = None


@dataclass(frozen=True)
class StoredPost:
    """A message as the workspace keeps it. `arguments` are those of the call that made it, if one did."""

    channel: str
    ts: str
    text: str = ""
    user: str | None = None
    bot_id: str | None = None
    app_id: str | None = None
    thread_ts: str | None = None
    broadcast: bool = False
    metadata: Mapping[str, Any] | None = None
    visible_at: float = 0.0
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> str | None:
        """The hash of the idempotency key in its metadata."""
        payload = (self.metadata or {}).get("event_payload")
        found = payload.get("key") if isinstance(payload, Mapping) else None
        return found if isinstance(found, str) else None

    def shown(self, *, with_metadata: bool) -> dict[str, Any]:
        """The message in a history. Without being asked for, metadata loses its payload."""
        fields = ("text", "user", "bot_id", "app_id", "thread_ts")
        message: dict[str, Any] = {"type": "message", "ts": self.ts}
        message |= {name: value for name in fields if (value := getattr(self, name)) is not None}
        if self.metadata is not None:
            message["metadata"] = (
                dict(self.metadata) if with_metadata else {"event_type": self.metadata.get("event_type")}
            )
        return message
