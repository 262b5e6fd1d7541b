"""Turns: several settlements of one action, in a batch that is written by one statement."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from edgeoutbox.storage.protocol import Claim, Settlement
from edgeoutbox.storage.statements.steps import Steps

Settling: TypeAlias = tuple[Claim, Settlement]


def in_turns(
    settlements: Sequence[Settling], settle: Callable[[Sequence[Settling]], Steps[Sequence[bool]]]
) -> Steps[list[bool]]:
    """Settle in as few turns as leave each action in a turn once; whether each settlement was written.

    Of two rows for one action, an UPDATE would choose one.
    """
    written = [False] * len(settlements)
    for turn in _turns([claim.id for claim, _ in settlements]):
        answers = yield from settle([settlements[place] for place in turn])
        for place, answer in zip(turn, answers, strict=True):
            written[place] = answer
    return written


def _turns(ids: Sequence[int]) -> Iterator[list[int]]:
    left = list(range(len(ids)))
    while left:
        firsts = {ids[place]: place for place in reversed(left)}
        turn = sorted(firsts.values())
        yield turn
        left = sorted(set(left) - set(turn))
