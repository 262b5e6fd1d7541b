import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgeoutbox import ConfigurationError
from edgeoutbox.cli.demo.slack import SlackStage
from edgeoutbox.cli.demo.slack_figures import Post, SentPost, SlackFigures, figures, read_posts
from edgeoutbox.states import State, StopReason
from edgeoutbox_slack.marker import key_hash
from edgeoutbox_slack.testing import RecordedPost
from tests.cli.terminal import Terminal

LANE = "slack_post:C0000"


def action(number: int, state: State = State.DONE, reason: StopReason | None = StopReason.CONFIRMED) -> SentPost:
    """An action, and when it is DONE the reference of the post of the same number."""
    reference = f"C0000:{number}" if state is State.DONE else None
    return SentPost(number, f"demo:{number}", LANE, state, reason, reference)


def post(number: int, *, answered: bool = True) -> Post:
    """The post of the action of this number."""
    return Post(f"C0000:{number}", key_hash(f"demo:{number}"), answered)


def counted(actions: list[SentPost], posts: list[Post]) -> SlackFigures:
    """The figures."""
    return figures(actions, posts, kills=0, seconds=1.234)


GOOD = (
    [action(1), action(2, reason=StopReason.READ_BACK), action(3, State.UNCERTAIN, StopReason.READBACK_EXHAUSTED)],
    [post(1), post(2, answered=False)],
)


def test_a_lost_answer_that_was_read_back() -> None:
    """Posted once and found again is good, and so is an honest uncertain that is not there."""
    found = counted(*GOOD)
    expected = SlackFigures(
        actions=3, posted=2, answers_lost=1, done=2, read_back=1, uncertain=1, uncertain_present=0,
        duplicates=0, done_missing=0, out_of_order=0, kills=0, seconds=1.23,
    )  # fmt: skip
    assert found == expected
    assert found.good


@pytest.mark.parametrize(
    ("actions", "posts", "wrong"),
    [
        (GOOD[0], [*GOOD[1], post(1)], {"duplicates": 1}),
        (GOOD[0], [post(1)], {"done_missing": 1}),
        ([replace(action(1), reference="C0000:2"), action(2)], [post(1), post(2)], {"done_missing": 1}),
        (GOOD[0], [*GOOD[1], post(3)], {"uncertain_present": 1}),
        ([action(1), action(2)], [post(2), post(1)], {"out_of_order": 1}),
    ],
)
def test_what_went_wrong_is_counted(actions: list[SentPost], posts: list[Post], wrong: dict[str, int]) -> None:
    """A post that came twice, never, elsewhere, all the same or too early is found, and is not good."""
    found = counted(actions, posts)
    names = ("duplicates", "done_missing", "uncertain_present", "out_of_order")
    assert {name: getattr(found, name) for name in names} == {**dict.fromkeys(names, 0), **wrong}
    assert not found.good


@pytest.mark.parametrize("actions", [[], [action(1), action(2, State.ADMITTED, None)], [action(1, State.FAILED)]])
def test_what_was_not_posted_is_not_good(actions: list[SentPost]) -> None:
    """A post that failed or still waits, or no post at all, is no success."""
    assert not counted(actions, [post(1)] if actions else []).good


def test_the_record_is_the_servers_own(tmp_path: Path) -> None:
    """What the server writes is what the demo reads; a last line that is not finished is left out."""
    record = tmp_path / "slack.jsonl"
    assert read_posts(record) == []
    written = RecordedPost(1, "C0000", "1", None, key_hash("demo:1"), "", answered=False)
    record.write_text(written.line() + '{"number":2', encoding="utf-8")
    assert read_posts(record) == [post(1, answered=False)]


async def test_a_stage_in_which_the_executor_dies_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing posts, nothing counts as done, and the demo ends by itself."""
    monkeypatch.setattr("edgeoutbox.cli.demo.slack._CONFIGURATION", "unknown = 1")
    stage = SlackStage(tmp_path, tell=lambda _: None, progress=lambda _: None, posts=3, channels=1)
    found = await stage.perform()
    assert (found.actions, found.done, found.posted, found.good) == (3, 0, 0, False)
    assert "unknown key unknown" in stage.log.read_text(encoding="utf-8")


async def test_a_server_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said at once, and what Python said about it is in the log."""
    monkeypatch.setattr("edgeoutbox.cli.demo.slack.find_server", lambda _: "edgeoutbox_slack.no_such_module")
    stage = SlackStage(tmp_path, tell=lambda _: None, progress=lambda _: None)
    with pytest.raises(ConfigurationError, match="did not start"):
        await stage.perform()
    assert "no_such_module" in stage.log.read_text(encoding="utf-8")


def test_demo_slack(terminal: Terminal) -> None:
    """Answers are lost, every post is found by reading back, none is made twice, and nothing is left behind."""
    terminal.environment["EDGEOUTBOX_DATABASE"] = "sqlite:///of-somebody-else.db"
    terminal.environment["TMPDIR"] = str(terminal.folder)
    ended = terminal.process("demo", "--slack", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["actions"], found["posted"], found["done"]) == (100, 100, 100)
    assert found["read_back"] == found["answers_lost"] > 0
    assert {found[name] for name in ("duplicates", "done_missing", "uncertain", "out_of_order")} == {0}
    assert found["seconds"] < 20
    assert list(terminal.folder.iterdir()) == []


def test_demo_slack_for_people(terminal: Terminal) -> None:
    """The table names what happened, and `--keep` keeps the server's record of it."""
    terminal.environment["TMPDIR"] = str(terminal.folder)
    ended = terminal.process("demo", "--slack", "--keep")
    assert ended.returncode == 0, ended.stderr
    for words in ("posted", "answers lost", "found by reading back", "posted twice", "uncertain", "order broken"):
        assert f"\n{words} " in ended.stdout
    assert "Nothing was posted twice, lost or out of order: 100 posts" in ended.stdout
    [folder] = terminal.folder.iterdir()
    assert len(read_posts(folder / "slack.jsonl")) == 100
