"""One cell of the matrix: kill a program at a failpoint, start it again, and compare what three witnesses say.

The witnesses are the database, the provider's own record, and what was enqueued.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeoutbox.adapter import Adapter
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import ActionRequest
from edgeoutbox.testing.crash.failpoints import Failpoint, Seam, Step
from edgeoutbox.testing.crash.lives import LOST, Life, Report, Seen
from edgeoutbox.testing.crash.programs import LifeWentWrong, Programs
from edgeoutbox.testing.crash.promises import PROMISED, Ending, Promise, folded, left

HOUR = 3600.0
"""Seconds between two lives: longer than a lease."""

CENTURY = 37_000 * 86_400.0
"""Seconds before a sweep: longer than any retention."""

START = 1_767_225_600.0
"""When the first life begins, unless its provider goes by the time: 2026-01-01 00:00:00 UTC."""

SCHEMES = ("sqlite", "sqlite+apsw")
"""Both copies of SQLite."""

POSTGRES = "postgresql"
"""A server's schema; it is killed around the calls of the storage and of the adapter."""

NOT_YET = {"Reread", "Retry", "Defer"}
"""Results that ask for another attempt.

How often an adapter asks for one after a lost attempt is its own affair: a history may show a write late, a provider
may say that the first request still runs. So behind a lost attempt they are left out of the comparison. Where none was
lost nothing went wrong, and they are compared.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """An adapter to be killed, and what the matrix has to know of its provider.

    `factory(*arguments)` makes the adapter in the program that is killed: a class or function at the top of a file,
    and arguments that JSON can carry. `request(key)` makes a request of the adapter's kind with this idempotency key.
    `effects(key)` says how many effects of it the provider holds. `hold`, where the provider can do that, makes it take
    the next write and never answer it; without it the process dies when the adapter has the answer. `writes_again` is
    false for an adapter that reads back and, where it finds nothing, cannot be sure: it never writes again. `start` is
    the time of the first life, in seconds since 1970.
    """

    factory: Callable[..., Adapter[Any]]
    arguments: Sequence[Any]
    request: Callable[[str], ActionRequest]
    effects: Callable[[str], int]
    hold: Callable[[], None] | None = None
    writes_again: bool = True
    start: float = START


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the program dies, at which seam, over which database.

    That is a scheme of SQLite, for a file of the cell's own, or the URL of a database that no other cell uses: the
    clock of each begins anew.
    """

    failpoint: Failpoint
    seam: Seam
    database: str = SCHEMES[0]

    def __str__(self) -> str:
        return f"{self.failpoint}, {self.seam}, {self.database.partition(':')[0]}"

    def url(self, folder: Path) -> str:
        """The database of this cell."""
        return f"{self.database}:///{folder / 'crash.db'}" if self.database in SCHEMES else self.database


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a cell, unless the program itself went wrong; `trouble` is a sentence for each broken promise.

    `found` has every result, also those that the comparison leaves out.
    """

    found: Ending | None
    trouble: Sequence[str]


def cells(databases: Sequence[str] = SCHEMES, *, every_seam: bool = True) -> Iterator[Cell]:
    """The cells of one adapter. A database that is not SQLite is killed around the calls of its storage alone."""
    for database in databases:
        for failpoint in Failpoint:
            at = [seam for seam in failpoint.seams if database in SCHEMES or seam is not Seam.COMMIT]
            for seam in at if every_seam else at[:1]:
                yield Cell(failpoint, seam, database)


async def run_cell(programs: Programs, subject: Subject, cell: Cell, folder: Path) -> Finding:
    """Kill and start again. Raises `ConfigurationError` when the subject cannot be tested."""
    url = cell.url(folder)
    # A cell may share its provider, and its database, with others.
    mine = f"crash:{folder.name}:{cell.failpoint}:{cell.seam}".replace(" ", "-")
    _check_arguments(subject)
    asked = [subject.request(f"{mine}:{place}") for place in ("killed", "behind")]
    keys = tuple(request.idempotency_key for request in asked)
    if len(set(keys)) != len(keys):
        raise ConfigurationError("request: two keys give one idempotency key; make the request's from the given one")
    if any(subject.effects(key) for key in keys):
        raise ConfigurationError("effects: the provider holds effects of a key before it was asked for any")
    program = programs.of(subject.factory)
    died, report = False, None
    for life in _lives(cell, url, subject, asked):
        held = subject.hold is not None and life.failpoint is Failpoint.AFTER_PROVIDER
        if held and subject.hold is not None:
            subject.hold()
            life = replace(life, failpoint=None, seam=None)  # noqa: PLW2901 - the provider's side decides
        try:
            death = await program.live(life, (lambda: subject.effects(keys[0]) > 0) if held else None)
        except LifeWentWrong as error:
            return Finding(None, [str(error)])
        died, report = died or (death.killed and (held or life.failpoint is cell.failpoint)), death.report
    if report is None:
        raise RuntimeError("the last life, which nobody was to kill, was killed; is the machine out of memory?")
    return _judged(cell, subject, keys, report, died=died)


def _check_arguments(subject: Subject) -> None:
    for argument in subject.arguments:
        try:
            json.dumps(argument)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"arguments: a {type(argument).__name__} cannot be given to the program that is killed; give texts, "
                "numbers, lists and mappings, as JSON has them, to a function that makes the adapter of them"
            ) from None


def _lives(cell: Cell, url: str, subject: Subject, asked: Sequence[ActionRequest]) -> Iterator[Life]:
    step = cell.failpoint.step
    keys = tuple(request.idempotency_key for request in asked)
    if step is Step.REAP:
        asked = [asked[0].model_copy(update={"max_attempts": 1}), *asked[1:]]
    requests = tuple(request.model_copy(update={"lane_key": keys[0]}).model_dump_json() for request in asked)
    again = Life(url, subject.start, keys, tuple(subject.arguments), requests)
    dies = replace(again, failpoint=cell.failpoint, seam=cell.seam)
    match step:
        case Step.REAP:
            lives = [replace(again, failpoint=Failpoint.BEFORE_PROVIDER, seam=Seam.ADAPTER), dies, again]
        case Step.OWED:
            lives = [replace(again, owes=True, drains=False), dies, again]
        case Step.SWEEP:
            # Who enqueues a key after its retention asks for a new effect: so these do not.
            lives = [again, *(replace(life, requests=(), sweeps=True) for life in (dies, again))]
        case _:
            lives = [dies, again]
    if cell.failpoint is Failpoint.AFTER_ENQUEUE:
        # It was enqueued, so nobody enqueues it again: a row that is lost stays lost.
        lives[-1] = replace(again, requests=requests[1:])
    for place, life in enumerate(lives):
        yield replace(life, wall=subject.start + place * HOUR + (CENTURY if life.sweeps else 0.0))


def _judged(cell: Cell, subject: Subject, keys: Sequence[str], report: Report, *, died: bool) -> Finding:
    promise = Promise.of(Delivery(report.delivery), writes_again=subject.writes_again)
    promised = PROMISED[cell.failpoint][promise]
    killed, behind = (report.actions[key] for key in keys)
    found = Ending(killed.state, subject.effects(keys[0]), killed.attempts, reached=died)
    trouble = []
    if promised.reached and not died:
        trouble.append("nobody was killed: the failpoint was not reached")
    had = left(cell.failpoint, promise)
    if died and report.left is not had:
        trouble.append(f"when the process was dead the database was to have it {had}, and had it {report.left}")
    if replace(found, attempts=_compared(killed)) != replace(promised, reached=found.reached):
        trouble.append(f"promised: {promised}; found: {found}")
        trouble += _reasons(killed)
    last = ("DONE CONFIRMED" if promised.state else "", 0 if promise is Promise.WRITES_NOTHING else 1)
    then = (behind.state, subject.effects(keys[1]))
    if then != last:
        trouble.append(f"the action behind it in its lane: promised {last}, found {then}")
    hooks = [killed.hooks, behind.hooks]
    if hooks != ([0, 0] if not promised.state else [1, 1]):
        trouble.append(f"the ended hooks of the two counted {hooks} times")
    return Finding(found, trouble)


def _compared(seen: Seen) -> tuple[str, ...]:
    calm = seen.attempts.index(LOST) if LOST in seen.attempts else len(seen.attempts)
    return seen.attempts[:calm] + tuple(result for result in seen.attempts[calm:] if result not in NOT_YET)


def _reasons(seen: Seen) -> list[str]:
    said = [f"{result} ({reason})" for result, reason in zip(seen.attempts, seen.reasons, strict=True) if reason]
    return [f"the reasons of its attempts: {folded(said)}"] if said else []
