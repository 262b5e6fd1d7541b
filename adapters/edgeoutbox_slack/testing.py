"""A Slack on this machine for tests and demonstrations, with channels, people and threads of its own.

Without a script it does what Slack does::

    async with SlackServer() as slack:
        slack.add_channel("C0GENERAL")
        adapter = SlackAdapter(slack.token, base_url=slack.base_url, post_interval=0)
        ...
        assert [post.text for post in slack.posts] == ["Deployed."]

A script makes it refuse, limit, hang, break or lie at any call. This one takes the first post and loses its answer::

    async with SlackServer(On("chat.postMessage", Drop(), call=1, keeps=True)) as slack:
        ...

`slack.requests` holds every request, `slack.posts` every post that was made through it. It listens on the loopback
address only. With `record` it appends one JSON line for each post to a file, without texts; `read_record` and
`duplicates` count them. As a program of its own it keeps all posts in memory and tells its address in one JSON line::

    python -m edgeoutbox_slack.testing --channels 50 --lost 0.2 --dropped 0.02 --record posts.jsonl
"""

import argparse
import asyncio
import json
import random
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from edgeoutbox_slack.testing_messages import Channel, Refused, StoredPost
from edgeoutbox_slack.testing_record import RecordedPost, duplicates, read_record
from edgeoutbox_slack.testing_script import Alter, Cut, Drop, Hang, Limit, On, Raw, Redirect, Refuse, Step, Usual
from edgeoutbox_slack.testing_steps import Answer, perform
from edgeoutbox_slack.testing_workspace import SCOPES, Workspace

__all__ = [
    "SCOPES",
    "Alter",
    "Channel",
    "Cut",
    "Drop",
    "Hang",
    "Limit",
    "On",
    "Raw",
    "RecordedPost",
    "Redirect",
    "Refuse",
    "Request",
    "SlackServer",
    "Step",
    "StoredPost",
    "Usual",
    "Workspace",
    "duplicates",
    "read_record",
]

POST = "chat.postMessage"


@dataclass(frozen=True)
class Request:
    """One request: its method, the number of the method's calls until then, and what it asked for."""

    method: str
    call: int
    arguments: Mapping[str, Any] = field(repr=False)
    http_method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class SlackServer(Workspace):
    """The server. Open it with `async with`; `base_url` is known from then on. The options are those of `Workspace`.

    `dice` decides about steps with a chance, `tls` is a server's context, `record` a file to append to.
    """

    def __init__(
        self,
        *script: On,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        record: Path | None = None,
        dice: random.Random | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.script = list(script)
        self.requests: list[Request] = []
        self.posts: list[StoredPost] = []
        self._host = host
        self._port = port
        self._tls = tls
        self._record = record
        self._dice = dice or random.Random(0)  # noqa: S311 - dice of a game
        self._calls: Counter[str] = Counter()
        self._used: Counter[int] = Counter()
        self._closing = asyncio.Event()
        self._news = asyncio.Condition()

    @property
    def base_url(self) -> str:
        """What an adapter's `base_url` is set to."""
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self._port}/api"

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_route("*", "/api/{method}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await self._runner.cleanup()

    def calls(self, method: str) -> int:
        """How often a method was called."""
        return self._calls[method]

    async def reached(self, method: str, calls: int = 1, timeout: float = 10.0) -> None:
        """Wait until a method was called this often."""
        async with asyncio.timeout(timeout), self._news:
            await self._news.wait_for(lambda: self._calls[method] >= calls)

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        request = await self._read(http)
        token = http.headers.get("Authorization", "").removeprefix("Bearer ") or None
        async with self._news:
            self.requests.append(request)
            self._news.notify_all()
        on = self._next_step(request)
        if on is None:
            return Answer(self._carry_out(request, token)).response(self._about_the_token)
        keeps = on.keeps or isinstance(on.step, Cut | Alter | Usual)
        told = isinstance(on.step, Usual)
        usual = self._carry_out(request, token, on.hidden, answered=told) if keeps else {"ok": True}
        return await perform(on.step, Answer(usual), self._about_the_token, http, self._closing)

    async def _read(self, http: web.Request) -> Request:
        method = http.match_info["method"]
        self._calls[method] += 1
        arguments: dict[str, Any] = dict(http.query)
        if "json" in http.content_type:
            arguments |= await http.json()
        elif http.can_read_body:
            arguments |= {name: str(value) for name, value in (await http.post()).items()}
        return Request(method, self._calls[method], arguments, http.method, dict(http.headers))

    def _next_step(self, request: Request) -> On | None:
        for index, on in enumerate(self.script):
            if (
                on.method == request.method
                and on.call in {None, request.call}
                and on.channel in {None, request.arguments.get("channel")}
                and (on.times is None or self._used[index] < on.times)
                and (on.chance >= 1 or self._dice.random() < on.chance)
            ):
                self._used[index] += 1
                return on
        return None

    def _carry_out(
        self, request: Request, token: str | None, hidden: float = 0.0, *, answered: bool = True
    ) -> dict[str, Any]:
        try:
            done = self.call(request.method, request.arguments, token, hidden=hidden)
        except Refused as refused:
            return refused.answer
        if not isinstance(done, StoredPost):
            return dict(done)
        self.posts.append(done)
        if self._record is not None:
            with self._record.open("a", encoding="utf-8") as record:
                record.write(RecordedPost.of(len(self.posts), done, answered=answered).line())
        return {"ok": True, "channel": done.channel, "ts": done.ts, "message": done.shown(with_metadata=True)}

    @property
    def _about_the_token(self) -> dict[str, str]:
        return {"X-OAuth-Scopes": ",".join(sorted(self.scopes))}


async def _run(options: argparse.Namespace, tell: Callable[[str], object]) -> None:
    server = SlackServer(
        On(POST, Drop(), chance=options.lost, keeps=True),
        On(POST, Limit("1"), chance=options.limited),
        On(POST, Drop(), chance=options.dropped),
        port=options.port,
        record=options.record,
        dice=random.Random(options.seed),  # noqa: S311 - dice of a game
    )
    for number in range(options.channels):
        server.add_channel(f"C{number:04d}")
    async with server:
        tell(json.dumps({"base_url": server.base_url, "token": server.token, "channels": [*server.channels]}) + "\n")
        await asyncio.Event().wait()


def main() -> None:
    """Run until the process is ended."""
    parser = argparse.ArgumentParser(
        prog="python -m edgeoutbox_slack.testing",
        description="A Slack on the loopback address, for tests. Once it listens it prints one line of JSON, with "
        "base_url and token (what an adapter is given) and channels, and runs until it is ended.",
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--channels", type=int, default=1, help="how many there are: C0000, C0001 ...")
    parser.add_argument("--lost", type=float, default=0.0, help="the share of posts whose answer is lost")
    parser.add_argument("--limited", type=float, default=0.0, help="the share of posts that are answered with 429")
    parser.add_argument("--dropped", type=float, default=0.0, help="the share that is neither kept nor answered")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="append a JSON line for each post to this file")

    def tell(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    asyncio.run(_run(parser.parse_args(), tell))


if __name__ == "__main__":
    main()
