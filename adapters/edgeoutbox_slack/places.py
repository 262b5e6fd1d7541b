"""Where a post goes."""

import re
from dataclasses import dataclass

_PERSON = re.compile("[UW][A-Z0-9]+")


@dataclass(frozen=True, slots=True)
class Place:
    """A conversation and, for a reply, its thread.

    `channel` is the id of a channel, or of a user who gets a direct message.
    """

    channel: str
    thread_ts: str | None = None

    @property
    def is_person(self) -> bool:
        """Whether a direct message must be opened first."""
        return _PERSON.fullmatch(self.channel) is not None

    def lane(self, kind: str) -> str:
        """The natural lane of a kind's posts there: what is said in one place is said in its order."""
        return ":".join(filter(None, (kind, self.channel, self.thread_ts)))
