"""The Slack server for tests: that it does what Slack does, so that what passes on it means something."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edgeoutbox_slack import SlackAdapter
from edgeoutbox_slack.testing import (
    SCOPES,
    Alter,
    Drop,
    Hang,
    Limit,
    On,
    Redirect,
    Refuse,
    SlackServer,
    Usual,
    duplicates,
    read_record,
)
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
    a_message,
    a_server,
    an_attempt,
)

MARK = {"event_type": "mark", "event_payload": {"key": "k"}}


async def ask(server: SlackServer, method: str, token: str | None = "", **arguments: Any) -> dict[str, Any]:
    """What the server answers to a request in JSON, its status and its rest."""
    bearer = server.token if token == "" else token
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/{method}", json=arguments, headers=headers, allow_redirects=False) as response,
    ):
        read: dict[str, Any] = await response.json(content_type=None) or {}
        return {**read, "status": response.status, "rest": response.headers.get("Retry-After")}


async def posted(server: SlackServer, **fields: Any) -> dict[str, Any]:
    """The answer to a post."""
    return await ask(server, POST, **{"channel": CHANNEL, "text": "x", **fields})


async def test_a_post_is_kept_and_told() -> None:
    """With its channel and timestamp, its author, and what it was made of."""
    async with a_server() as slack:
        answer = await posted(slack, metadata=MARK)
    [post] = slack.posts
    assert (answer["ok"], answer["channel"], answer["ts"]) == (True, CHANNEL, post.ts)
    assert (post.bot_id, post.app_id, post.key) == (slack.bot_id, slack.app_id, "k")


async def test_timestamps_differ() -> None:
    """Also when the clock stands still: they are a channel's ids."""
    async with a_server() as slack:
        answers = [(await posted(slack))["ts"] for _ in range(3)]
    assert answers == sorted(set(answers))
    assert answers[0] == f"{NOW:.6f}"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"channel": "C0NONE"}, "channel_not_found"),
        ({"channel": "C0PRIVATE"}, "channel_not_found"),
        ({"channel": "C0FOREIGN"}, "not_in_channel"),
        ({"channel": "C0OLD"}, "is_archived"),
        ({"text": ""}, "no_text"),
        ({"text": "x" * 40_001}, "msg_too_long"),
        ({"thread_ts": "1.000001"}, "cannot_reply_to_message"),
        ({"metadata": {"event_type": "a-b"}}, "invalid_metadata_format"),
        ({"username": "x"}, "missing_scope"),
    ],
    ids=repr,
)
async def test_a_post_that_slack_refuses_is_refused(fields: dict[str, Any], code: str) -> None:
    """By its code, and it is not kept."""
    async with a_server(scopes=set(SCOPES) - {"chat:write.customize"}) as slack:
        slack.add_channel("C0PRIVATE", private=True, member=False)
        slack.add_channel("C0FOREIGN", member=False)
        slack.add_channel("C0OLD", archived=True)
        answer = await posted(slack, **fields)
    assert (answer["ok"], answer["error"], slack.posts) == (False, code, [])


@pytest.mark.parametrize(("token", "code"), [(None, "not_authed"), ("xoxb-other", "invalid_auth")])
async def test_a_token_is_asked_for(token: str | None, code: str) -> None:
    """Every method needs it."""
    async with a_server() as slack:
        answers = [await ask(slack, method, token) for method in (WHO, POST, HISTORY, "no.method")]
    assert [answer["error"] for answer in answers] == [code] * 4


async def test_a_method_that_does_not_exist_is_unknown() -> None:
    """As Slack says it."""
    async with a_server() as slack:
        assert (await ask(slack, "chat.postMessages"))["error"] == "unknown_method"


async def test_a_history_has_pages_from_the_newest() -> None:
    """Each tells whether there is more and where; a cursor of nowhere is refused."""
    async with a_server(most_per_page=2) as slack:
        said = [slack.say(CHANNEL).ts for _ in range(3)]
        first = await ask(slack, HISTORY, channel=CHANNEL, limit=200)
        cursor = first["response_metadata"]["next_cursor"]
        second = await ask(slack, HISTORY, channel=CHANNEL, cursor=cursor)
        lost = await ask(slack, HISTORY, channel=CHANNEL, cursor="bm93aGVyZQ==")
    assert [message["ts"] for message in first["messages"]] == [said[2], said[1]]
    assert [message["ts"] for message in second["messages"]] == [said[0]]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert second["response_metadata"]["next_cursor"] == ""
    assert lost["error"] == "invalid_cursor"


async def test_a_history_has_bounds() -> None:
    """From the oldest to the latest that was asked for."""
    async with a_server() as slack:
        said = [slack.say(CHANNEL, ts=f"{second}.000000").ts for second in (1, 2, 3, 4)]
        answer = await ask(slack, HISTORY, channel=CHANNEL, oldest=said[1], latest=said[2])
    assert [message["ts"] for message in answer["messages"]] == [said[2], said[1]]


async def test_metadata_is_stripped_unless_it_is_asked_for() -> None:
    """Only its type is left."""
    async with a_server() as slack:
        await posted(slack, metadata=MARK)
        without = await ask(slack, HISTORY, channel=CHANNEL)
        with_it = await ask(slack, HISTORY, channel=CHANNEL, include_all_metadata=True)
    assert without["messages"][0]["metadata"] == {"event_type": "mark"}
    assert with_it["messages"][0]["metadata"] == MARK


async def test_a_reply_is_in_its_thread() -> None:
    """And in the channel only when it is broadcast."""
    async with a_server() as slack:
        parent = slack.say(CHANNEL)
        quiet = (await posted(slack, thread_ts=parent.ts))["ts"]
        loud = (await posted(slack, thread_ts=parent.ts, reply_broadcast=True))["ts"]
        thread = await ask(slack, REPLIES, channel=CHANNEL, ts=parent.ts)
        channel = await ask(slack, HISTORY, channel=CHANNEL)
        nowhere = await ask(slack, REPLIES, channel=CHANNEL, ts="1.000001")
    assert [message["ts"] for message in thread["messages"]] == [parent.ts, quiet, loud]
    assert [message["ts"] for message in channel["messages"]] == [loud, parent.ts]
    assert nowhere["error"] == "thread_not_found"


async def test_a_conversation_with_a_person_is_opened_once() -> None:
    """It has one id, however often it is opened; nobody can be written to who does not exist."""
    async with a_server() as slack:
        opened = [await ask(slack, OPEN, users=JANE) for _ in range(2)]
        nobody = await ask(slack, OPEN, users="U0NOBODY")
        answer = await posted(slack, channel="D0JANE")
    assert [answer["channel"]["id"] for answer in opened] == ["D0JANE", "D0JANE"]
    assert nobody["error"] == "user_not_found"
    assert answer["ok"]


@pytest.mark.parametrize(
    ("channel", "scope"), [(CHANNEL, "channels:history"), ("C0PRIVATE", "groups:history"), ("D0JANE", "im:history")]
)
async def test_a_history_needs_its_scope(channel: str, scope: str) -> None:
    """One for each sort of conversation."""
    async with a_server() as slack:
        slack.add_channel("C0PRIVATE", private=True)
        await ask(slack, OPEN, users=JANE)
        allowed = await ask(slack, HISTORY, channel=channel)
        slack.scopes.discard(scope)
        refused = await ask(slack, HISTORY, channel=channel)
    assert (allowed["ok"], refused["error"], refused["needed"]) == (True, "missing_scope", scope)


async def test_histories_can_be_limited() -> None:
    """As for an app outside of the marketplace: one a minute, and when it may ask again."""
    moment = [NOW]
    async with a_server(history_interval=60.0, now=lambda: moment[0]) as slack:
        first = await ask(slack, HISTORY, channel=CHANNEL)
        second = await ask(slack, HISTORY, channel=CHANNEL)
        moment[0] += 60
        third = await ask(slack, HISTORY, channel=CHANNEL)
    assert (first["ok"], third["ok"]) == (True, True)
    assert (second["status"], second["rest"], second["error"]) == (429, "60", "ratelimited")


async def test_a_script_holds_for_its_call() -> None:
    """By number, by channel, or so many times."""
    script = [
        On(POST, Refuse("first"), call=1),
        On(POST, Refuse("there"), channel="C0THERE"),
        On(POST, Refuse("once"), times=1),
    ]
    async with a_server(*script) as slack:
        codes = [
            (await posted(slack)).get("error"),
            (await posted(slack, channel="C0THERE")).get("error"),
            (await posted(slack)).get("error"),
            (await posted(slack)).get("error"),
        ]
    assert codes == ["first", "there", "once", None]


async def test_a_chance_is_thrown_with_the_same_dice() -> None:
    """The same script gives the same run."""
    runs = []
    for _ in range(2):
        async with a_server(On(POST, Refuse("unlucky"), chance=0.5)) as slack:
            runs.append([(await posted(slack))["ok"] for _ in range(20)])
    assert runs[0] == runs[1]
    assert set(runs[0]) == {True, False}


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_lost_answer_keeps_its_post_when_it_is_told_to(keeps: bool) -> None:
    """The client sees the same."""
    async with a_server(On(POST, Drop(), keeps=keeps)) as slack:
        with pytest.raises(aiohttp.ClientConnectionError):
            await posted(slack)
    assert len(slack.posts) == keeps


async def test_a_kept_post_can_show_late() -> None:
    """Its history has it only after a while."""
    moment = [NOW]
    async with a_server(On(POST, Usual(), keeps=True, hidden=30.0), now=lambda: moment[0]) as slack:
        await posted(slack)
        before = await ask(slack, HISTORY, channel=CHANNEL)
        moment[0] += 30
        after = await ask(slack, HISTORY, channel=CHANNEL)
    assert (len(before["messages"]), len(after["messages"])) == (0, 1)


async def test_an_answer_can_be_altered_limited_or_elsewhere() -> None:
    """Each step of a script as it reaches the client."""
    script = [
        On(WHO, Alter(lambda usual: {**usual, "bot_id": "B2"}), call=1),
        On(WHO, Limit("soon"), call=2),
        On(WHO, Limit(None), call=3),
        On(WHO, Redirect("http://127.0.0.1:9/"), call=4),
    ]
    async with a_server(*script) as slack:
        altered, limited, without, elsewhere = [await ask(slack, WHO) for _ in range(4)]
    assert altered["bot_id"] == "B2"
    assert (limited["status"], limited["rest"], without["rest"]) == (429, "soon", None)
    assert elsewhere["status"] == 307


async def test_a_hanging_call_does_not_keep_the_server_open() -> None:
    """Closing it ends whatever hangs."""
    async with a_server(On(WHO, Hang())) as slack:
        hanging = asyncio.create_task(ask(slack, WHO))
        await slack.reached(WHO)
    with contextlib.suppress(aiohttp.ClientError):
        await asyncio.wait_for(hanging, 5)


async def test_a_record_holds_every_post_and_no_text(tmp_path: Path) -> None:
    """It is appended to, so that a later server goes on with it; an unfinished last line is no post."""
    record = tmp_path / "posts.jsonl"
    for text in ("secret", "secret"):
        async with a_server(record=record) as slack:
            await posted(slack, text=text, metadata=MARK)
            await posted(slack, text=text)
    with record.open("a") as file:
        file.write('{"number":9')
    found = read_record(record)
    assert [(post.number, post.channel, post.key) for post in found] == [(1, CHANNEL, "k"), (2, CHANNEL, None)] * 2
    assert duplicates(found) == {"k": 2}
    assert "secret" not in record.read_text()
    assert read_record(tmp_path / "none") == []


async def test_a_record_tells_which_answers_were_kept_back(tmp_path: Path) -> None:
    """A post whose answer was dropped or changed is recorded as not answered; a refused one is not recorded."""
    record = tmp_path / "posts.jsonl"
    script = (On(POST, Drop(), call=1, keeps=True), On(POST, Usual(), call=2), On(POST, Refuse("no_text"), call=3))
    async with a_server(*script, record=record) as slack:
        with contextlib.suppress(aiohttp.ClientError):
            await posted(slack)
        for _ in range(3):
            await posted(slack)
    assert [(post.number, post.answered) for post in read_record(record)] == [(1, False), (2, True), (3, True)]


async def test_it_runs_as_a_program(tmp_path: Path) -> None:
    """It tells its address and token, and takes the posts of another process."""
    record = tmp_path / "posts.jsonl"
    command = ["-m", "edgeoutbox_slack.testing", "--channels", "2", "--record", str(record)]
    program = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert program.stdout is not None
        told = json.loads(await program.stdout.readline())
        adapter = SlackAdapter(told["token"], base_url=told["base_url"], post_interval=0)
        await adapter.execute(an_attempt(a_message(channel=told["channels"][1]), key=KEY))
    finally:
        program.kill()
        await program.wait()
    assert [post.channel for post in read_record(record)] == ["C0001"]
