"""Looking for an earlier post: page by page, and honest about what was not seen."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edgeoutbox import ConfigurationError, Deadline
from edgeoutbox_slack.answers import Answer
from edgeoutbox_slack.client import Slack
from edgeoutbox_slack.codes import Meaning
from edgeoutbox_slack.marker import Identity, Sight, look_at
from edgeoutbox_slack.pacing import Pace
from edgeoutbox_slack.places import Place

BEFORE = 5 * 60_000
AFTER = 10 * 60_000
"""Milliseconds around the writes, for clocks that differ and posts that show late."""

LONGEST_TURN = 5.0
"""Seconds that an attempt waits for its turn; for longer it makes way."""

LARGEST_PAGE = 200
"""Slack recommends no larger one."""

_TURNS = "history"
_MOST_REMEMBERED = 1000
_PASSING = frozenset({Meaning.LIMITED, Meaning.LOGIN, Meaning.UNREACHABLE})


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which the post would have been made, in milliseconds since 1970."""

    oldest: int
    latest: int

    @classmethod
    def around(cls, first_write: int, lease: float, write_window: float) -> "Window":
        """From five minutes before the first write to ten minutes after the last that was possible.

        Nothing is posted under an inherited fence, so there is one write. The attempt that made it may have used its
        whole window and lease (in seconds); ours stand for those of its process.
        """
        return cls(first_write - BEFORE, first_write + round((lease + write_window) * 1000) + AFTER)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for, and where. `place` holds the id of the conversation, never that of a person."""

    action: int
    hash: str
    place: Place
    window: Window
    identity: Identity

    @property
    def method(self) -> str:
        """The method that lists the place's messages."""
        return "conversations.replies" if self.place.thread_ts else "conversations.history"


@dataclass(frozen=True, slots=True)
class Found:
    """It is there: its timestamps, earliest first."""

    timestamps: tuple[str, ...]
    pages: int


@dataclass(frozen=True, slots=True)
class Absent:
    """Every page was seen, and it is not on them. `closed`: no such post could appear any more when they were read."""

    pages: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Something could not be seen."""

    why: str
    pages: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """Slack did not give a page."""

    answer: Answer
    pages: int


@dataclass(frozen=True, slots=True)
class MakesWay:
    """The next page has its turn only in so many seconds."""

    wait: float
    pages: int


Outcome: TypeAlias = Found | Absent | Incomplete | Stopped | MakesWay


@dataclass
class _Bookmark:
    """How far a look has come. An app that may read one page a minute needs several attempts for one look."""

    wanted: Wanted
    closed: bool
    cursor: str | None = None
    pages: int = 0
    found: set[str] = field(default_factory=set)

    @property
    def timestamps(self) -> tuple[str, ...]:
        return tuple(sorted(self.found, key=float))


class Reader:
    """Reads histories for all attempts of this process, and remembers where each had to stop.

    Raises `ConfigurationError`.
    """

    def __init__(self, *, interval: float, page_size: int, most_pages: int) -> None:
        if not 1 <= page_size <= LARGEST_PAGE:
            raise ConfigurationError(f"page_size: must be between 1 and {LARGEST_PAGE}")
        self._pace = Pace(interval)
        self._page_size = page_size
        self._most_pages = most_pages
        self._bookmarks: OrderedDict[int, _Bookmark] = OrderedDict()

    async def look(self, slack: Slack, wanted: Wanted, now: int, deadline: Deadline) -> Outcome:
        """Read on from where the last attempt stopped, to the end if it can. `now` is in milliseconds since 1970."""
        mark = self._bookmarks.pop(wanted.action, None)
        if mark is None or mark.wanted != wanted:
            mark = _Bookmark(wanted, closed=now > wanted.window.latest)
        outcome = await self._read(slack, mark, deadline)
        if mark.found:
            # It exists: what was not seen beside it changes nothing.
            return Found(mark.timestamps, mark.pages)
        if isinstance(outcome, MakesWay) or (isinstance(outcome, Stopped) and outcome.answer.meaning in _PASSING):
            self._remember(mark)
        return outcome

    def _remember(self, mark: _Bookmark) -> None:
        self._bookmarks[mark.wanted.action] = mark
        if len(self._bookmarks) > _MOST_REMEMBERED:
            self._bookmarks.popitem(last=False)

    async def _read(self, slack: Slack, mark: _Bookmark, deadline: Deadline) -> Outcome:
        while mark.pages < self._most_pages:
            turn = self._pace.wait(_TURNS)
            if turn > deadline.left(at_most=LONGEST_TURN):
                return MakesWay(turn, mark.pages)
            await asyncio.sleep(self._pace.take(_TURNS))
            if deadline.passed:
                return Incomplete("the attempt's time ran out", mark.pages)
            answer = await slack.read(mark.wanted.method, self._arguments(mark), deadline)
            if answer.meaning is not Meaning.CONFIRMED:
                return Stopped(answer, mark.pages)
            mark.pages += 1
            flaw = _take_in(answer.body, mark)
            if flaw is not None:
                return Incomplete(flaw, mark.pages)
            if mark.cursor is None:
                return Absent(mark.pages, mark.closed)
        return Incomplete("there are more pages than may be read", mark.pages)

    def _arguments(self, mark: _Bookmark) -> dict[str, Any]:
        place, window = mark.wanted.place, mark.wanted.window
        return {
            "channel": place.channel,
            "ts": place.thread_ts,
            "oldest": _timestamp(window.oldest),
            "latest": _timestamp(window.latest),
            "inclusive": True,
            "include_all_metadata": True,
            "limit": self._page_size,
            "cursor": mark.cursor,
        }


def _take_in(page: Mapping[str, Any], mark: _Bookmark) -> str | None:
    """Look through a page and move the bookmark on; returns what is wrong with the page, if anything is."""
    messages = page.get("messages")
    if not isinstance(messages, list):
        return "a page holds no messages"
    stripped = False
    for message in messages:
        if not isinstance(message, Mapping) or _number(message.get("ts")) is None:
            return "a page holds something that is no message"
        sight = look_at(message, mark.wanted.hash, mark.wanted.identity)
        if sight is Sight.OURS:
            mark.found.add(message["ts"])
        stripped = stripped or sight is Sight.STRIPPED
    mark.cursor = _cursor(page)
    if stripped:
        return "a post of our own has lost its mark"
    if page.get("has_more") is True and mark.cursor is None:
        return "there is more, and no way to it"
    if page.get("is_limited") is True:
        return "Slack hides a part of the history"
    return _narrowed(page, mark.wanted.window)


def _narrowed(page: Mapping[str, Any], window: Window) -> str | None:
    oldest, latest = _number(str(page.get("oldest"))), _number(str(page.get("latest")))
    if (oldest is not None and oldest > window.oldest / 1000) or (latest is not None and latest < window.latest / 1000):
        return "Slack looked at less time than it was asked to"
    return None


def _cursor(page: Mapping[str, Any]) -> str | None:
    metadata = page.get("response_metadata")
    inner = metadata.get("next_cursor") if isinstance(metadata, Mapping) else None
    cursor = inner or page.get("next_cursor")
    return cursor if isinstance(cursor, str) and cursor else None


def _timestamp(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}000"


def _number(timestamp: object) -> float | None:
    try:
        return float(timestamp) if isinstance(timestamp, str) else None
    except ValueError:
        return None
