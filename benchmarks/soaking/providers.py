"""What the soak's executors reach: a relay and a provider with bad weather, and one record of all that arrived."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from benchmarks.soaking.doubts import Causes
from benchmarks.soaking.kinds import HOST
from edgeoutbox.testing.relay import Answer, Drop, On, Point, Reset, ScriptedRelay


class Weather:
    """Draws what goes wrong, by shares; nothing does while it is `fair`."""

    def __init__(self, seed: int) -> None:
        self.fair = True
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def draw(self, shares: dict[str, float]) -> str | None:
        """One of these, or `None`."""
        drawn = self._random.random()
        for what, share in shares.items():
            drawn -= share
            if drawn < 0 and not self.fair:
                return what
        return None

    def between(self, least: float, most: float) -> float:
        """A number in between."""
        return self._random.uniform(least, most)


_AT: dict[Point, dict[str, float]] = {
    Point.RCPT: {"later": 0.02, "nobody": 0.01},
    Point.DOT: {"broken": 0.01, "dropped": 0.005, "full": 0.01},
}
_STEPS = {
    "later": On(Point.RCPT, Answer(451, "4.7.1 later")),
    "nobody": On(Point.RCPT, Answer(550, "5.1.1 nobody")),
    "broken": On(Point.DOT, Reset(), keeps=True),
    "dropped": On(Point.DOT, Drop(), keeps=False),
    "full": On(Point.DOT, Answer(452, "4.3.1 full")),
}
_SILENT = frozenset({"broken", "dropped"})
UNANSWERED = sum(share for drawn, share in _AT[Point.DOT].items() if drawn in _SILENT)
"""The share of emails that bad weather leaves without an answer."""


class Arrivals:
    """The keys of what arrived, in order, whoever took it; a token that a provider knows already does not arrive.

    `causes` has the emails that the relay was to answer, and did not.
    """

    def __init__(self) -> None:
        self.causes = Causes(UNANSWERED)
        self.order: list[str] = []
        self.times: Counter[str] = Counter()

    def arrived(self, key: str) -> None:
        """Note one."""
        self.order.append(key)
        self.times[key] += 1


class WeatheredRelay(ScriptedRelay):
    """A relay whose script is the weather. It keeps of a message only to whom it went."""

    def __init__(self, weather: Weather, arrivals: Arrivals) -> None:
        super().__init__(host=HOST)
        self._weather = weather
        self._arrivals = arrivals
        self._to: dict[int, str] = {}

    def line_of(self, point: Point, nth: int, connection: int) -> On | None:  # noqa: ARG002 - every time
        """What the weather says at this moment."""
        drawn = self._weather.draw(_AT[point]) if point in _AT else None
        if point is Point.RCPT:
            self._to[connection] = self.commands[-1][1].partition("<")[2].partition("@")[0]
        if point is Point.DOT:
            key, causes = self._to.pop(connection), self._arrivals.causes
            causes.asked += 1
            if drawn in _SILENT:
                causes.unanswered.append(key)
        return None if drawn is None else _STEPS[drawn]

    def take(self, connection: int, mail_from: str, recipients: Iterable[str], content: bytes) -> None:  # noqa: ARG002
        """Note to whom."""
        self.commands.clear()
        for recipient in recipients:
            self._arrivals.arrived(recipient.partition("@")[0])


_CALL = {"limited": 0.03, "weary": 0.002, "lost": 0.02, "dropped": 0.01}


class Provider:
    """Takes one request a connection: `[kind, "write" or "find", key]`, a line of JSON.

    `limited` writes are refused for a while, `weary` for every one of the kind; `lost` ones are kept and not answered,
    `dropped` ones neither. Calls with a token that it knows change nothing, as do drafts.
    """

    def __init__(self, weather: Weather, arrivals: Arrivals) -> None:
        self._weather = weather
        self._arrivals = arrivals
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                line = await reader.readline()
                if line.endswith(b"\n"):  # half a request of a killed executor is none
                    answer = self._answer(*json.loads(line))
                    if answer is not None:
                        writer.write(json.dumps(answer).encode() + b"\n")
                        await writer.drain()
        finally:
            writer.close()

    def _answer(self, kind: str, what: str, key: str) -> tuple[str, float] | None:
        if what == "find":
            return ("yes" if self._arrivals.times[key] else "no"), 0.0
        drawn = self._weather.draw(_CALL)
        if drawn == "limited":
            return drawn, self._weather.between(1.0, 2.0)
        if drawn == "weary":
            return "limited", self._weather.between(0.2, 0.6)
        if drawn == "dropped":
            return None
        if kind == "post" or (kind == "call" and not self._arrivals.times[key]):
            self._arrivals.arrived(key)
        return None if drawn == "lost" else ("yes", 0.0)
