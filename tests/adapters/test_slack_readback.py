"""Looking for an earlier post: what counts as found, what as not seen, and that nothing is ever posted again."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edgeoutbox.results import Defer, Done, Reread
from edgeoutbox.testing.attempt import CREATED_AT
from edgeoutbox_slack.marker import EVENT_TYPE, key_hash, mark
from edgeoutbox_slack.readback import Window
from edgeoutbox_slack.testing import Alter, Cut, Drop, Hang, Limit, On, Raw, Redirect, Refuse, SlackServer, Step
from tests.adapters.slack_building import (
    CHANNEL,
    HISTORY,
    JANE,
    KEY,
    NOW,
    OPEN,
    POST,
    REPLIES,
    WHO,
    a_later_attempt,
    a_message,
    a_server,
    an_adapter,
    an_attempt,
)

LOST = On(POST, Drop(), call=1, keeps=True)


def ours(server: SlackServer, **fields: Any) -> dict[str, Any]:
    """The fields of a message that is our post of the usual key."""
    return {"bot_id": server.bot_id, "app_id": server.app_id, "metadata": mark(KEY), **fields}


@pytest.fixture(autouse=True)
def _posts_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever an attempt under an inherited fence meets, it never asks for a fence."""
    fenced: list[object] = []

    async def refused(attempt: Any) -> None:
        fenced.append(attempt)
        raise AssertionError

    later = type(a_later_attempt())
    given = later.begin_write

    async def begin_write(attempt: Any) -> Any:
        return await (given(attempt) if attempt.inherited_write_at is None else refused(attempt))

    monkeypatch.setattr(later, "begin_write", begin_write)
    yield
    assert fenced == []


async def test_a_post_whose_answer_was_lost_is_found() -> None:
    """The second attempt only reads, and the channel holds one post."""
    async with a_server(LOST) as slack:
        adapter = an_adapter(slack)
        first = await adapter.execute(an_attempt())
        second = await adapter.execute(a_later_attempt())
    [post] = slack.posts
    assert isinstance(first, Reread)
    assert second == Done(
        f"{CHANNEL}:{post.ts}", read_back=True, evidence={"method": HISTORY, "pages": 1, "matches": 1}
    )


async def test_a_post_that_does_not_exist_is_not_made_again() -> None:
    """Deleted and outdated posts are not shown, so a complete history without it proves nothing."""
    async with a_server() as slack:
        slack.say(CHANNEL, "something else")
        result = await an_adapter(slack).execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert result.evidence == {"method": HISTORY, "pages": 1, "complete": True}
    assert slack.calls(POST) == 0


async def test_a_deleted_post_is_not_made_again() -> None:
    """Somebody took it away; they would not want it back."""
    async with a_server(LOST) as slack:
        adapter = an_adapter(slack)
        await adapter.execute(an_attempt())
        slack.delete(slack.posts[0])
        result = await adapter.execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert slack.calls(POST) == 1


async def test_a_history_that_is_not_closed_yet_is_no_complete_one() -> None:
    """The attempt that posts may have all of its window, and Slack ten minutes to show it."""
    soon = {"lease_expires_at": CREATED_AT + 240_000}
    async with a_server() as slack:
        result = await an_adapter(slack).execute(a_later_attempt(fields=soon))
    assert isinstance(result, Reread)
    assert result.evidence["complete"] is False


def test_the_window_covers_every_possible_write() -> None:
    """Five minutes before the first write, and ten after the end of its window and lease."""
    assert Window.around(CREATED_AT, 120.0, 60.0) == Window(CREATED_AT - 300_000, CREATED_AT + 180_000 + 600_000)


async def test_a_history_is_asked_for_with_its_marks() -> None:
    """With metadata, within the window, and no more than 200 messages a page."""
    async with a_server() as slack:
        await an_adapter(slack, bot_id=slack.bot_id).execute(a_later_attempt())
    [request] = slack.requests
    assert request.http_method == "GET"
    assert request.arguments == {
        "channel": CHANNEL,
        "oldest": f"{int(NOW) - 300}.000000",
        "latest": f"{int(NOW) + 780}.000000",
        "inclusive": "1",
        "include_all_metadata": "1",
        "limit": "200",
    }


async def test_every_page_is_read() -> None:
    """The post is the oldest of many, on the last page."""
    async with a_server(LOST, most_per_page=15) as slack:
        adapter = an_adapter(slack)
        await adapter.execute(an_attempt())
        for _ in range(40):
            slack.say(CHANNEL)
        result = await adapter.execute(a_later_attempt())
    assert isinstance(result, Done)
    assert result.evidence["pages"] == 3


@pytest.mark.parametrize("most_per_page", [1, 200])
async def test_two_posts_of_one_key_are_done_with_the_first(
    most_per_page: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be undone, so it is said, without the key."""
    async with a_server(most_per_page=most_per_page) as slack:
        first = slack.say(CHANNEL, **ours(slack))
        slack.say(CHANNEL, **ours(slack))
        result = await an_adapter(slack).execute(a_later_attempt())
    assert isinstance(result, Done)
    assert (result.readback_ref, result.evidence["matches"]) == (f"{CHANNEL}:{first.ts}", 2)
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "2 posts" in record.getMessage()
    assert KEY not in record.getMessage()


@pytest.mark.parametrize(
    "change",
    [
        {"bot_id": "B0OTHER", "app_id": "A0OTHER"},
        {"bot_id": None, "app_id": None},
        {"metadata": mark("another key")},
        {"metadata": {"event_type": "other", "event_payload": {"key": key_hash(KEY)}}},
        {"metadata": None},
    ],
    ids=repr,
)
async def test_what_is_not_ours_is_not_found(change: dict[str, Any]) -> None:
    """Everybody in the workspace can read a mark and copy it; only Slack says who posted it."""
    async with a_server() as slack:
        slack.say(CHANNEL, **{**ours(slack), **change})
        result = await an_adapter(slack).execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert result.evidence["complete"] is True


@pytest.mark.parametrize("known", [{"bot_id": "B0TESTBOT"}, {"app_id": "A0TESTAPP"}], ids=repr)
async def test_our_posts_are_known_by_bot_or_app(known: dict[str, str]) -> None:
    """Either id is enough, and with one configured Slack is not asked who we are."""
    async with a_server() as slack:
        post = slack.say(CHANNEL, **{**ours(slack), "bot_id": None, "app_id": None, **known})
        result = await an_adapter(slack, **known).execute(a_later_attempt())
    assert isinstance(result, Done)
    assert result.readback_ref == f"{CHANNEL}:{post.ts}"
    assert slack.calls(WHO) == 0


def page(**change: Any) -> Alter:
    return Alter(lambda usual: {**usual, **change})


INCOMPLETE: dict[str, Step] = {
    "a page that errs": Refuse("internal_error"),
    "a code of next year": Refuse("a_code_of_next_year"),
    "a server error": Refuse("no_text", status=500),
    "a missing scope": Refuse("missing_scope"),
    "a missing membership": Refuse("not_in_channel"),
    "a channel that is gone": Refuse("channel_not_found"),
    "a token of the wrong type": Refuse("not_allowed_token_type"),
    "a plan that has a limit": Refuse("message_limit_exceeded"),
    "a request that was cut": Refuse("request_timeout"),
    "a cursor that is lost": Refuse("invalid_cursor"),
    "more without a cursor": page(has_more=True, response_metadata={"next_cursor": ""}),
    "more without any": page(has_more=True, response_metadata=None),
    "no messages": page(messages=None),
    "messages that are none": page(messages=["x"]),
    "messages without a time": page(messages=[{"type": "message"}]),
    "a window that begins late": page(oldest=f"{int(NOW)}.000000"),
    "a window that ends early": page(latest=f"{int(NOW)}.000000"),
    "a window that begins late, as a number": page(oldest=NOW),
    "a window that ends early, as a number": page(latest=int(NOW)),
    "a history that is limited": page(is_limited=True),
    "ok as a word": page(ok="true"),
    "no JSON": Raw(b"<html>"),
    "plain text": Raw(b"ok", content_type="text/plain"),
    "bad UTF-8": Raw(b"\xff"),
    "half of a page": Cut(),
    "a lost connection": Drop(),
    "a redirect": Redirect("http://127.0.0.1:9/"),
    "silence": Hang(),
}


@pytest.mark.parametrize("step", INCOMPLETE.values(), ids=INCOMPLETE.keys())
async def test_what_could_not_be_seen_is_reread(step: Step) -> None:
    """An incomplete look finds nothing out: it is neither a retry nor a failure, and says that it was not complete."""
    async with a_server(On(HISTORY, step)) as slack:
        result = await an_adapter(slack, timeout=0.3).execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert result.evidence["complete"] is False
    assert result.wait == 60.0
    assert slack.calls(POST) == 0


async def test_an_error_on_a_later_page_is_incomplete() -> None:
    """The first page alone finds nothing out."""
    async with a_server(On(HISTORY, Refuse("fatal_error"), call=2), most_per_page=1) as slack:
        slack.say(CHANNEL)
        slack.say(CHANNEL)
        result = await an_adapter(slack).execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert result.evidence["complete"] is False


async def test_an_error_after_the_post_was_found_changes_nothing() -> None:
    """It exists; what stands on other pages cannot make that untrue."""
    async with a_server(On(HISTORY, Refuse("fatal_error"), call=2), most_per_page=1) as slack:
        slack.say(CHANNEL)
        post = slack.say(CHANNEL, **ours(slack))
        result = await an_adapter(slack).execute(a_later_attempt())
    assert isinstance(result, Done)
    assert result.readback_ref == f"{CHANNEL}:{post.ts}"


async def test_more_pages_than_may_be_read_are_incomplete() -> None:
    """A look has an end, also where a channel has none."""
    async with a_server(most_per_page=1) as slack:
        for _ in range(5):
            slack.say(CHANNEL)
        result = await an_adapter(slack, most_pages=3).execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert result.evidence == {"method": HISTORY, "pages": 3, "complete": False}
    assert slack.calls(HISTORY) == 3


@pytest.mark.parametrize("payload", [None, {}, {"key": 7}, "x"], ids=repr)
async def test_a_stripped_mark_is_incomplete(payload: object) -> None:
    """A post of our own that lost its mark could be the one."""
    async with a_server() as slack:
        slack.say(CHANNEL, **ours(slack, metadata={"event_type": EVENT_TYPE, "event_payload": payload}))
        result = await an_adapter(slack).execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert (result.evidence["complete"], result.reason) == (False, "a post of our own has lost its mark")


async def test_a_history_without_its_marks_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ignores `include_all_metadata` strips every mark, and nothing is concluded from that."""
    monkeypatch.setattr(SlackServer, "_page", stripping(SlackServer._page))
    async with a_server(LOST) as slack:
        adapter = an_adapter(slack)
        await adapter.execute(an_attempt())
        result = await adapter.execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert result.evidence["complete"] is False


def stripping(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda server, messages, arguments: real(server, messages, {**arguments, "include_all_metadata": "0"})


DEFERRED: dict[str, tuple[Step, float | None]] = {
    "a limit": (Limit("7"), 7.0),
    "a refused token": (Refuse("token_revoked"), None),
}


@pytest.mark.parametrize("method", [WHO, OPEN, HISTORY])
@pytest.mark.parametrize(("step", "wait"), DEFERRED.values(), ids=DEFERRED.keys())
async def test_what_meets_a_look_from_outside_spends_no_attempt(method: str, step: Step, wait: float | None) -> None:
    """A limit or a refused token defers the kind; under an inherited fence the core keeps the fence."""
    async with a_server(On(method, step)) as slack:
        result = await an_adapter(slack).execute(a_later_attempt(a_message(channel=JANE)))
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", wait)


async def test_a_slack_that_cannot_be_reached_spends_no_attempt() -> None:
    """An outage is not the action's fault."""
    async with a_server() as slack:
        adapter = an_adapter(slack)
    result = await adapter.execute(a_later_attempt())
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", None)


@pytest.mark.parametrize("method", [WHO, OPEN])
@pytest.mark.parametrize(
    "step", [Refuse("fatal_error"), Refuse("user_not_found"), Refuse("missing_scope"), Drop(), Raw(b"{}")], ids=repr
)
async def test_a_step_that_fails_before_a_look_is_reread(method: str, step: Step) -> None:
    """What fails a first attempt proves nothing about an earlier post."""
    async with a_server(On(method, step)) as slack:
        result = await an_adapter(slack).execute(a_later_attempt(a_message(channel=JANE)))
    assert isinstance(result, Reread)
    assert result.evidence["complete"] is False
    assert slack.calls(POST) == 0


async def test_a_direct_message_is_looked_for_where_it_was_opened() -> None:
    """The conversation that Slack opened is posted to, named in the reference, and read."""
    async with a_server(LOST) as slack:
        adapter = an_adapter(slack)
        await adapter.execute(an_attempt(a_message(channel=JANE)))
        result = await adapter.execute(a_later_attempt(a_message(channel=JANE)))
    [post] = slack.posts
    assert post.channel == "D0JANE"
    assert isinstance(result, Done)
    assert result.readback_ref == f"D0JANE:{post.ts}"


@pytest.mark.parametrize("broadcast", [True, False])
async def test_a_reply_is_looked_for_in_its_thread(broadcast: bool) -> None:
    """A thread has a listing of its own; the channel's does not show replies."""
    async with a_server(LOST) as slack:
        parent = slack.say(CHANNEL)
        message = a_message(thread_ts=parent.ts, reply_broadcast=broadcast)
        adapter = an_adapter(slack)
        await adapter.execute(an_attempt(message))
        result = await adapter.execute(a_later_attempt(message))
    [post] = slack.posts
    assert isinstance(result, Done)
    assert result.readback_ref == f"{CHANNEL}:{post.ts}"
    assert (slack.calls(REPLIES), slack.calls(HISTORY)) == (1, 0)


@pytest.mark.parametrize("code", ["not_allowed_token_type", "missing_scope", "thread_not_found", "channel_not_found"])
async def test_a_thread_that_cannot_be_read_stays_uncertain(code: str) -> None:
    """Slack lets some tokens post replies that they cannot read."""
    async with a_server(LOST, On(REPLIES, Refuse(code))) as slack:
        parent = slack.say(CHANNEL)
        message = a_message(thread_ts=parent.ts)
        adapter = an_adapter(slack)
        await adapter.execute(an_attempt(message))
        result = await adapter.execute(a_later_attempt(message))
    assert isinstance(result, Reread)
    assert slack.calls(POST) == 1


async def test_a_look_goes_on_where_a_limit_stopped_it() -> None:
    """An app that may read one page a minute comes to the end in several attempts, none of which counts."""
    moment = [NOW]
    async with a_server(most_per_page=15, history_interval=60.0, now=lambda: moment[0]) as slack:
        post = slack.say(CHANNEL, **ours(slack))
        for _ in range(40):
            slack.say(CHANNEL)
        adapter = an_adapter(slack, bot_id=slack.bot_id)
        results = []
        for _ in range(3):
            results.append(await adapter.execute(a_later_attempt()))
            moment[0] += 60
    assert [type(result) for result in results] == [Defer, Defer, Done]
    assert results[2] == Done(
        f"{CHANNEL}:{post.ts}", read_back=True, evidence={"method": HISTORY, "pages": 3, "matches": 1}
    )
    assert slack.calls(HISTORY) == 5


async def test_a_look_makes_way_until_its_turn() -> None:
    """With a pause between requests, the next one waits as the action, and neither holds an attempt nor spends it."""
    async with a_server() as slack:
        adapter = an_adapter(slack, history_interval=60.0)
        first = await adapter.execute(a_later_attempt())
        second = await adapter.execute(a_later_attempt(key="another"))
    assert isinstance(first, Reread)
    assert isinstance(second, Defer)
    assert second.scope == "action"
    assert second.wait == pytest.approx(60, abs=5)
    assert slack.calls(HISTORY) == 1


async def test_a_look_that_is_cancelled_posts_nothing() -> None:
    """The attempt ends, and with it every request."""
    async with a_server(On(HISTORY, Hang())) as slack:
        running = asyncio.create_task(an_adapter(slack).execute(a_later_attempt()))
        await slack.reached(HISTORY)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert slack.calls(POST) == 0


async def test_a_look_that_began_too_early_is_not_complete() -> None:
    """Its first page was read before the post had to be there, however late it came to the last one."""
    moment = [NOW]
    soon = {"lease_expires_at": CREATED_AT + 240_000}
    async with a_server(most_per_page=1, history_interval=60.0, now=lambda: moment[0]) as slack:
        slack.say(CHANNEL)
        slack.say(CHANNEL)
        adapter = an_adapter(slack, bot_id=slack.bot_id)
        await adapter.execute(a_later_attempt(fields=soon))
        moment[0] += 3600
        result = await adapter.execute(a_later_attempt())
    assert isinstance(result, Reread)
    assert result.evidence == {"method": HISTORY, "pages": 2, "complete": False}
