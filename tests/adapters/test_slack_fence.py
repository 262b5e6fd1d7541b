"""Before the fence, behind it, and the connection: what is never sent, never sent twice, and never said."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trustme

from edgeoutbox import Deadline
from edgeoutbox.adapter import WriteWindow
from edgeoutbox.errors import DatabaseUnavailable, FenceRefused
from edgeoutbox.results import Defer, Done, Failed, Reread, Result, Retry
from edgeoutbox.states import StopReason
from edgeoutbox.testing.attempt import ScriptedAttempt
from edgeoutbox_slack import SlackAdapter, SlackNotice
from edgeoutbox_slack.codes import OPENING
from edgeoutbox_slack.testing import Cut, Drop, Hang, Limit, On, Raw, Refuse, SlackServer, Step
from tests.adapters.slack_building import (
    CHANNEL,
    HISTORY,
    JANE,
    KEY,
    OPEN,
    POST,
    WHO,
    a_later_attempt,
    a_message,
    a_server,
    an_adapter,
    an_attempt,
)
from tests.adapters.smtp_building import client_context, server_context


class Watching(ScriptedAttempt[SlackNotice[Any]]):
    """An attempt that notes what Slack had been asked when the fence was asked for."""

    asked: list[str]
    slack: SlackServer

    async def begin_write(self) -> WriteWindow:
        """Note, and give the fence."""
        self.asked = [request.method for request in self.slack.requests]
        return await super().begin_write()


async def test_the_fence_is_asked_for_just_before_the_post() -> None:
    """Who we are and the conversation with a person are learnt before it, and the post comes after it."""
    async with a_server() as slack:
        attempt = Watching(a_message(channel=JANE))
        attempt.slack = slack
        result = await an_adapter(slack).execute(attempt)
    assert isinstance(result, Done)
    assert result.readback_ref == f"D0JANE:{slack.posts[0].ts}"
    assert attempt.asked == [WHO, OPEN]
    assert [request.method for request in slack.requests] == [WHO, OPEN, POST]


async def test_who_we_are_is_asked_once() -> None:
    """It does not change while a process runs."""
    async with a_server() as slack:
        adapter = an_adapter(slack)
        for key in ("a", "b"):
            await adapter.execute(an_attempt(key=key))
    assert (slack.calls(WHO), slack.calls(POST)) == (1, 2)


@pytest.mark.parametrize(
    "error", [FenceRefused("taken"), DatabaseUnavailable("full")], ids=lambda error: type(error).__name__
)
async def test_a_refused_fence_posts_nothing(error: Exception) -> None:
    """What `begin_write` raises rises."""
    async with a_server() as slack:
        with pytest.raises(type(error)):
            await an_adapter(slack).execute(an_attempt(refuse=error))
    assert slack.calls(POST) == 0


BEFORE: dict[str, tuple[Step, type[Result]]] = {
    "a limit": (Limit("7"), Defer),
    "a refused token": (Refuse("invalid_auth"), Defer),
    "a server error": (Refuse("x", 503), Retry),
    "an internal error": (Refuse("fatal_error"), Retry),
    "a code of next year": (Refuse("a_code_of_next_year"), Retry),
    "a lost connection": (Drop(), Retry),
    "half of an answer": (Cut(), Retry),
    "silence": (Hang(), Retry),
    "no JSON": (Raw(b"<html>"), Retry),
    "a missing scope": (Refuse("missing_scope"), Failed),
    "a place that is gone": (Refuse("channel_not_found"), Failed),
}


@pytest.mark.parametrize("method", [WHO, OPEN])
@pytest.mark.parametrize(("step", "expected"), BEFORE.values(), ids=BEFORE.keys())
async def test_what_fails_before_the_fence_costs_no_certainty(method: str, step: Step, expected: type[Result]) -> None:
    """Nothing was posted, so nothing is unknown, and no fence was asked for."""
    async with a_server(On(method, step)) as slack:
        attempt = an_attempt(a_message(channel=JANE))
        result = await an_adapter(slack, timeout=0.3).execute(attempt)
    assert isinstance(result, expected)
    assert (slack.calls(POST), attempt.writes) == (0, 0)


@pytest.mark.parametrize("code", OPENING)
async def test_a_person_who_cannot_be_written_to_is_failed(code: str) -> None:
    """Codes that only the opening of a conversation has."""
    async with a_server(On(OPEN, Refuse(code))) as slack:
        result = await an_adapter(slack).execute(an_attempt(a_message(channel=JANE)))
    assert isinstance(result, Failed)
    assert result.stop_reason is StopReason.UNDELIVERABLE


@pytest.mark.parametrize("body", [b'{"ok":true}', b'{"ok":true,"channel":{}}', b'{"ok":true,"channel":"D1"}'])
async def test_a_conversation_without_an_id_is_retried(body: bytes) -> None:
    """Without its id nothing could be posted, or found again."""
    async with a_server(On(OPEN, Raw(body))) as slack:
        result = await an_adapter(slack).execute(an_attempt(a_message(channel=JANE)))
    assert isinstance(result, Retry)


async def test_a_token_of_no_bot_needs_an_app_id() -> None:
    """Without an id no post could be known as ours, so none is made until one is configured."""
    async with a_server() as slack:
        slack.bot_id = None
        refused = await an_adapter(slack).execute(an_attempt())
        posted = await an_adapter(slack, app_id=slack.app_id).execute(an_attempt())
    assert isinstance(refused, Defer)
    assert (refused.scope, "app_id" in refused.reason) == ("kind", True)
    assert isinstance(posted, Done)


async def test_without_a_token_the_kind_waits() -> None:
    """A process that only enqueues needs none; one that should post says what is missing."""
    result = await SlackAdapter(None).execute(an_attempt())
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", None)


@pytest.mark.parametrize("step", [Drop(), Refuse("x", 500), Limit("0"), Raw(b"")], ids=repr)
async def test_nothing_is_ever_asked_twice(step: Step) -> None:
    """The SDK would retry by itself after a lost connection, and post twice."""
    async with a_server(On(POST, step, keeps=True)) as slack:
        await an_adapter(slack).execute(an_attempt())
    assert (slack.calls(POST), len(slack.posts)) == (1, 1)


@contextmanager
def a_mute_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


async def connecting(base_url: str, *, window: float = 60.0, **options: Any) -> tuple[Result, Any]:
    """The result of a first attempt at this address."""
    attempt = an_attempt(window=window)
    usual: dict[str, Any] = {"base_url": base_url, "bot_id": "B0TESTBOT", "timeout": 5.0, "post_interval": 0.0}
    usual["token"] = "xoxb-x"  # noqa: S105 - no token of anybody
    return await SlackAdapter(**{**usual, **options}).execute(attempt), attempt


async def test_a_refused_connection_defers_the_kind() -> None:
    """Nothing was asked, and the next action would meet the same."""
    result, attempt = await connecting(f"http://127.0.0.1:{free_port()}/api")
    assert isinstance(result, Defer)
    assert (result.scope, result.wait, attempt.writes) == ("kind", None, 1)


async def test_an_unknown_name_defers_the_kind() -> None:
    """DNS knows nothing of it."""
    result, _ = await connecting("https://slack.invalid/api")
    assert isinstance(result, Defer)
    assert (result.scope, "name" in result.reason) == ("kind", True)


async def test_a_connection_that_does_not_come_defers_the_kind() -> None:
    """TLS never gets an answer within the time for connecting."""
    with a_mute_port() as port:
        result, _ = await connecting(f"https://127.0.0.1:{port}/api", timeout=0.2)
    assert isinstance(result, Defer)
    assert (result.scope, "in time" in result.reason) == ("kind", True)


async def test_a_window_that_ends_while_connecting_is_retried() -> None:
    """The client saw that no header was sent: nothing can have been posted."""
    with a_mute_port() as port:
        result, attempt = await connecting(f"https://127.0.0.1:{port}/api", window=0.2)
    assert isinstance(result, Retry)
    assert attempt.writes == 1


async def test_a_server_without_tls_defers_the_kind() -> None:
    """Nothing is said to what does not prove to be Slack."""
    async with a_server() as slack:
        result, _ = await connecting(slack.base_url.replace("http:", "https:"))
    assert isinstance(result, Defer)
    assert slack.requests == []


async def test_a_certificate_of_somebody_else_defers_the_kind_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Waiting will not mend it."""
    authority = trustme.CA()
    async with a_server(tls=server_context(authority, "127.0.0.1")) as slack:
        refused, _ = await connecting(slack.base_url)
        accepted, _ = await connecting(slack.base_url, tls_context=client_context(authority), token=slack.token)
    assert isinstance(refused, Defer)
    assert "certificate" in refused.reason
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert isinstance(accepted, Done)


async def test_no_proxy_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would see every post; only a configured one is used."""
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with a_server() as slack:
        direct = await an_adapter(slack).execute(an_attempt())
        through = await an_adapter(slack, proxy=f"http://127.0.0.1:{free_port()}").execute(an_attempt())
    assert isinstance(direct, Done)
    assert isinstance(through, Defer)
    assert "proxy" in through.reason


async def test_a_machine_that_slept_while_connecting_posts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is counted on a clock that goes on during suspension: once it is over, no header is sent."""
    sleeping = 0.0
    real = Deadline.after(0).at
    monkeypatch.setattr("edgeoutbox.clock.SystemClock.boot", lambda _: real + sleeping)

    class Sleeping(Watching):
        async def begin_write(self) -> WriteWindow:
            window = await super().begin_write()
            asyncio.get_running_loop().call_soon(fall_asleep)
            return window

    def fall_asleep() -> None:
        nonlocal sleeping
        sleeping = 3600.0

    async with a_server() as slack:
        attempt = Sleeping(a_message())
        attempt.slack = slack
        result = await an_adapter(slack, bot_id=slack.bot_id).execute(attempt)
    assert isinstance(result, Retry)
    assert (slack.requests, attempt.writes) == ([], 1)


async def test_a_cancelled_attempt_asks_nothing_afterwards() -> None:
    """What the executor cancels ends at once; whether it was posted is the next attempt's to find out."""
    async with a_server(On(POST, Hang(), keeps=True)) as slack:
        adapter = an_adapter(slack)
        running = asyncio.create_task(adapter.execute(an_attempt()))
        await slack.reached(POST)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await adapter.execute(a_later_attempt())
    assert isinstance(result, Done)
    assert slack.calls(POST) == 1


async def test_posts_to_one_place_keep_their_distance() -> None:
    """A turn that comes after the attempt's time defers the action before its fence; other places do not wait."""
    async with a_server() as slack:
        slack.add_channel("C0OTHER")
        adapter = an_adapter(slack, post_interval=3600.0)
        first, second, other = [
            await adapter.execute(an_attempt(a_message(channel=channel), key=key))
            for key, channel in (("a", CHANNEL), ("b", CHANNEL), ("c", "C0OTHER"))
        ]
    assert isinstance(first, Done)
    assert isinstance(second, Defer)
    assert second.scope == "action"
    assert second.wait == pytest.approx(3600, abs=10)
    assert isinstance(other, Done)


async def test_posts_to_one_place_wait_for_a_near_turn() -> None:
    """A turn within the attempt's time is waited for."""
    async with a_server() as slack:
        adapter = an_adapter(slack, post_interval=0.2)
        began = asyncio.get_running_loop().time()
        for key in ("a", "b"):
            await adapter.execute(an_attempt(key=key))
    assert len(slack.posts) == 2
    assert asyncio.get_running_loop().time() - began >= 0.2


SECRET = "xoxb-hunter2"  # noqa: S105 - the token of a test
PRIVATE = ("hunter2", "Jane is ill", JANE, KEY, "smuggled")
SMUGGLED = b'{"ok":false,"error":"smuggled","needed":"smuggled","response_metadata":{"messages":["smuggled"]}}'


@pytest.mark.parametrize("attempt_of", [an_attempt, a_later_attempt], ids=["posting", "looking"])
@pytest.mark.parametrize(
    "step",
    [
        *(Refuse(code) for code in ("invalid_auth", "no_text", "smuggled", "ratelimited", "fatal_error")),
        *(Raw(SMUGGLED), Raw(b"smuggled"), Raw(b"smuggled", 500), Raw(SMUGGLED, 200, "text/plain")),
        *(Raw(b"smuggled \xff"), Limit("smuggled"), Drop(), Cut()),
    ],
    ids=repr,
)
async def test_no_result_and_no_log_line_holds_anything_private(
    step: Step, attempt_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """No token, no text, no person, no key, and no word of what Slack said, also at the finest level of logging."""
    with caplog.at_level(logging.DEBUG):
        async with a_server(*(On(method, step) for method in (POST, HISTORY)), token=SECRET) as slack:
            adapter = an_adapter(slack)
            result = await adapter.execute(attempt_of(a_message(channel=JANE, text="Jane is ill")))
    said = (
        repr(result) + repr(adapter) + "".join(record.getMessage() + str(record.exc_info) for record in caplog.records)
    )
    assert isinstance(result, Retry | Defer | Failed | Reread)
    assert not [word for word in PRIVATE if word in said]


async def test_a_refused_token_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Attempts that are under way together meet the same refusal."""
    async with a_server(token=SECRET) as slack:
        adapter = an_adapter(slack, token="xoxb-old")  # noqa: S106 - no token of anybody
        results = await asyncio.gather(*(adapter.execute(an_attempt(key=str(number))) for number in range(5)))
    assert all(isinstance(result, Defer) for result in results)
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "invalid_auth" in record.getMessage()
