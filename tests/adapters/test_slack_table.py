"""The failure table: what each answer to a post proves."""

import time
from email.utils import formatdate
from typing import Any

import pytest

from edgeoutbox.results import Defer, Done, Failed, Reread, Result, Retry
from edgeoutbox.states import StopReason
from edgeoutbox_slack.codes import CODES, FAMILIES, Meaning, look_up
from edgeoutbox_slack.testing import Alter, Cut, Drop, Hang, Limit, On, Raw, Redirect, Refuse, Step
from edgeoutbox_slack.waits import LONG, LONGEST_REST, SHORTEST_REST, USUAL_REST, Looks, retry_after
from tests.adapters.slack_building import CHANNEL, KEY, POST, a_message, a_server, an_adapter, an_attempt, code_of

LATER = ["message_limit_exceeded", "team_added_to_org", "org_login_required"]
LOGIN = [
    *("invalid_auth", "not_authed", "token_expired", "token_revoked", "account_inactive", "accesslimited"),
    "two_factor_setup_required",
]
NO_PLACE = ["channel_not_found", "not_in_channel", "is_archived", "messages_tab_disabled", "cannot_reply_to_message"]
NO_RIGHT = [
    *("restricted_action", "restricted_action_read_only_channel", "restricted_action_thread_locked", "missing_scope"),
    *("no_permission", "access_denied", "not_allowed_token_type", "ekm_access_denied", "unknown_method"),
    *("deprecated_endpoint", "deprecated_method"),
]
BAD_CONTENT = [
    *("msg_too_long", "no_text", "invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"),
    *("too_many_attachments", "attachment_payload_limit_exceeded", "markdown_text_conflict"),
    *("invalid_metadata_format", "invalid_metadata_schema", "metadata_too_large", "metadata_must_be_sent_from_app"),
    *("invalid_arg_name", "invalid_arguments", "invalid_charset", "invalid_form_data"),
    "invalid_post_type",
]
UNCLEAR = ["fatal_error", "internal_error", "service_unavailable", "a_code_of_next_year", "", "invalid", "deprecated"]


async def answered(step: Step, *, keeps: bool = False, window: float = 60.0, timeout: float = 5.0) -> Result:
    """The result of the first attempt of a post that is answered so; checks that it was made behind one fence."""
    async with a_server(On(POST, step, keeps=keeps)) as slack:
        attempt = an_attempt(window=window)
        result = await an_adapter(slack, timeout=timeout).execute(attempt)
    assert (slack.calls(POST), attempt.writes) == (1, 1)
    return result


async def test_a_confirmed_post_is_done() -> None:
    """The reference names channel and timestamp, and the post is there once."""
    async with a_server() as slack:
        result = await an_adapter(slack).execute(an_attempt())
    [post] = slack.posts
    assert isinstance(result, Done)
    assert (result.readback_ref, result.read_back) == (f"{CHANNEL}:{post.ts}", False)


@pytest.mark.parametrize("code", LATER)
async def test_what_only_time_mends_is_retried_after_a_long_wait(code: str) -> None:
    """Nothing was posted, and for a while nothing will be."""
    result = await answered(Refuse(code))
    assert isinstance(result, Retry)
    assert (result.wait, code_of(result)) == (LONG, code)


async def test_a_request_that_was_cut_is_retried() -> None:
    """Slack documents that it got only a part of the request."""
    result = await answered(Refuse("request_timeout"))
    assert isinstance(result, Retry)
    assert result.wait is None


@pytest.mark.parametrize("code", LOGIN)
async def test_a_refused_token_cools_the_kind_for_long(code: str) -> None:
    """It would refuse every other post too, and spends no attempt."""
    result = await answered(Refuse(code))
    assert isinstance(result, Defer)
    assert (result.scope, result.wait, code_of(result)) == ("kind", None, code)


@pytest.mark.parametrize("code", NO_PLACE)
async def test_a_place_that_takes_nothing_is_failed(code: str) -> None:
    """Nobody can receive it there."""
    result = await answered(Refuse(code))
    assert isinstance(result, Failed)
    assert (result.stop_reason, code_of(result)) == (StopReason.UNDELIVERABLE, code)


@pytest.mark.parametrize("code", NO_RIGHT)
async def test_a_missing_right_is_failed(code: str) -> None:
    """The app or the workspace is not set up for it."""
    result = await answered(Refuse(code))
    assert isinstance(result, Failed)
    assert result.stop_reason is StopReason.NOT_CONFIGURED


@pytest.mark.parametrize("code", BAD_CONTENT)
async def test_a_refused_content_is_failed(code: str) -> None:
    """The same content would be refused again."""
    result = await answered(Refuse(code))
    assert isinstance(result, Failed)
    assert result.stop_reason is StopReason.REJECTED


@pytest.mark.parametrize("code", UNCLEAR)
async def test_a_code_that_proves_nothing_is_reread(code: str) -> None:
    """A doubt, and every code that is not in the table, never becomes a second post."""
    assert isinstance(await answered(Refuse(code)), Reread)


async def test_an_unknown_code_is_not_repeated() -> None:
    """What is not in our table is the provider's text, and may hold anything."""
    result = await answered(Refuse("jane_doe_lives_here"))
    assert "jane" not in repr(result)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
@pytest.mark.parametrize(
    "body", [b'{"ok":true,"ts":"1.000001","channel":"C1"}', b'{"ok":false,"error":"no_text"}', b""]
)
async def test_a_server_error_is_reread(status: int, body: bytes) -> None:
    """Whatever stands beside it: part may have succeeded."""
    result = await answered(Raw(body, status))
    assert isinstance(result, Reread)
    assert result.evidence["status"] == status


UNREADABLE: dict[str, Step] = {
    "ok without ts": Alter(lambda usual: {**usual, "ts": None}),
    "ok without channel": Alter(lambda usual: {"ok": True, "ts": usual["ts"]}),
    "ok with an empty ts": Alter(lambda usual: {**usual, "ts": ""}),
    "ok with a number as ts": Alter(lambda usual: {**usual, "ts": 1.5}),
    "ok as a word": Alter(lambda usual: {**usual, "ok": "true"}),
    "no ok": Alter(lambda usual: {"ts": usual["ts"], "channel": usual["channel"]}),
    "an error that is no word": Alter(lambda _: {"ok": False, "error": ["no_text"]}),
    "a list": Alter(lambda usual: [usual]),
    "a number": Raw(b"7"),
    "null": Raw(b"null"),
    "nothing": Raw(b""),
    "no JSON": Raw(b"<html>maintenance</html>"),
    "HTML": Raw(b"<html>maintenance</html>", content_type="text/html"),
    "plain text": Raw(b"ok", content_type="text/plain"),
    "plain text that is JSON": Raw(b'{"ok":true,"ts":"1.000001","channel":"C1"}', content_type="text/plain"),
    "bad UTF-8": Raw(b'{"ok":\xff\xfe}'),
    "bad gzip": Raw(b"{}", content_type="application/gzip"),
    "an encoding that is none": Raw(b"{}", headers={"Content-Encoding": "gzip"}),
    "half of an answer": Cut(),
    "nested without end": Raw(b"[" * 100_000),
    "confirmed with 201": Raw(b'{"ok":true,"ts":"1.000001","channel":"C1"}', 201),
    "confirmed with 404": Raw(b'{"ok":true,"ts":"1.000001","channel":"C1"}', 404),
    "confirmed with 429": Raw(b'{"ok":true,"ts":"1.000001","channel":"C1"}', 429),
    "304": Raw(b"", 304),
    "400 without a code": Raw(b"bad request", 400),
}


@pytest.mark.parametrize("step", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_answer_that_says_nothing_is_reread(step: Step) -> None:
    """Neither a confirmation nor a refusal: the post may be there."""
    result = await answered(step)
    assert isinstance(result, Reread)


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_lost_connection_is_reread(keeps: bool) -> None:
    """It looks the same whether the post exists or not."""
    result = await answered(Drop(), keeps=keeps)
    assert isinstance(result, Reread)
    assert "lost" in result.reason


async def test_a_silent_server_is_reread() -> None:
    """The request was sent; the attempt answers a little before its window ends."""
    result = await answered(Hang(), window=0.3)
    assert isinstance(result, Reread)
    assert "in time" in result.reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_reread_and_not_followed(status: int) -> None:
    """It would carry the token and the post to somebody else."""
    async with a_server() as elsewhere:
        result = await answered(Redirect(f"{elsewhere.base_url}/{POST}", status))
    assert isinstance(result, Reread)
    assert result.evidence["status"] == status
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    "step",
    [
        Limit("7"),
        Limit("7", status=200),
        Refuse("rate_limited", headers={"Retry-After": "7"}),
        Raw(b"slow down", 429, "text/plain", {"Retry-After": "7"}),
        Raw(b"\xff\xfe", 429, headers={"Retry-After": "7"}),
        Raw(b"", 429, headers={"Retry-After": "7"}),
    ],
    ids=repr,
)
async def test_a_limit_defers_the_kind_for_as_long_as_slack_says(step: Step) -> None:
    """By status or by code; nothing was posted."""
    result = await answered(step)
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", 7.0)


RESTS: dict[str | None, float] = {
    "30": 30.0,
    "1.5": 1.5,
    "0": SHORTEST_REST,
    "-1": SHORTEST_REST,
    "-inf": SHORTEST_REST,
    "9" * 400: LONGEST_REST,
    "1e9": LONGEST_REST,
    "inf": LONGEST_REST,
    "nan": USUAL_REST,
    "": USUAL_REST,
    "soon": USUAL_REST,
    "Thu, 99 Foo 2026 00:00:00 GMT": USUAL_REST,
    None: USUAL_REST,
}


@pytest.mark.parametrize(("text", "seconds"), RESTS.items(), ids=lambda value: str(value)[:12])
def test_a_rest_of_any_shape_is_bounded(text: str | None, seconds: float) -> None:
    """The header reaches us raw; what is no time is the usual rest."""
    assert retry_after(text) == seconds


def test_a_rest_may_be_a_date() -> None:
    """HTTP allows one; one in the past is the shortest rest."""
    now = time.time()
    assert retry_after(formatdate(now + 90, usegmt=True), now) == pytest.approx(90, abs=1)
    assert retry_after(formatdate(now - 90, usegmt=True), now) == SHORTEST_REST


@pytest.mark.parametrize("text", ["1.5", "-1", "9" * 400, "", None])
async def test_a_limit_with_any_header_defers(text: str | None) -> None:
    """The same through the whole adapter."""
    result = await answered(Limit(text))
    assert isinstance(result, Defer)
    assert result.wait == RESTS[text]


def test_looks_become_rarer() -> None:
    """Slack may allow one a minute, so the second comes no sooner than that."""
    assert [Looks().after(attempt) for attempt in (1, 2, 3, 4, 5, 6, 7)] == [10, 60, 120, 240, 480, 900, 900]
    assert Looks(1, 2).after(10_000) == 30


def test_the_table_names_each_code_once() -> None:
    """No code has two meanings, and none is hidden by a family of codes."""
    assert set(CODES).isdisjoint(FAMILIES)
    for code, meaning in CODES.items():
        assert look_up(code) == (meaning, code)
    assert look_up("invalid_blocks_format") == (Meaning.BAD_CONTENT, "invalid_blocks*")


async def test_two_attempts_make_the_same_request() -> None:
    """Mark and content depend on the action alone; the mark holds the key's hash and not the key."""
    message = a_message(blocks=[{"type": "divider"}], unfurl_links=False, username="Releases", icon_emoji=":tada:")
    async with a_server(On(POST, Refuse("request_timeout"), call=1)) as slack:
        for number in (1, 2):
            await an_adapter(slack).execute(an_attempt(message, attempt=number))
    first, second = (request.arguments for request in slack.requests if request.method == POST)
    assert first == second
    assert KEY not in str(first)


async def test_every_field_reaches_slack() -> None:
    """A literal message is what is posted, with the mark and nothing else beside it."""
    fields: dict[str, Any] = {
        "channel": CHANNEL,
        "text": "Release 7 is out.",
        "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "*Release 7*"}}],
        "unfurl_links": False,
        "unfurl_media": True,
        "reply_broadcast": True,
        "username": "Releases",
        "icon_emoji": ":tada:",
    }
    async with a_server() as slack:
        parent = slack.say(CHANNEL)
        await an_adapter(slack).execute(an_attempt(a_message(**fields, thread_ts=parent.ts)))
    [post] = slack.posts
    metadata = post.arguments["metadata"]
    assert post.arguments == {**fields, "thread_ts": parent.ts, "metadata": metadata}
    assert metadata["event_type"].replace("_", "a").isalnum()
    assert list(metadata["event_payload"]) == ["key"]
    assert len(metadata["event_payload"]["key"]) == 64
