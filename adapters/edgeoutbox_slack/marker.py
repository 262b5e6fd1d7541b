"""The mark that every post carries, and by which it is found again."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

EVENT_TYPE = "edgeoutbox_action"
"""Letters, digits and underscores, as message metadata wants it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are to Slack: the ids that it puts on our posts. At least one is known."""

    bot_id: str | None = None
    app_id: str | None = None

    def wrote(self, message: Mapping[str, Any]) -> bool:
        """Whether a message is ours. Anybody in the workspace can read a mark, and so forge one."""
        return (self.bot_id is not None and message.get("bot_id") == self.bot_id) or (
            self.app_id is not None and message.get("app_id") == self.app_id
        )


class Sight(Enum):
    """What a message turned out to be."""

    OURS = auto()
    """The post of this key."""
    OTHER = auto()
    STRIPPED = auto()
    """A marked post of our own whose mark was left out: it could be the one."""


def key_hash(idempotency_key: str) -> str:
    """What is shown of the key: everybody in the workspace can read it."""
    return hashlib.sha256(idempotency_key.encode()).hexdigest()


def mark(idempotency_key: str) -> dict[str, Any]:
    """The metadata of the post of this key."""
    return {"event_type": EVENT_TYPE, "event_payload": {"key": key_hash(idempotency_key)}}


def look_at(message: Mapping[str, Any], wanted: str, identity: Identity) -> Sight:
    """Whether a message is the post whose key has this hash."""
    metadata = message.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("event_type") != EVENT_TYPE or not identity.wrote(message):
        return Sight.OTHER
    payload = metadata.get("event_payload")
    found = payload.get("key") if isinstance(payload, Mapping) else None
    if not isinstance(found, str):
        return Sight.STRIPPED
    return Sight.OURS if found == wanted else Sight.OTHER
