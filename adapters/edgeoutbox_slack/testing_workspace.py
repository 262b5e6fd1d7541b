"""A workspace for tests: its channels, people and messages, and what the methods of Slack's interface do to them."""

import base64
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from edgeoutbox_slack.testing_messages import Channel, Refused, StoredPost

SCOPES = (
    *("chat:write", "chat:write.customize", "channels:read", "groups:read", "im:read", "im:write"),
    *("channels:history", "groups:history", "im:history", "mpim:history"),
)
"""What the token may do, if a test does not take any of it away."""

_MOST_CHARACTERS = 40_000
_USUAL_LIMIT = 100


class Workspace:
    """The state. `now` gives the time in seconds since 1970, for timestamps and for what shows when.

    `token` is the only one that is accepted; `scopes` can be changed at any time. `most_per_page` is how many messages
    a page of a history has at most, and `history_interval` the seconds between two requests for one: 15 and 60 for an
    app outside of Slack's marketplace.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.time,
        token: str = "xoxb-for-tests",  # noqa: S107 - it opens nothing
        bot_id: str = "B0TESTBOT",
        app_id: str = "A0TESTAPP",
        user_id: str = "U0TESTBOT",
        scopes: Iterable[str] = SCOPES,
        most_per_page: int = 999,
        history_interval: float = 0.0,
    ) -> None:
        self.now = now
        self.token = token
        self.bot_id: str | None = bot_id
        self.app_id = app_id
        self.user_id = user_id
        self.scopes = set(scopes)
        self.most_per_page = most_per_page
        self.history_interval = history_interval
        self.channels: dict[str, Channel] = {}
        self.people: set[str] = set()
        self.messages: list[StoredPost] = []
        self._next_history = 0.0
        self._last_ts = 0

    def add_channel(self, id: str, *, private: bool = False, member: bool = True, archived: bool = False) -> Channel:  # noqa: A002 - Slack's own word
        """A channel, of which the app is a member unless a test says otherwise."""
        self.channels[id] = Channel(id, private, member, archived)
        return self.channels[id]

    def add_person(self, id: str) -> None:  # noqa: A002 - Slack's own word
        """A person who can get direct messages."""
        self.people.add(id)

    def say(self, channel: str, text: str = "", **fields: Any) -> StoredPost:
        """A message of somebody else, or of whomever the fields of `StoredPost` say."""
        usual: dict[str, Any] = {"ts": self._timestamp(), "user": "U0SOMEBODY"}
        message = StoredPost(channel, text=text, **{**usual, **fields})
        self.messages.append(message)
        return message

    def delete(self, message: StoredPost) -> None:
        """Take a message away, as a person or a retention policy does."""
        self.messages.remove(message)

    def call(self, method: str, arguments: Mapping[str, Any], token: str | None, *, hidden: float = 0.0) -> Any:
        """Carry out a request. Returns its answer, or the post that it made; raises `Refused`."""
        if token is None:
            raise Refused("not_authed")
        if token != self.token:
            raise Refused("invalid_auth")
        if method not in self._METHODS:
            raise Refused("unknown_method")
        if method == "chat.postMessage":
            return self._post(arguments, hidden)
        return self._METHODS[method](self, arguments)

    def _auth_test(self, _: Mapping[str, Any]) -> dict[str, Any]:
        who = {"user_id": self.user_id, "team_id": "T0TEST", "bot_id": self.bot_id}
        return {"ok": True, **{name: value for name, value in who.items() if value}}

    def _post(self, arguments: Mapping[str, Any], hidden: float) -> StoredPost:
        self._require("chat:write")
        if arguments.get("username") or arguments.get("icon_emoji"):
            self._require("chat:write.customize")
        channel = self._channel(arguments)
        if channel.archived:
            raise Refused("is_archived")
        if not channel.member:
            raise Refused("not_in_channel")
        text = str(arguments.get("text") or arguments.get("markdown_text") or "")
        if not text and not arguments.get("blocks"):
            raise Refused("no_text")
        if len(text) > _MOST_CHARACTERS:
            raise Refused("msg_too_long")
        thread = arguments.get("thread_ts")
        if thread is not None and not any(self._is(message, channel.id, thread) for message in self.messages):
            raise Refused("cannot_reply_to_message")
        metadata = arguments.get("metadata")
        if metadata is not None and not str(metadata.get("event_type", "")).replace("_", "a").isalnum():
            raise Refused("invalid_metadata_format")
        message = StoredPost(
            channel.id,
            self._timestamp(),
            text,
            user=self.user_id,
            bot_id=self.bot_id,
            app_id=self.app_id,
            thread_ts=thread,
            broadcast=bool(arguments.get("reply_broadcast")),
            metadata=metadata,
            visible_at=self.now() + hidden,
            arguments=dict(arguments),
        )
        self.messages.append(message)
        return message

    def _open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._require("im:write")
        person = str(arguments.get("users", ""))
        if person not in self.people:
            raise Refused("user_not_found")
        id_ = f"D{person[1:]}"
        self.channels.setdefault(id_, Channel(id_, private=True, person=person))
        return {"ok": True, "channel": {"id": id_}}

    def _info(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        channel = self._channel(arguments)
        self._require("im:read" if channel.person else "groups:read" if channel.private else "channels:read")
        member = {} if channel.person else {"is_member": channel.member}
        return {"ok": True, "channel": {"id": channel.id, "is_archived": channel.archived, **member}}

    def _history(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        channel = self._readable(arguments)
        shown = [
            message
            for message in self._visible(channel, arguments)
            if message.thread_ts in {None, message.ts} or message.broadcast
        ]
        shown.sort(key=lambda message: float(message.ts), reverse=True)
        return self._page(shown, arguments)

    def _replies(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        channel = self._readable(arguments)
        parent = str(arguments.get("ts"))
        if not any(self._is(message, channel.id, parent) for message in self.messages):
            raise Refused("thread_not_found")
        replies = [message for message in self._visible(channel, arguments) if message.thread_ts == parent]
        first = [message for message in self.messages if self._is(message, channel.id, parent)]
        return self._page(first + sorted(replies, key=lambda message: float(message.ts)), arguments)

    def _readable(self, arguments: Mapping[str, Any]) -> Channel:
        if self.now() < self._next_history:
            raise Refused("ratelimited", retry_after=max(1, round(self._next_history - self.now())))
        self._next_history = self.now() + self.history_interval
        channel = self._channel(arguments)
        self._require("im:history" if channel.person else "groups:history" if channel.private else "channels:history")
        if not channel.member:
            raise Refused("not_in_channel")
        return channel

    def _visible(self, channel: Channel, arguments: Mapping[str, Any]) -> list[StoredPost]:
        oldest, latest = float(arguments.get("oldest") or 0), float(arguments.get("latest") or "inf")
        return [
            message
            for message in self.messages
            if message.channel == channel.id
            and message.visible_at <= self.now()
            and oldest <= float(message.ts) <= latest
        ]

    def _page(self, messages: list[StoredPost], arguments: Mapping[str, Any]) -> dict[str, Any]:
        limit = min(int(arguments.get("limit") or _USUAL_LIMIT), self.most_per_page)
        cursor = str(arguments.get("cursor") or "")
        if cursor:
            after = base64.b64decode(cursor).decode()
            position = next((index for index, message in enumerate(messages) if message.ts == after), None)
            if position is None:
                raise Refused("invalid_cursor")
            messages = messages[position:]
        page, rest = messages[:limit], messages[limit:]
        with_metadata = str(arguments.get("include_all_metadata", "")).lower() in {"1", "true"}
        next_cursor = base64.b64encode(rest[0].ts.encode()).decode() if rest else ""
        return {
            "ok": True,
            "messages": [message.shown(with_metadata=with_metadata) for message in page],
            "has_more": bool(rest),
            "response_metadata": {"next_cursor": next_cursor},
        }

    def _channel(self, arguments: Mapping[str, Any]) -> Channel:
        channel = self.channels.get(str(arguments.get("channel")))
        if channel is None or (channel.private and not channel.member):
            raise Refused("channel_not_found")
        return channel

    def _require(self, scope: str) -> None:
        if scope not in self.scopes:
            raise Refused("missing_scope", needed=scope)

    def _timestamp(self) -> str:
        self._last_ts = max(self._last_ts + 1, round(self.now() * 1_000_000))
        return f"{self._last_ts // 1_000_000}.{self._last_ts % 1_000_000:06d}"

    @staticmethod
    def _is(message: StoredPost, channel: str, ts: str) -> bool:
        return message.channel == channel and message.ts == ts

    _METHODS: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "auth.test": _auth_test,
        "chat.postMessage": _post,
        "conversations.open": _open,
        "conversations.info": _info,
        "conversations.history": _history,
        "conversations.replies": _replies,
    }
