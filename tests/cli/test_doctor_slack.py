import asyncio
from collections.abc import AsyncIterator

import pytest

from edgeoutbox_slack.testing import SlackServer
from tests.cli.terminal import CAPTURE, SLACK, Terminal

SENDS_NOTHING = {"auth.test", "conversations.info", "conversations.history"}


@pytest.fixture
async def slack(ready: Terminal) -> AsyncIterator[SlackServer]:
    """A Slack with one channel, and two kinds that post to it, beside email."""
    async with SlackServer() as server:
        server.add_channel("C0GENERAL")
        kinds = [SLACK.format(kind=kind, base_url=server.base_url) for kind in ("slack_post", "alerts")]
        ready.configure("".join([CAPTURE, *kinds]))
        ready.environment["SLACK_TOKEN"] = server.token
        yield server


async def test_doctor_looks_at_slack_alone(ready: Terminal, slack: SlackServer) -> None:
    """`doctor --slack` looks at every kind that posts to Slack, under whatever name, and posts nothing."""
    found = await asyncio.to_thread(ready.json, "doctor", "--slack")
    assert found["ok"] is True
    names = {each["name"] for each in found["checks"]}
    assert {name.partition(": ")[0] for name in names} == {"slack_post", "alerts"}
    looked_at = {"token", "scope to post", "scopes to read back", "channel C0GENERAL", "read back C0GENERAL"}
    assert {f"alerts: {what}" for what in looked_at} <= names
    assert {request.method for request in slack.requests} == SENDS_NOTHING
    assert slack.posts == []


async def test_doctor_says_how_to_mend_slack(ready: Terminal, slack: SlackServer) -> None:
    """What is not ok says what to do, and the command ends with 1."""
    slack.channels["C0GENERAL"].member = False
    slack.scopes.remove("chat:write")
    out = await asyncio.to_thread(ready.run, "doctor", "--slack", exit_code=1)
    lines = {line.partition(": ")[2] for line in out.splitlines() if line.startswith("not ok  alerts: ")}
    assert {line.partition("  ")[0] for line in lines} == {"scope to post", "channel C0GENERAL"}
    assert "add chat:write" in out
    assert "invite the app there" in out
    assert slack.token not in out


async def test_doctor_of_a_refused_token(ready: Terminal, slack: SlackServer) -> None:
    """A token that Slack does not take is not ok, and no word of it is shown."""
    ready.environment["SLACK_TOKEN"] = "xoxb-hunter2"  # noqa: S105 - it opens nothing
    out = await asyncio.to_thread(ready.run, "doctor", "--slack", exit_code=1)
    assert "install the app again" in out
    assert "hunter2" not in out + ready.said
    assert slack.posts == []


async def test_doctor_posts_where_it_is_told(ready: Terminal, slack: SlackServer) -> None:
    """`--to` makes one post, once it is clear by which kind."""
    await asyncio.to_thread(ready.run, "doctor", "--slack", "--to", "C0GENERAL", exit_code=2)
    assert "--kind" in ready.said
    await asyncio.to_thread(ready.run, "doctor", "--kind", "alerts", "--to", "C0GENERAL")
    assert [each.channel for each in slack.posts] == ["C0GENERAL"]


async def test_doctor_of_email_and_slack(ready: Terminal, slack: SlackServer) -> None:
    """Both may be asked for at once; a kind that is named is looked at beside them."""
    found = await asyncio.to_thread(ready.json, "doctor", "--email", "--slack")
    assert {each["name"].partition(": ")[0] for each in found["checks"]} == {"email", "slack_post", "alerts"}
    found = await asyncio.to_thread(ready.json, "doctor", "--email", "--kind", "alerts")
    assert {each["name"].partition(": ")[0] for each in found["checks"]} == {"email", "alerts"}
    assert slack.posts == []


def test_doctor_of_slack_that_is_not_configured(ready: Terminal) -> None:
    """What is not configured cannot be looked at, also beside what is."""
    for beside in ((), ("--email",), ("--kind", "email")):
        ready.run("doctor", "--slack", *beside, exit_code=2)
        assert "kind slack_post is not configured" in ready.said
