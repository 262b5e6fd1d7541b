"""Turns: several settlements of one action in a batch that is written together."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from edgeoutbox.storage.protocol import Claim, Settlement
from edgeoutbox.storage.statements.steps import Steps

Settling: TypeAlias = tuple[Claim, Settlement]


def in_turns(
    settlements: Sequence[Settling], settle: Callable[[Sequence[Settling]], Steps[list[bool]]]
) -> Steps[list[bool]]:
    """Settle in as few turns as leave each action in a turn once; whether each settlement was written.

    Asked before either is written, the database would say of both that they hold their action.
    """
    if len({claim.id for claim, _ in settlements}) == len(settlements):
        return (yield from settle(settlements))
    written = [False] * len(settlements)
    for turn in _turns([claim.id for claim, _ in settlements]):
        answers = yield from settle([settlements[place] for place in turn])
        for place, answer in zip(turn, answers, strict=True):
            written[place] = answer
    return written


def _turns(ids: Sequence[int]) -> list[list[int]]:
    turns: list[list[int]] = []
    times: Counter[int] = Counter()
    for place, action_id in enumerate(ids):
        if times[action_id] == len(turns):
            turns.append([])
        turns[times[action_id]].append(place)
        times[action_id] += 1
    return turns
