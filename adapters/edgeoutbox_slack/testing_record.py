"""What a Slack server for tests wrote down: one JSON line for each post that it took, to be counted afterwards."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from edgeoutbox_slack.testing_messages import StoredPost


@dataclass(frozen=True, slots=True)
class RecordedPost:
    """One post, without its text. `key` is the hash of its idempotency key, `number` counts the posts from 1.

    `answered` is false when a script kept the usual answer back.
    """

    number: int
    channel: str
    ts: str
    thread_ts: str | None
    key: str | None
    sha256: str
    answered: bool = True

    @classmethod
    def of(cls, number: int, post: StoredPost, *, answered: bool = True) -> "RecordedPost":
        """The record of a post."""
        text = hashlib.sha256(post.text.encode(errors="replace")).hexdigest()
        return cls(number, post.channel, post.ts, post.thread_ts, post.key, text, answered)

    def line(self) -> str:
        """As it is written."""
        return json.dumps(asdict(self), separators=(",", ":")) + "\n"


def read_record(path: Path) -> list[RecordedPost]:
    """Every post that is written in a file, in its order; a last line that was not finished is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [RecordedPost(**json.loads(line)) for line in lines if line.endswith("\n")]


def duplicates(posts: Iterable[RecordedPost | StoredPost]) -> dict[str, int]:
    """The keys that were posted more than once, and how often."""
    counted = Counter(post.key for post in posts if post.key is not None)
    return {key: count for key, count in counted.items() if count > 1}
