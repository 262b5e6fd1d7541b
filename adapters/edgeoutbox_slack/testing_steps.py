"""How a Slack server for tests answers, and how it does what a script says instead."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from edgeoutbox_slack.testing_script import Alter, Cut, Drop, Hang, Limit, Raw, Redirect, Refuse, Step, Usual


@dataclass(frozen=True)
class Answer:
    """An answer of Slack's interface."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, about_the_token: Mapping[str, str]) -> web.Response:
        """As HTTP."""
        status, headers = self.status, {**about_the_token, **self.headers}
        if isinstance(self.body, dict) and self.body.get("error") == "ratelimited" and "retry_after" in self.body:
            status, headers["Retry-After"] = 429, str(self.body["retry_after"])
        return web.json_response(self.body, status=status, headers=headers)


async def perform(
    step: Step, usual: Answer, about_the_token: Mapping[str, str], http: web.Request, closing: asyncio.Event
) -> web.StreamResponse:
    """Do what the step says; `usual` is what would have been the answer."""
    answer = _instead(step, usual, about_the_token)
    if answer is not None:
        return answer
    if isinstance(step, Hang):
        await closing.wait()
    if isinstance(step, Cut):
        half = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "9999"})
        await half.prepare(http)
        await half.write(json.dumps(usual.body).encode()[:20])
    if http.transport is not None:
        http.transport.abort()
    return web.Response()


def _instead(  # noqa: PLR0911 - a table, one return for each kind of step
    step: Step, usual: Answer, about_the_token: Mapping[str, str]
) -> web.Response | None:
    match step:
        case Refuse(code, status, headers):
            return Answer({"ok": False, "error": code}, status, headers).response(about_the_token)
        case Limit(retry_after, status):
            rest = {} if retry_after is None else {"Retry-After": retry_after}
            return Answer({"ok": False, "error": "ratelimited"}, status, rest).response({})
        case Raw(body, status, content_type, headers):
            return web.Response(body=body, status=status, content_type=content_type, headers=headers)
        case Redirect(to, status):
            return web.Response(status=status, headers={"Location": to})
        case Alter(change):
            return Answer(change(usual.body)).response(about_the_token)
        case Usual():
            return usual.response(about_the_token)
        case Hang() | Cut() | Drop():
            return None
