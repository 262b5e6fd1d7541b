"""What survives a loss of power: of each file what was synced, and a drawn part of what was done to it since."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Write:
    """Bytes that no sync has made certain."""

    offset: int
    content: bytes


@dataclass(frozen=True)
class Truncation:
    """A length that no sync has made certain."""

    length: int


@dataclass(eq=False)
class Kept:
    """One file: what survives in any case, and what was done to it since."""

    certain: bytearray = field(default_factory=bytearray)
    since: list[Write | Truncation] = field(default_factory=list)

    def settle(self, survives: "Survival") -> None:
        """Make certain what survives of what was done since, and forget the rest."""
        for change in self.since:
            if isinstance(change, Write):
                for part in survives.parts(change):
                    end = part.offset + len(part.content)
                    self.certain.extend(bytes(max(0, end - len(self.certain))))
                    self.certain[part.offset : end] = part.content
            elif survives.whole():
                del self.certain[change.length :]
                self.certain.extend(bytes(change.length - len(self.certain)))
        self.since.clear()


class Survival:
    """Draws what survives: each sector is lost with one chance, and torn with another when it is not."""

    def __init__(self, draw: random.Random, sector: int, lost: float, torn: float) -> None:
        self._draw = draw
        self._sector = sector
        self._lost = lost
        self._torn = torn

    def whole(self) -> bool:
        """Whether something without sectors survives."""
        return self._draw.random() >= self._lost

    def parts(self, write: Write) -> Iterator[Write]:
        """What survives of a write."""
        end = write.offset + len(write.content)
        bounds = [write.offset, *range((write.offset // self._sector + 1) * self._sector, end, self._sector), end]
        for start, stop in itertools.pairwise(bounds):
            if self.whole():
                torn = self._torn and self._draw.random() < self._torn
                last = self._draw.randrange(start, stop) if torn else stop
                yield Write(start, write.content[start - write.offset : last - write.offset])
