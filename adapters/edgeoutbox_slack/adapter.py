"""The adapter: from a payload to a result."""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Unpack

from edgeoutbox import (
    Adapter,
    Attempt,
    Cancelled,
    Check,
    ConfigurationError,
    Deadline,
    Defer,
    Delivery,
    Failed,
    InvalidPayload,
    Kind,
    KindLimits,
    NotNeeded,
    Result,
    StopReason,
    tagged,
)
from edgeoutbox_slack import verdicts
from edgeoutbox_slack.attention import Attention
from edgeoutbox_slack.checks import check_slack, try_out
from edgeoutbox_slack.client import Slack
from edgeoutbox_slack.connection import SLACK, Connection
from edgeoutbox_slack.errors import InvalidPost
from edgeoutbox_slack.marker import Identity, key_hash, mark
from edgeoutbox_slack.notices import Message, SlackNotice
from edgeoutbox_slack.pacing import Pace
from edgeoutbox_slack.places import Place
from edgeoutbox_slack.posts import Post
from edgeoutbox_slack.preview import preview_text
from edgeoutbox_slack.readback import Found, Reader, Stopped, Wanted, Window
from edgeoutbox_slack.settings import Settings
from edgeoutbox_slack.steps import POST, NotReached, Reached, reach
from edgeoutbox_slack.waits import Looks

log = logging.getLogger("edgeoutbox.slack")

_SHARE_BEFORE_FENCE = 0.9
_SHARE_OF_WINDOW = 0.95
_AT_LEAST = 0.5


MOST_ATTEMPTS = 12
"""The default of `max_attempts`: an unknown post is looked for, and holds its lane, for less than two hours."""


class SlackAdapter(Adapter[SlackNotice[Any]]):
    """Posts to Slack with one token, and looks for a post whose answer was lost instead of making it again.

    `token` may be `None` for a process that only enqueues. `app_id` or `bot_id` save asking Slack who we are.
    `channels` are what `check` looks at. `notices` are the application's own, beside the built-in `message`, and `app`
    is what they are given. `post_interval` keeps posts to one place apart, `history_interval` requests for histories,
    each within this process; 60 for an app that Slack allows one a minute. `first_look` and `next_look` are the rests
    before looking for an unknown post; `page_size` (at most 200) and `most_pages` bound a look. The rest are the
    limits of the kind, in seconds and days. Raises `ConfigurationError`.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own, given by name
        self,
        token: str | None,
        *,
        base_url: str = SLACK,
        app_id: str | None = None,
        bot_id: str | None = None,
        proxy: str | None = None,
        cafile: Path | None = None,
        tls_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        channels: Sequence[str] = (),
        notices: Sequence[type[SlackNotice[Any]]] = (),
        app: Any = None,
        post_interval: float = 1.0,
        history_interval: float = 1.2,
        first_look: float = 10.0,
        next_look: float = 60.0,
        page_size: int = 200,
        most_pages: int = 50,
        kind: str = "slack_post",
        **limits: Unpack[KindLimits],
    ) -> None:
        limits.setdefault("max_attempts", MOST_ATTEMPTS)
        self.kind = Kind(
            kind,
            variants=tagged(reduce(or_, notices, Message)),
            delivery=Delivery.READS_BACK,
            **limits,
        )
        if self.kind.lease <= self.kind.write_window:
            raise ConfigurationError("lease: must be longer than write_window, or nothing could ever be posted")
        self._connection = (
            None
            if token is None
            else Connection(
                token=token, base_url=base_url, proxy=proxy, cafile=cafile, timeout=timeout, tls_context=tls_context
            )
        )
        self._known = Identity(bot_id, app_id)
        self._identity: Identity | None = self._known if self._known != Identity() else None
        self._places = tuple(Place(channel) for channel in channels)
        self._app = app
        self._pace = Pace(post_interval)
        self._looks = Looks(first_look, next_look)
        self._reader = Reader(interval=history_interval, page_size=page_size, most_pages=most_pages)
        self._tls: ssl.SSLContext | None = None
        self._attention = Attention(kind)

    @classmethod
    def configure(cls, kind_name: str, settings: Mapping[str, object]) -> "SlackAdapter":
        """The adapter of a configuration table. Raises `ConfigurationError` naming kind and setting, never a value."""
        read = Settings.read(kind_name, settings)
        try:
            return cls(kind=kind_name, **read.arguments())
        except ConfigurationError as error:
            raise ConfigurationError(f"kind {kind_name}: {error}") from None

    async def execute(self, attempt: Attempt[SlackNotice[Any]]) -> Result:
        """Post once, or look for what an earlier attempt may have posted."""
        deadline = Deadline.after(max((self.kind.lease - self.kind.write_window) * _SHARE_BEFORE_FENCE, _AT_LEAST))
        try:
            slack = await self._slack()
        except ConfigurationError as error:
            self._attention.call(str(error))
            return Defer(str(error), scope="kind", evidence={"method": "settings"})
        async with slack:
            if attempt.inherited_write_at is not None:
                return await self._look(slack, attempt, attempt.inherited_write_at, deadline)
            return await self._post(slack, attempt, deadline)

    async def prepare(self, payload: SlackNotice[Any]) -> SlackNotice[Any]:
        """Make the post once, so that one that cannot be posted is refused now.

        Raises `InvalidPayload`, and what a notice raises.
        """
        await payload.prepare(self._app)
        return payload

    def lane(self, payload: SlackNotice[Any]) -> str | None:
        """The natural lane of a payload: `KIND:CHANNEL` or `KIND:CHANNEL:THREAD`, its own, or `None`: alone."""
        lane = payload.natural_lane()
        return lane.lane(self.kind.name) if isinstance(lane, Place) else lane

    async def preview(self, payload: SlackNotice[Any]) -> str:
        """The post with everything in it, as text."""
        post = await payload.prepare(self._app)
        if isinstance(post, NotNeeded):
            return f"Nothing would be posted: {post.reason or 'it is not needed any more'}"
        return preview_text(post)

    async def check(self) -> Sequence[Check]:
        """Whether a post could be made and read back now, in each of `channels`; posts nothing."""
        try:
            slack = await self._slack()
        except ConfigurationError as error:
            return [Check("settings", ok=False, detail=str(error))]
        async with slack:
            return await check_slack(slack, self._known, self._places, slack.timeout)

    async def send_test_message(self, to: str) -> Check:
        """Post one short message to a channel or person, without an action, and say what Slack answered.

        Raises `InvalidPost` for what is no id.
        """
        post = Post(channel=to, text="This message shows that posts can be made from here.")
        try:
            slack = await self._slack()
        except ConfigurationError as error:
            return Check("test message", ok=False, detail=str(error))
        async with slack:
            return await try_out(slack, post)

    def destination(self) -> str:
        """The address of Slack's interface."""
        return "no token" if self._connection is None else self._connection.place

    def settings(self) -> str:
        """Every setting of the connection, the token too."""
        connection = self._connection
        hidden = None if connection is None else (connection.token, connection.proxy)
        return repr((connection, hidden, self._known))

    async def _post(self, slack: Slack, attempt: Attempt[SlackNotice[Any]], deadline: Deadline) -> Result:
        try:
            post = await attempt.payload.prepare(self._app)
        except InvalidPayload as error:
            # Only our own words are stored; what an application's notice says may hold anything.
            words = str(error) if isinstance(error, InvalidPost) else "the notice refused its event"
            return Failed(StopReason.INVALID_PAYLOAD, words, {"method": "prepare"})
        if isinstance(post, NotNeeded):
            return Cancelled(StopReason.NOT_NEEDED, post.reason, {"method": "prepare"})
        reached = await self._reach(slack, post.place, deadline)
        if isinstance(reached, NotReached):
            return verdicts.not_begun(reached.answer, reached.method)
        channel = reached.place.channel
        turn = self._pace.wait(channel)
        if turn > deadline.left():
            return Defer("the next post to this place has its turn later", turn, evidence={"method": POST})
        await asyncio.sleep(self._pace.take(channel))
        body = post.body(channel, mark(attempt.action.idempotency_key))
        window = await attempt.begin_write()
        answer = await slack.write(POST, body, Deadline.after(window.seconds * _SHARE_OF_WINDOW))
        self._attention.called_by(answer)
        return verdicts.posted(answer, self._looks.after(attempt.action.attempt))

    async def _look(
        self, slack: Slack, attempt: Attempt[SlackNotice[Any]], first_write: int, deadline: Deadline
    ) -> Result:
        action = attempt.action
        again = self._looks.after(action.attempt)
        try:
            place = await attempt.payload.posted_to(self._app)
        except InvalidPayload:
            place = None
        if place is None:
            return verdicts.nowhere(again)
        reached = await self._reach(slack, place, deadline)
        if isinstance(reached, NotReached):
            return verdicts.not_seen(reached.answer, reached.method, again)
        window = Window.around(first_write, self.kind.lease, self.kind.write_window)
        wanted = Wanted(action.id, key_hash(action.idempotency_key), reached.place, window, reached.identity)
        claimed_at = (action.lease_expires_at or 0) - round(self.kind.lease * 1000)
        outcome = await self._reader.look(slack, wanted, claimed_at, deadline)
        if isinstance(outcome, Found) and len(outcome.timestamps) > 1:
            log.warning("action %s: %s posts carry its mark; the first counts", action.id, len(outcome.timestamps))
        if isinstance(outcome, Stopped):
            self._attention.called_by(outcome.answer)
        return verdicts.looked(outcome, wanted, again)

    async def _reach(self, slack: Slack, place: Place, deadline: Deadline) -> Reached | NotReached:
        reached = await reach(slack, self._identity, place, deadline)
        if isinstance(reached, NotReached):
            self._attention.called_by(reached.answer)
        else:
            self._identity = reached.identity
        return reached

    async def _slack(self) -> Slack:
        if self._connection is None:
            raise ConfigurationError("token: none is configured, so nothing can be posted")
        if self._tls is None:
            self._tls = await asyncio.to_thread(self._connection.make_tls_context)
        return Slack(self._connection, self._tls)
