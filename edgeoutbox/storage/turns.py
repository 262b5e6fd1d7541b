"""Turns: several settlements of one action, of a batch that is written by one statement."""

from collections.abc import Iterator, Sequence


def turns(ids: Sequence[int]) -> Iterator[list[int]]:
    """The places of a batch, in as few turns as leave each action in a turn once, its earlier places first.

    Of two rows for one action, an UPDATE would choose one.
    """
    left = list(range(len(ids)))
    while left:
        firsts = {ids[place]: place for place in reversed(left)}
        turn = sorted(firsts.values())
        yield turn
        left = sorted(set(left) - set(turn))
