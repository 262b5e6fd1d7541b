"""Where the power goes: at any call of a life, chosen by its seed."""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgeoutbox.testing.disk import CUT_AFTER, CUT_BEFORE, Call, Fault
from tests.power.life import Life

WEIGHTS: dict[Call | None, int] = {
    "write": 30,
    "sync": 25,
    None: 20,
    "read": 6,
    "truncate": 6,
    "open": 4,
    "size": 3,
    "access": 3,
    "delete": 3,
}
"""How often the power goes at a call of each kind; `None` is the call of the provider."""

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - temporary folders are made in it
"""Where files cost nothing, or `None` for the usual place of temporary files."""


@dataclass(frozen=True)
class Lived:
    """What a life came to, with what happened to its disk."""

    seed: int
    happened: tuple[str, ...]
    broken: tuple[str, ...]
    calls: dict[str, int]
    struck: dict[tuple[str, str], int]
    """How often which fault came to which kind of call."""

    @property
    def told(self) -> str:
        """For whoever has to find out why."""
        return f"seed {self.seed}, {' and '.join(self.happened) or 'nothing'}: {'; '.join(self.broken) or 'all holds'}"


@cache
def ordinary() -> Counter[str | None]:
    """How many calls of each kind a life makes that nothing happens to."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        life = Life(Path(folder), seed=0)
        life.session()
        counted: Counter[str | None] = Counter(life.disk.calls)
        counted[None] = life.provider.calls
        return counted


def live(folder: Path, seed: int, *, tamper: Sequence[str] = (), through: bool = False) -> Lived:
    """Live a life whose power goes once or twice, where the seed says, and look at it after each cut and at its end.

    It ends with the first thing that is broken, unless it is to be lived `through`.
    """
    draw = random.Random(f"cuts:{seed}")  # noqa: S311 - reproducible, not secret
    life = Life(folder, seed, tamper=tamper)
    cuts: list[str] = []
    share = 1.0
    for _ in range(draw.choice((1, 1, 2))):
        [call] = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        what = draw.choice((CUT_BEFORE, CUT_AFTER))
        at = draw.randint(1, max(1, round(ordinary()[call] * share)))
        share = 0.4  # the power goes again while the life goes on from what is left
        _plan(life, call, Fault(what, call, at))
        if life.session():
            break
        cuts.append(f"{what} {call or 'provider call'} {at}")
        life.power_returns()
        if life.broken and not through:
            break
    else:
        life.session()
    if through or not life.broken:
        life.look(at_the_end=True)
    life.disk.close()
    return Lived(seed, tuple(cuts), tuple(life.broken), dict(life.disk.calls), dict(life.disk.struck))


def _plan(life: Life, call: Call | None, fault: Fault) -> None:
    if call is not None:
        life.disk.plan(fault)
        return
    goes_at = life.provider.calls + fault.at

    def on_call(_: str) -> None:
        if life.provider.calls == goes_at:
            life.disk.cut()

    life.provider.on_call = on_call
