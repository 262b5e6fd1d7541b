"""Notices, literal messages, lanes, preview and settings of the Slack adapter."""

from typing import Any, Literal

import pytest

from edgeoutbox.adapter import NotNeeded
from edgeoutbox.errors import ConfigurationError, InvalidPayload
from edgeoutbox.kinds import Delivery
from edgeoutbox.results import Cancelled, Done, Failed, Reread
from edgeoutbox.states import StopReason
from edgeoutbox_slack import InvalidPost, Message, Place, Post, SlackAdapter, SlackNotice
from edgeoutbox_slack.testing import Drop, On
from tests.adapters.slack_building import (
    CHANNEL,
    JANE,
    POST,
    a_later_attempt,
    a_message,
    a_server,
    an_adapter,
    an_attempt,
)

TOKEN = "xoxb-hunter2"  # noqa: S105 - the token of a test


class Releases:
    """An application with releases: what is posted about each, or why nothing is."""

    def __init__(self, **releases: Post | NotNeeded | Exception) -> None:
        self.releases = releases


class Released(SlackNotice[Releases]):
    """A release is out."""

    notice: Literal["released"] = "released"
    release: str

    async def prepare(self, app: Releases) -> Post | NotNeeded:
        """What is posted as things stand now."""
        found = app.releases[self.release]
        if isinstance(found, Exception):
            raise found
        return found


class Pinned(Released):
    """A release that is announced in one channel for ever."""

    notice: Literal["pinned"] = "pinned"  # type: ignore[assignment]

    async def posted_to(self, app: Releases) -> Place:  # noqa: ARG002 - the signature of a notice
        """Where it always goes."""
        return Place(CHANNEL)

    def natural_lane(self) -> str:
        """The lane of the release."""
        return f"release:{self.release}"


ANNOUNCED = Post(channel=CHANNEL, text="Release 7 is out.")


async def test_an_applications_notice_becomes_a_post() -> None:
    """The payload holds the event, and the post is made from what the application knows now."""
    app = Releases(a=ANNOUNCED)
    async with a_server() as slack:
        adapter = an_adapter(slack, notices=[Released], app=app)
        payload = adapter.kind.variants.validate({"notice": "released", "release": "a"})
        app.releases["a"] = ANNOUNCED.model_copy(update={"text": "Release 7 is out, at last."})
        result = await adapter.execute(an_attempt(payload))
    assert isinstance(payload, Released)
    assert isinstance(result, Done)
    assert [post.text for post in slack.posts] == ["Release 7 is out, at last."]


async def test_the_built_in_message_is_always_there() -> None:
    """A literal message needs no code of the application's, beside its own notices too."""
    adapter = SlackAdapter(None, notices=[Released])
    payload = adapter.kind.variants.validate({"notice": "message", "channel": CHANNEL, "text": "x"})
    assert isinstance(payload, Message)
    assert adapter.kind.delivery is Delivery.READS_BACK


async def test_a_notice_that_is_not_needed_any_more_is_cancelled() -> None:
    """Slack is not even asked who we are."""
    app = Releases(a=NotNeeded("rolled back"))
    async with a_server() as slack:
        attempt = an_attempt(Released(release="a"))
        result = await an_adapter(slack, notices=[Released], app=app).execute(attempt)
    assert result == Cancelled(StopReason.NOT_NEEDED, "rolled back", {"method": "prepare"})
    assert (slack.requests, attempt.writes) == ([], 0)


@pytest.mark.parametrize("now", [NotNeeded("rolled back"), InvalidPayload("gone")], ids=repr)
async def test_a_post_that_may_exist_is_not_cancelled(now: NotNeeded | Exception) -> None:
    """Under an inherited fence a notice that has nothing to post, or fails, proves nothing about the earlier post."""
    app = Releases(a=now)
    async with a_server() as slack:
        result = await an_adapter(slack, notices=[Released], app=app).execute(a_later_attempt(Released(release="a")))
    assert isinstance(result, Reread)
    assert result.evidence["complete"] is False


async def test_a_notice_can_say_where_it_posted() -> None:
    """Its post is found although it would not be made any more."""
    app = Releases(a=ANNOUNCED)
    async with a_server(On(POST, Drop(), keeps=True)) as slack:
        adapter = an_adapter(slack, notices=[Pinned], app=app)
        await adapter.execute(an_attempt(Pinned(release="a")))
        app.releases["a"] = NotNeeded("rolled back")
        result = await adapter.execute(a_later_attempt(Pinned(release="a")))
    assert isinstance(result, Done)
    assert (result.read_back, slack.calls(POST)) == (True, 1)


@pytest.mark.parametrize("attempt_of", [an_attempt, a_later_attempt])
async def test_a_notice_that_fails_rises(attempt_of: Any) -> None:
    """An error of the application is the executor's to judge: by whether there is a fence."""
    async with a_server() as slack:
        adapter = an_adapter(slack, notices=[Released], app=Releases(a=RuntimeError("down")))
        with pytest.raises(RuntimeError, match="down"):
            await adapter.execute(attempt_of(Released(release="a")))
    assert slack.requests == []


async def test_a_notice_that_refuses_its_event_fails_without_its_words() -> None:
    """What an application says about a value is not stored; what this package says about a field is."""
    app = Releases(a=InvalidPayload("no such release: hunter2"), b=InvalidPost("text: is empty"))
    adapter = SlackAdapter(TOKEN, notices=[Released], app=app)
    theirs = await adapter.execute(an_attempt(Released(release="a")))
    ours = await adapter.execute(an_attempt(Released(release="b")))
    assert isinstance(theirs, Failed)
    assert isinstance(ours, Failed)
    assert (theirs.stop_reason, theirs.reason) == (StopReason.INVALID_PAYLOAD, "the notice refused its event")
    assert (ours.stop_reason, ours.reason) == (StopReason.INVALID_PAYLOAD, "text: is empty")


async def test_a_bad_event_is_refused_when_it_is_enqueued() -> None:
    """`prepare` makes the whole post; one that is not needed yet may be enqueued."""
    adapter = SlackAdapter(None, notices=[Released], app=Releases(a=InvalidPost("text: x"), b=NotNeeded()))
    with pytest.raises(InvalidPayload, match="text: x"):
        await adapter.prepare(Released(release="a"))
    assert await adapter.prepare(Released(release="b")) == Released(release="b")


BAD_FIELDS: dict[str, dict[str, Any]] = {
    "channel: Field required": {"channel": ...},
    "channel: String should match": {"channel": "#general"},
    "text: a post needs": {"text": " "},
    "text: contains a NUL": {"text": "a\0b"},
    "text: is longer than 4000": {"text": "x" * 4001},
    "text: is longer than 4000 ": {"text": "\U0001f600" * 2001},
    "markdown_text: is longer than 12000": {"text": None, "markdown_text": "x" * 12001},
    "markdown_text: goes without": {"markdown_text": "x"},
    "blocks: Tuple should have": {"blocks": [{"type": "divider"}] * 51},
    "blocks.0: Input should be": {"blocks": ["hunter2"]},
    "thread_ts: String should match": {"thread_ts": "yesterday"},
    "reply_broadcast: only a reply": {"reply_broadcast": True},
    "icon_emoji: String should match": {"icon_emoji": "tada"},
    "username: is longer than": {"username": "x" * 81},
    "surprise: Extra inputs": {"surprise": "hunter2"},
}


@pytest.mark.parametrize(("says", "change"), BAD_FIELDS.items(), ids=BAD_FIELDS.keys())
def test_a_bad_message_is_refused_by_its_field(says: str, change: dict[str, Any]) -> None:
    """Before any connection; the message never shows the value, and a post made in code is refused the same."""
    fields = {"channel": CHANNEL, "text": "x", **change}
    fields = {name: value for name, value in fields.items() if value is not ...}
    with pytest.raises(InvalidPayload) as refused:
        SlackAdapter(None).kind.variants.validate({"notice": "message", **fields})
    with pytest.raises(InvalidPost) as refused_in_code:
        Post(**fields)
    assert says.strip() in str(refused.value)
    assert says.strip() in str(refused_in_code.value)
    assert "hunter2" not in str(refused.value) + str(refused_in_code.value)


def test_a_lone_surrogate_is_refused() -> None:
    """It has no encoding, so it cannot be sent."""
    with pytest.raises(InvalidPost, match="no encoding"):
        Post(channel=CHANNEL, text="\ud800")


@pytest.mark.parametrize("fields", [{"text": "x" * 4000}, {"text": None, "markdown_text": "x" * 12_000}])
async def test_the_longest_post_is_posted(fields: dict[str, Any]) -> None:
    """The limits are what Slack keeps whole."""
    async with a_server() as slack:
        result = await an_adapter(slack).execute(an_attempt(a_message(**fields)))
    assert isinstance(result, Done)
    assert len(slack.posts) == 1


@pytest.mark.parametrize("field", [{"text": "x" * 4001}, {"text": None, "markdown_text": "x" * 12_001}])
async def test_a_notices_post_that_is_too_long_fails_before_the_fence(field: dict[str, Any]) -> None:
    """Slack may make several messages of it, and nobody could say whether all exist."""

    class Long(SlackNotice[None]):
        notice: Literal["long"] = "long"

        async def prepare(self, app: None) -> Post:  # noqa: ARG002 - the signature of a notice
            return Post(**{"channel": CHANNEL, **field})

    async with a_server() as slack:
        attempt = an_attempt(Long())
        result = await an_adapter(slack, notices=[Long]).execute(attempt)
    assert isinstance(result, Failed)
    assert (result.stop_reason, attempt.writes, slack.requests) == (StopReason.INVALID_PAYLOAD, 0, [])
    assert "longer than" in result.reason


def test_the_natural_lane_is_the_channel_or_thread() -> None:
    """What is said in one place is said in its order; a notice of the application's may name its own or none."""
    adapter = SlackAdapter(None, notices=[Released, Pinned])
    assert adapter.lane(a_message()) == f"slack_post:{CHANNEL}"
    assert adapter.lane(a_message(thread_ts="1700000000.000100")) == f"slack_post:{CHANNEL}:1700000000.000100"
    assert adapter.lane(a_message(channel=JANE)) == f"slack_post:{JANE}"
    assert SlackAdapter(None, kind="alerts").lane(a_message()) == f"alerts:{CHANNEL}"
    assert adapter.lane(Released(release="a")) is None
    assert adapter.lane(Pinned(release="a")) == "release:a"


async def test_a_preview_shows_everything() -> None:
    """A person who approves sees the place, the texts, the blocks, and whatever changes how it looks."""
    shown = await SlackAdapter(None).preview(
        a_message(
            thread_ts="1700000000.000100",
            reply_broadcast=True,
            unfurl_links=False,
            username="Releases",
            icon_emoji=":tada:",
            text="pay 1\x1b[2K\u202e000",
            blocks=[{"type": "divider"}],
        )
    )
    assert shown.splitlines() == [
        f"To: {CHANNEL}",
        "Thread: 1700000000.000100",
        "As: Releases",
        "Icon: :tada:",
        "reply_broadcast: true",
        "unfurl_links: false",
        "",
        "--- text ---",
        "pay 1\\u001b[2K\\u202e000",
        "",
        "--- blocks ---",
        "[",
        "  {",
        '    "type": "divider"',
        "  }",
        "]",
    ]
    assert "--- markdown ---\nx" in await SlackAdapter(None).preview(a_message(text=None, markdown_text="x"))


async def test_a_preview_of_nothing_says_so() -> None:
    """A notice that is not needed any more has nothing to show."""
    adapter = SlackAdapter(None, notices=[Released], app=Releases(a=NotNeeded("rolled back")))
    assert await adapter.preview(Released(release="a")) == "Nothing would be posted: rolled back"


def test_a_table_configures_everything() -> None:
    """Every setting of the table reaches the adapter."""
    adapter = SlackAdapter.configure(
        "alerts",
        {
            "token": TOKEN,
            "base_url": "https://slack.example/api/",
            "app_id": "A1",
            "bot_id": "B1",
            "proxy": "http://me:hunter2@proxy.example:3128",
            "timeout": 3,
            "channels": [CHANNEL, JANE],
            "post_interval": 2,
            "history_interval": 60,
            "first_look": 5,
            "next_look": 90,
            "page_size": 15,
            "most_pages": 9,
            "lease": 300,
            "write_window": 200,
            "max_attempts": 5,
            "retention_days": 7,
            "concurrency": 2,
            "requires_approval": True,
        },
    )
    kind, connection = adapter.kind, adapter._connection
    assert (kind.name, kind.lease, kind.write_window, kind.max_attempts) == ("alerts", 300.0, 200.0, 5)
    assert (kind.retention_days, kind.concurrency, kind.requires_approval) == (7, 2, True)
    assert connection is not None
    assert (connection.token, connection.timeout) == (TOKEN, 3.0)
    assert (adapter._known.app_id, adapter._known.bot_id) == ("A1", "B1")
    assert (adapter._pace._interval, adapter._reader._page_size, adapter._reader._most_pages) == (2.0, 15, 9)
    assert [adapter._looks.after(attempt) for attempt in (1, 2)] == [5, 90]
    assert [place.channel for place in adapter._places] == [CHANNEL, JANE]
    assert adapter.destination() == "slack.example/api"
    assert SlackAdapter(None).destination() == "no token"


BAD_TABLES: dict[str, dict[str, object]] = {
    "token: Field required": {"token": ...},
    "token: must be printable": {"token": "hunter2\nX-Evil: 1"},
    "token: must be printable ": {"token": " "},
    "base_url: must be https": {"base_url": "http://hunter2.example/api"},
    "base_url: is not readable": {"base_url": "hunter2"},
    "base_url: has more": {"base_url": "https://me:hunter2@slack.example/api"},
    "base_url: has more ": {"base_url": "https://slack.example/api?token=hunter2"},
    "proxy: is not readable": {"proxy": "socks5://hunter2"},
    "app_id: String should": {"app_id": "hunter2"},
    "bot_id: String should": {"bot_id": "hunter2"},
    "channels.0: String should": {"channels": ["#hunter2"]},
    "timeout: Input should be": {"timeout": 0},
    "page_size: Input should be": {"page_size": 201},
    "post_interval: Input should be": {"post_interval": -1},
    "lease: Input should be": {"lease": "hunter2"},
    "lease: must be longer": {"lease": 60, "write_window": 60},
    "retention_days: Input should be": {"retention_days": 0},
    "surprise: Extra inputs": {"surprise": "hunter2"},
}


@pytest.mark.parametrize(("says", "change"), BAD_TABLES.items(), ids=BAD_TABLES.keys())
def test_a_wrong_setting_is_named(says: str, change: dict[str, object]) -> None:
    """The message names kind and setting, and never shows a value."""
    table = {name: value for name, value in {"token": TOKEN, **change}.items() if value is not ...}
    with pytest.raises(ConfigurationError) as refused:
        SlackAdapter.configure("slack_post", table)
    assert str(refused.value).startswith(f"kind slack_post: {says.strip()}")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("options", [{"page_size": 0}, {"page_size": 201}, {"timeout": 0}, {"lease": 1}], ids=repr)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    """The same holds for an adapter that is made in code."""
    with pytest.raises(ConfigurationError):
        SlackAdapter(TOKEN, **options)


async def test_a_file_of_certificates_that_is_none_defers() -> None:
    """It is read when it is needed, and named by its setting."""
    adapter = SlackAdapter.configure("slack_post", {"token": TOKEN, "cafile": __file__})
    [check] = await adapter.check()
    assert (check.name, check.ok) == ("settings", False)
    assert "cafile" in check.detail


def test_the_token_is_not_shown() -> None:
    """No text form holds it; `settings`, of which only a digest is kept, does."""
    adapter = SlackAdapter.configure("slack_post", {"token": TOKEN, "proxy": "http://me:hunter2@proxy.example"})
    assert "hunter2" not in repr(adapter) + repr(adapter._connection) + adapter.destination()
    assert adapter.settings() != SlackAdapter(TOKEN).settings()
    assert SlackAdapter(TOKEN).settings() != SlackAdapter("xoxb-other").settings()
