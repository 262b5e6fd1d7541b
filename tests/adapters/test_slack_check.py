"""What `doctor` learns from Slack before anything is posted, and its test message."""

from typing import Any

import pytest

from edgeoutbox.adapter import Check
from edgeoutbox_slack import InvalidPost, SlackAdapter
from edgeoutbox_slack.testing import SCOPES, Drop, Limit, On, Raw, Refuse, SlackServer
from tests.adapters.slack_building import (
    CHANNEL,
    HISTORY,
    JANE,
    OPEN,
    POST,
    WHO,
    a_server,
    an_adapter,
)

INFO = "conversations.info"


async def checked(slack: SlackServer, **options: Any) -> dict[str, Check]:
    """The checks of an adapter that looks at the usual channel, by name."""
    checks = await an_adapter(slack, **{"channels": [CHANNEL], **options}).check()
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


async def test_everything_is_well() -> None:
    """Token, identity, scopes, membership and history, each by its name; nothing is posted and nothing opened."""
    async with a_server() as slack:
        checks = await checked(slack, channels=[CHANNEL, JANE])
    assert list(checks) == [
        *("token", "identity", "scope to post", "scopes to read back"),
        *(f"channel {CHANNEL}", f"read back {CHANNEL}", f"person {JANE}"),
    ]
    assert all(check.ok for check in checks.values())
    assert (slack.calls(POST), slack.calls(OPEN)) == (0, 0)


async def test_a_refused_token_is_all_there_is_to_say() -> None:
    """The mend is a new one."""
    async with a_server() as slack:
        checks = await checked(slack, token="xoxb-old")  # noqa: S106 - no token of anybody
    [check] = checks.values()
    assert (check.name, check.ok) == ("token", False)
    assert "invalid_auth" in check.detail
    assert "install the app again" in check.detail


async def test_a_token_of_no_bot_needs_an_app_id() -> None:
    """Without it no post could be known as ours."""
    async with a_server() as slack:
        slack.bot_id = None
        without = await checked(slack)
        with_one = await checked(slack, app_id=slack.app_id)
    assert not without["identity"].ok
    assert "app_id" in without["identity"].detail
    assert with_one["identity"].ok


async def test_a_missing_scope_to_post_is_named() -> None:
    """With where to add it."""
    async with a_server(scopes=set(SCOPES) - {"chat:write"}) as slack:
        check = (await checked(slack))["scope to post"]
    assert not check.ok
    assert "add chat:write" in check.detail
    assert "install the app again" in check.detail


async def test_no_scope_to_read_back_is_not_well() -> None:
    """Every lost answer would end UNCERTAIN."""
    async with a_server(scopes={"chat:write", "channels:read"}) as slack:
        checks = await checked(slack)
    assert not checks["scopes to read back"].ok
    assert "channels:history" in checks["scopes to read back"].detail
    assert not checks[f"read back {CHANNEL}"].ok
    assert "missing_scope" in checks[f"read back {CHANNEL}"].detail


async def test_some_scopes_to_read_back_say_what_is_left_out() -> None:
    """An app that posts to public channels alone needs no other."""
    async with a_server(scopes=set(SCOPES) - {"im:history"}) as slack:
        checks = await checked(slack, channels=[CHANNEL, JANE])
    assert checks["scopes to read back"].ok
    assert "without im:history nothing in direct messages" in checks["scopes to read back"].detail
    assert not checks[f"person {JANE}"].ok


async def test_scopes_that_slack_does_not_tell_are_left_to_the_channels() -> None:
    """What cannot be seen is not called missing."""
    async with a_server(On(WHO, Raw(b'{"ok":true,"bot_id":"B1"}'))) as slack:
        checks = await checked(slack)
    assert checks["scopes"].ok
    assert checks[f"read back {CHANNEL}"].ok


CHANNELS: dict[str, tuple[dict[str, Any], str]] = {
    "archived": ({"archived": True}, "unarchive"),
    "not a member": ({"member": False}, "/invite"),
    "private and not a member": ({"private": True, "member": False}, "/invite"),
}


@pytest.mark.parametrize(("fields", "mend"), CHANNELS.values(), ids=CHANNELS.keys())
async def test_a_channel_that_cannot_be_posted_to_says_how_to_mend_it(fields: dict[str, Any], mend: str) -> None:
    """Before anything is sent there."""
    async with a_server() as slack:
        slack.add_channel(CHANNEL, **fields)
        check = (await checked(slack))[f"channel {CHANNEL}"]
    assert not check.ok
    assert mend in check.detail


@pytest.mark.parametrize(
    ("method", "step", "mend"),
    [
        (INFO, Refuse("missing_scope"), "add channels:read"),
        (INFO, Limit("20"), "in 20 seconds"),
        (INFO, Drop(), "lost"),
        (HISTORY, Refuse("not_in_channel"), "/invite"),
        (HISTORY, Refuse("not_allowed_token_type"), "bot's token"),
        (HISTORY, Limit("20"), "in 20 seconds"),
        (HISTORY, Raw(b'{"ok":true}'), "UNCERTAIN"),
        (HISTORY, Refuse("smuggled"), "not known here"),
        (WHO, Limit("20"), "in 20 seconds"),
        (WHO, Drop(), "lost"),
        (WHO, Refuse("missing_scope"), "add"),
    ],
    ids=repr,
)
async def test_what_could_not_be_looked_at_is_not_well(method: str, step: Any, mend: str) -> None:
    """With what to do next, and without the provider's words."""
    async with a_server(On(method, step)) as slack:
        [check] = [check for check in (await checked(slack)).values() if not check.ok]
    assert mend in check.detail
    assert "smuggled" not in check.detail


@pytest.mark.parametrize(
    ("channel", "scopes"),
    [("C0HERE", "channels:%s, groups:%s"), ("D0HERE", "im:%s"), ("G0HERE", "groups:%s, mpim:%s")],
)
async def test_a_missing_scope_is_that_of_the_conversation(channel: str, scopes: str) -> None:
    """By what its id may stand for, both to look at it and to read its history."""
    async with a_server(*(On(method, Refuse("missing_scope")) for method in (INFO, HISTORY))) as slack:
        checks = await checked(slack, channels=[channel])
    for name, right in ((f"channel {channel}", "read"), (f"read back {channel}", "history")):
        assert f"add {scopes.replace('%s', right)} under" in checks[name].detail


async def test_a_channel_that_cannot_be_looked_at_may_be_readable() -> None:
    """The scope to look at it is needed for nothing else, so that its history is asked for all the same."""
    async with a_server(scopes=set(SCOPES) - {"channels:read"}) as slack:
        checks = await checked(slack)
    assert not checks[f"channel {CHANNEL}"].ok
    assert checks[f"read back {CHANNEL}"].ok


async def test_without_channels_none_is_looked_at() -> None:
    """And that is said."""
    async with a_server() as slack:
        checks = await checked(slack, channels=())
    assert checks["channels"].ok
    assert "`channels`" in checks["channels"].detail


async def test_without_a_token_there_is_nothing_to_ask() -> None:
    """A process that only enqueues has none."""
    [check] = await SlackAdapter(None).check()
    assert not check.ok
    assert "token" in check.detail
    assert not (await SlackAdapter(None).send_test_message(CHANNEL)).ok


async def test_a_test_message_is_posted() -> None:
    """To a channel or a person, once."""
    async with a_server() as slack:
        adapter = an_adapter(slack)
        checks = [await adapter.send_test_message(to) for to in (CHANNEL, JANE)]
        with pytest.raises(InvalidPost):
            await adapter.send_test_message("#general")
    assert all(check.ok for check in checks)
    assert [post.channel for post in slack.posts] == [CHANNEL, "D0JANE"]


@pytest.mark.parametrize("method", [OPEN, POST])
async def test_a_test_message_that_is_refused_says_so(method: str) -> None:
    """By code, without an exception."""
    async with a_server(On(method, Refuse("is_archived"))) as slack:
        check = await an_adapter(slack).send_test_message(JANE)
    assert not check.ok
    assert "is_archived" in check.detail
