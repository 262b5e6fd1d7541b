"""What became of the demo's posts, from the database and from the Slack server's own record."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from edgeoutbox.cli.demo.figures import Sent, out_of_order
from edgeoutbox.cli.demo.performance import Found
from edgeoutbox.states import State, StopReason


@dataclass(frozen=True, slots=True)
class SentPost(Sent):
    """One action as it stands in the database, and what it says about its post."""

    stop_reason: str | None
    reference: str | None

    @property
    def hash(self) -> str:
        """What its post carries in place of the key."""
        return sha256(self.key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Post:
    """One line of the server's record."""

    reference: str
    hash: str
    answered: bool


def read_posts(record: Path) -> list[Post]:
    """The server's record in its order; a last line that is not finished is left out."""
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True) if record.exists() else []
    posts = (json.loads(line) for line in lines if line.endswith("\n"))
    return [Post(f"{post['channel']}:{post['ts']}", str(post["key"]), bool(post["answered"])) for post in posts]


@dataclass(frozen=True, slots=True)
class SlackFigures(Found):
    """The result of the demo of Slack. `kills` and `seconds` come from the stage, all else from the two records.

    `posted` counts the posts in the server's record, `answers_lost` those whose answer it kept back, `done` actions
    that ended DONE, `read_back` those of them whose post was found in a history, `uncertain` UNCERTAIN,
    `uncertain_present` those of them whose post exists, `duplicates` posts beyond the first of an action,
    `done_missing` actions that are DONE and whose post is not in the record, `out_of_order` posts that came after a
    later one of their lane.
    """

    posted: int
    answers_lost: int
    done: int
    read_back: int
    uncertain: int
    uncertain_present: int
    duplicates: int
    done_missing: int
    out_of_order: int
    kills: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether nothing was posted twice or out of order, and every action ended with what is true of its post."""
        told = self.done + self.uncertain == self.actions > 0
        return told and not (self.duplicates or self.done_missing or self.uncertain_present or self.out_of_order)

    def rows(self) -> Sequence[tuple[str, int, str]]:
        """The figures for people."""
        return [
            ("posted", self.posted, "in the server's record"),
            ("answers lost", self.answers_lost, "posted, and the connection broken before the answer"),
            ("found by reading back", self.read_back, "looked for in the channel, and not posted again"),
            ("posted twice", self.duplicates, "copies beyond the first in the server's record"),
            ("uncertain", self.uncertain, f"not found in the channel; {self.uncertain_present} are there all the same"),
            ("done and missing", self.done_missing, "done, but not in the server's record"),
            ("order broken", self.out_of_order, "came after a later one of their channel"),
        ]

    def verdict(self, *, good: bool) -> str:
        """One sentence."""
        said = "Nothing was posted twice, lost or out of order" if good else "This is not what was promised"
        return f"{said}: {self.actions} posts, {self.answers_lost} lost answers, {self.seconds:.1f} s."


def figures(actions: Sequence[SentPost], posts: Iterable[Post], *, kills: int, seconds: float) -> SlackFigures:
    """Count; `posts` are in the order in which the server took them."""
    posts = list(posts)
    times = Counter(post.hash for post in posts)
    there = {(post.hash, post.reference) for post in posts}
    done = [action for action in actions if action.state is State.DONE]
    uncertain = [action for action in actions if action.state is State.UNCERTAIN]
    return SlackFigures(
        actions=len(actions),
        posted=len(posts),
        answers_lost=sum(1 for post in posts if not post.answered),
        done=len(done),
        read_back=sum(1 for action in done if action.stop_reason == StopReason.READ_BACK),
        uncertain=len(uncertain),
        uncertain_present=sum(1 for action in uncertain if times[action.hash]),
        duplicates=sum(count - 1 for count in times.values()),
        done_missing=sum(1 for action in done if (action.hash, action.reference) not in there),
        out_of_order=out_of_order({action.hash: action for action in actions}, [post.hash for post in posts]),
        kills=kills,
        seconds=round(seconds, 2),
    )
