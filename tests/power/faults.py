"""What else happens to a disk: it is full, fails, reads short, dawdles; chosen by a life's seed."""

import logging
import random
from pathlib import Path

from edgeoutbox.testing.disk import CUT_AFTER, IO_ERROR, NO_SPACE, SHORT_READ, SLOW, Call, Fault, What
from tests.power.cuts import Lived, ordinary
from tests.power.life import Life

CALLS: tuple[Call, ...] = ("open", "read", "write", "truncate", "sync", "size", "delete", "access", "lock")

TROUBLES: tuple[tuple[What, Call | None], ...] = (
    *((IO_ERROR, call) for call in (*CALLS, "write", "sync", None)),
    *((NO_SPACE, call) for call in ("open", "write", "write", "truncate", "sync", None)),
    *((SLOW, call) for call in (*CALLS, "sync", None)),
    *((SHORT_READ, "read"),) * 3,
)
"""What happens to calls of which kind; `None`: to every call that it can happen to."""

SESSIONS = 120
"""In how many starts a program must have come through troubles that end."""


class Outages(logging.Handler):
    """Hears whether an outage is said once, and its end once."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note the two events."""
        event = record.__dict__.get("event")
        if event in {"storage.unavailable", "storage.available"}:
            self.said.append(event)

    def broken(self) -> list[str]:
        """What was said twice."""
        every_other = ["storage.unavailable", "storage.available"] * len(self.said)
        return [] if self.said == every_other[: len(self.said)] else [f"log: {self.said}"]


def live_with_faults(folder: Path, seed: int) -> Lived:
    """Live a life with up to three troubles, and in one of three lives a loss of power after them."""
    draw = random.Random(f"faults:{seed}")  # noqa: S311 - reproducible, not secret
    life = Life(folder, seed)
    life.provider.on_call = life.fence_is_certain
    planned: list[Fault] = []
    cuts = 0
    for _ in range(draw.randint(1, 3)):
        what, call = draw.choice(TROUBLES)
        trouble = Fault(
            what,
            call,
            at=draw.randint(1, sum(ordinary()[each] for each in (CALLS if call is None else (call,)))),
            times=draw.choice((1, 2, 10, 30)),
            seconds=draw.choice((0.5, 2.5, 6.0)),
            # SQLite takes a page of the database that the disk does not have for zeros, and cannot be helped.
            file="-wal" if what == SHORT_READ else draw.choice(("", "", "-wal")),
        )
        life.disk.plan(trouble)
        planned.append(trouble)
    if draw.random() < 1 / 3:
        life.disk.plan(Fault(CUT_AFTER, "sync", at=draw.randint(10, ordinary()["sync"])))
    for _ in range(SESSIONS):
        outages = Outages()
        logger = logging.getLogger("edgeoutbox")
        logger.addHandler(outages)
        ended = life.session()
        logger.removeHandler(outages)
        if life.disk.powered:
            life.broken += outages.broken() if ended else []
        else:
            cuts += 1
            life.power_returns()
        if ended or life.broken:
            break
    else:
        life.broken.append(f"P9: it did not come through in {SESSIONS} starts")
    if not life.broken:
        life.look(at_the_end=True)
    life.disk.close()
    happened = [_told(trouble) for trouble in planned if trouble.seen >= trouble.at] + ["a cut"] * cuts
    return Lived(seed, tuple(happened), tuple(life.broken), dict(life.disk.calls), dict(life.disk.struck))


def _told(trouble: Fault) -> str:
    struck = min(trouble.times, trouble.seen - trouble.at + 1)
    return f"{trouble.what} in {struck} x {trouble.call or 'any call'} {trouble.at}{trouble.file}"
