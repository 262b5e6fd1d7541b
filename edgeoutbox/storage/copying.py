"""Copying actions from one database to another, of the same kind or not.

The source is put on hold first, so that it cannot send what the destination will. Then the actions go over in the order
of their ids, a batch in a transaction of the destination: whenever this stops, what was done is done, and the next copy
goes on from there.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgeoutbox.errors import DatabaseBusy
from edgeoutbox.storage.protocol import KindPolicy
from edgeoutbox.storage.statements.copying import Carried, Outcome, Text, Unfit
from edgeoutbox.storage.statements.kinds import HELD_BY

BATCH = 100
"""How many actions go over in one transaction."""

TRIES = 5
"""How often a batch is tried while others hold what it needs."""


class Source(Protocol):
    """Where actions come from."""

    async def hold(self, by: str) -> tuple[Mapping[str, KindPolicy], int]:
        """Pause every kind, at a moment at which nobody writes; returns the kinds and the last id.

        Raises `NotPossible`, having changed nothing, while somebody is at work there.
        """

    async def hold_more(self, by: str) -> Mapping[str, KindPolicy]:
        """Pause also the kinds that came up since."""

    async def count(self, *, everything: bool) -> int:
        """How many actions there are to carry."""

    async def read(self, after: int, limit: int, *, everything: bool) -> Sequence[Carried]:
        """The next actions by id, as they stood at one moment."""


class Destination(Protocol):
    """Where actions go."""

    async def declare(self, policies: Iterable[KindPolicy]) -> None:
        """Let the source's kinds hold here, the stricter of both where one is known already."""

    async def put(self, actions: Sequence[Carried], blocked: Collection[Text]) -> Sequence[Outcome]:
        """Insert what is new, in one transaction in which the guard is put aside; `blocked` lanes are left out.

        Raises `Unfit` when the database does not take one of them.
        """


@dataclass(frozen=True, slots=True)
class Left:
    """An action that was not copied, by its id at the source, and why."""

    id: int
    kind: str
    outcome: Outcome


@dataclass(slots=True)
class Tally:
    """What a copy has done so far. `paused` are the kinds that it, or one before it, put on hold at the source."""

    total: int
    copied: int = 0
    present: int = 0
    left: list[Left] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)

    @property
    def seen(self) -> int:
        """How many actions were looked at."""
        return self.copied + self.present + len(self.left)


async def copy(source: Source, destination: Destination, by: str, *, everything: bool) -> AsyncIterator[Tally]:
    """Carry actions over; says after each batch how far it is. `by` is what the held kinds show as `paused_by`."""
    kinds, last = await source.hold(by)
    tally = Tally(await source.count(everything=everything), paused=_held(kinds))
    blocked: set[Text] = set()
    yield tally
    await destination.declare(kinds.values())
    after, new = 0, False
    late: set[int] = set()
    while True:
        await asyncio.sleep(0)  # files are worked on without ever waiting, and who is to be cancelled must wait
        actions = await source.read(after, BATCH, everything=everything)
        if any(action.values["kind"] not in kinds for action in actions):
            # Somebody enqueues still. What is read from here on was there before its kind was put on hold, or after.
            kinds = await source.hold_more(by)
            await destination.declare(kinds.values())
            tally.paused = _held(kinds)
            continue
        if not actions:
            if not new:
                return
            # Of what was enqueued since the hold, Postgres may commit a lower id after a higher one.
            after, new = last, False
            continue
        after = actions[-1].id
        actions = [action for action in actions if action.id not in late]
        late |= {action.id for action in actions if action.id > last}
        if not actions:
            continue
        new = new or after > last
        for action, outcome in await _put(destination, actions, blocked):
            if outcome is Outcome.COPIED:
                tally.copied += 1
            elif outcome is Outcome.PRESENT:
                tally.present += 1
            else:
                tally.left.append(Left(action.id, action.values["kind"], outcome))
        yield tally


async def _put(
    destination: Destination, actions: Sequence[Carried], blocked: set[Text]
) -> list[tuple[Carried, Outcome]]:
    """Put the batch; when the database refuses one of its actions, find out which, and leave that."""
    try:
        outcomes = await _patiently(destination, actions, blocked)
    except Unfit:
        if len(actions) > 1:
            half = len(actions) // 2
            first = await _put(destination, actions[:half], blocked)
            return first + await _put(destination, actions[half:], blocked)
        outcomes = [Outcome.UNFIT]
    found = list(zip(actions, outcomes, strict=True))
    blocked |= {action.waits_in for action, outcome in found if not outcome.at_destination} - {None}
    return found


async def _patiently(
    destination: Destination, actions: Sequence[Carried], blocked: Collection[Text]
) -> Sequence[Outcome]:
    for again in range(TRIES - 1, -1, -1):
        try:
            return await destination.put(actions, blocked)
        except DatabaseBusy:
            if not again:
                raise
    raise AssertionError


def _held(kinds: Mapping[str, KindPolicy]) -> list[str]:
    return sorted(name for name, kind in kinds.items() if (kind.paused_by or "").startswith(HELD_BY))
