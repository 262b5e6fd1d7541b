"""The demo of Slack: a server on this machine that loses answers, and an executor that reads posts back."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from edgeoutbox.cli.demo.performance import LONGEST, Performance, stop
from edgeoutbox.cli.demo.slack_figures import SentPost, SlackFigures, figures, read_posts
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.model import ActionRequest
from edgeoutbox.outbox import Outbox
from edgeoutbox.sidecar.database import Look
from edgeoutbox.sidecar.plugins import find_server
from edgeoutbox.states import State

ADAPTER = "slack_post"

POSTS = 100
CHANNELS = 10
LOST = 0.2

_CONFIGURATION = """\
database = {database}

[kinds.{kind}]
token = {{ file = "token" }}
base_url = {base_url}
concurrency = {channels}
post_interval = {post_interval}
# A server on this machine has no limits, and shows a post at once: no need to rest between looks.
history_interval = 0
first_look = 0.5
next_look = 0.5
max_attempts = {max_attempts}
# A killed executor's actions are free again when its lease ends.
lease = 4
write_window = 2
"""

_ACTIONS = "SELECT id, idempotency_key, lane_key, state, stop_reason, readback_ref FROM agent_action ORDER BY id"
_BATCH = 500


@dataclass
class SlackStage(Performance):
    """Posts, and a server that keeps a share of them and breaks the connection instead of answering.

    `limited` is the share that it answers with 429, `dropped` the one that it neither keeps nor answers. An executor
    posts to a channel every `post_interval` seconds, and the whole gives up after `longest` seconds.
    """

    posts: int = POSTS
    channels: int = CHANNELS
    lost: float = LOST
    limited: float = 0.0
    dropped: float = 0.0
    post_interval: float = 0.1
    max_attempts: int = 12
    longest: float = LONGEST

    @property
    def total(self) -> int:
        """Every post."""
        return self.posts

    @property
    def record(self) -> Path:
        """The server's record: one line for each post that it took."""
        return self.folder / "slack.jsonl"

    async def perform(self) -> SlackFigures:
        """Enqueue, post, read back, and count. Raises `ConfigurationError` when there is no server to start."""
        began = monotonic()
        server = await self._server()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.longest):
                    await self._prepare(await _told(server))
                    await self.carry_out()
        finally:
            await stop(server)
        return self.count(monotonic() - began)

    async def carry_out(self) -> None:
        """Let an executor work until every post has ended."""
        executor = await self.executor()
        try:
            self.tell(f"process {executor.pid} posts them")
            await self.until(executor, lambda: self.ended() >= self.posts)
        finally:
            await stop(executor)

    def count(self, seconds: float) -> SlackFigures:
        """The figures as database and record have them now."""
        with Look(self.url) as look:
            actions = [
                SentPost(id_, key, lane, State(state), reason, reference)
                for id_, key, lane, state, reason, reference in look.rows(_ACTIONS)
            ]
        return figures(actions, read_posts(self.record), kills=self.kills, seconds=seconds)

    async def _server(self) -> asyncio.subprocess.Process:
        options = {
            "--channels": self.channels,
            "--lost": self.lost,
            "--limited": self.limited,
            "--dropped": self.dropped,
            "--record": self.record,
        }
        given = [str(part) for option in options.items() for part in option]
        return await self.start("-m", find_server(ADAPTER), *given, stdout=asyncio.subprocess.PIPE)

    async def _prepare(self, told: dict[str, Any]) -> None:
        """Configure executors for the server, and enqueue."""
        (self.folder / "token").write_text(told["token"], encoding="utf-8")
        text = _CONFIGURATION.format(
            kind=ADAPTER,
            database=json.dumps(self.url),
            base_url=json.dumps(told["base_url"]),
            channels=self.channels,
            post_interval=self.post_interval,
            max_attempts=self.max_attempts,
        )
        self.configure(text)
        requests = [_post(number, told["channels"]) for number in range(self.posts)]
        async with Outbox(self.url) as outbox:
            for start in range(0, len(requests), _BATCH):
                await outbox.enqueue_many(requests[start : start + _BATCH])
        self.tell(
            f"{self.posts} posts to {self.channels} channels of a server at {told['base_url']}, "
            f"which loses {self.lost:.0%} of its answers"
        )


def _post(number: int, channels: Sequence[str]) -> ActionRequest:
    channel = channels[number % len(channels)]
    return ActionRequest(
        kind=ADAPTER,
        idempotency_key=f"demo:{number}",
        lane_key=f"{ADAPTER}:{channel}",
        payload={"notice": "message", "channel": channel, "text": f"Demo {number}"},
    )


async def _told(server: asyncio.subprocess.Process) -> dict[str, Any]:
    """What the server says about itself once it listens."""
    line = b"" if server.stdout is None else await server.stdout.readline()
    if not line:
        raise ConfigurationError(f"adapter {ADAPTER}: its server for tests did not start")
    told: dict[str, Any] = json.loads(line)
    return told
