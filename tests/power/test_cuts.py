"""P7, P8 and what belongs to them, when the power goes at any call of the disk or of the provider.

A seed that fails is printed; `python -m tests.power --seed N` lives that life again, with its log.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.power.cuts import Lived, live

LIVES = 300
AT_ONCE = 30


def lives(folder: Path, seeds: Sequence[int]) -> list[Lived]:
    """Live them, each in its own folder."""
    lived = []
    for seed in seeds:
        lived.append(live(folder / str(seed), seed))
        shutil.rmtree(folder / str(seed))
    return lived


@pytest.mark.parametrize("first", range(0, LIVES, AT_ONCE))
def test_p7_p8_hold_when_the_power_goes(folder: Path, first: int) -> None:
    """What was answered is there, nothing is sent twice, lanes keep their order, and everything ends."""
    lived = lives(folder, range(first, first + AT_ONCE))
    assert [life.told for life in lived if life.broken] == []
    assert sum(len(life.happened) for life in lived) >= AT_ONCE * 3 // 4


def test_a_seed_is_the_same_life_again(folder: Path) -> None:
    """The power goes at the same calls, and as many calls follow, so that what was found can be looked at."""
    seeds = range(8)
    assert lives(folder / "once", seeds) == lives(folder / "again", seeds)
