"""The whole matrix: `python -m edgeoutbox.testing.crash`.

Every subject, at every failpoint and seam, over both copies of SQLite, or each `--database` that is named: progress as
it goes, and a table at the end. Without `--subject` it runs the model adapters, one for each delivery. A subject is
`path/to/file.py:name` of a function that is given a folder and returns an async context manager of a `Subject`.

Exit code 0: every cell is green; 1: one is red; 2: wrong arguments, or a subject or database that cannot be tested.
"""

import argparse
import asyncio
import inspect
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.kinds import Delivery
from edgeoutbox.testing.crash.databases import Databases, require_server
from edgeoutbox.testing.crash.factories import Reference
from edgeoutbox.testing.crash.failpoints import Failpoint
from edgeoutbox.testing.crash.matrix import POSTGRES, SCHEMES, Cell, Finding, Subject, cells, run_cell
from edgeoutbox.testing.crash.model import model_subject
from edgeoutbox.testing.crash.programs import Programs

RED = 1
WRONG = 2

SUBJECTS_ARE = "a subject is a function that is given a folder and returns an async context manager of a Subject"

Staging: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Subject]]
"""Given a folder: a provider of its own, and what the matrix has to know of it."""


@asynccontextmanager
async def _staged(delivery: Delivery, folder: Path) -> AsyncIterator[Subject]:
    yield model_subject(delivery, folder)


MODELS: Mapping[str, Staging] = {delivery.value: partial(_staged, delivery) for delivery in Delivery}


def main(
    arguments: Sequence[str] | None = None,
    subjects: Mapping[str, Staging] = MODELS,
    databases: Sequence[str] = SCHEMES,
) -> int:
    """Read the arguments and run, by default these subjects over these databases; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgeoutbox.testing.crash", description=__doc__)
    parser.add_argument("--subject", action="append", metavar="FILE:NAME", help="an adapter to kill; may be repeated")
    parser.add_argument("--database", action="append", choices=[*SCHEMES, POSTGRES])
    parser.add_argument("--failpoint", action="append", choices=[str(one) for one in Failpoint])
    parser.add_argument("--jobs", type=_positive, default=2, help="how many cells run at once")
    given = parser.parse_args(arguments)
    databases = tuple(dict.fromkeys(given.database or databases))
    wanted = [cell for cell in cells(databases) if not given.failpoint or cell.failpoint in given.failpoint]
    started = time.monotonic()
    try:
        if POSTGRES in databases:
            require_server()
        subjects = _named(given.subject) if given.subject else subjects
        troubles = asyncio.run(_run(subjects, wanted, given.jobs))
    except ConfigurationError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return WRONG
    red = sum(map(bool, troubles.values()))
    _say(f"\n{_overview(subjects, troubles)}\n")
    _say(f"{len(troubles) - red} green and {red} red cells in {time.monotonic() - started:.0f} s")
    return RED if red else 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return number


def _named(given: Sequence[str]) -> Mapping[str, Staging]:
    """The subjects by the names of their functions, or in full when two functions have one name."""
    given = tuple(dict.fromkeys(given))
    short = [text.rpartition(":")[2] for text in given]
    names = short if len(set(short)) == len(short) else given
    return {name: _loaded(text) for name, text in zip(names, given, strict=True)}


def _loaded(text: str) -> Staging:
    try:
        staging: Staging = Reference.parse(text).load()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{text}: loading it raised {type(error).__name__}: {error}") from error
    try:
        inspect.signature(staging).bind(Path())
    except (TypeError, ValueError):
        raise ConfigurationError(f"{text}: {SUBJECTS_ARE}") from None
    return staging


def _stage(staging: Staging, folder: Path) -> AbstractAsyncContextManager[Subject]:
    staged = staging(folder)
    if not isinstance(staged, AbstractAsyncContextManager):
        raise ConfigurationError(SUBJECTS_ARE)
    return staged


async def _run(
    stagings: Mapping[str, Staging], wanted: Sequence[Cell], jobs: int
) -> Mapping[tuple[str, Cell], Sequence[str]]:
    queue = [(name, cell) for cell in wanted for name in stagings]
    total, troubles = len(queue), dict[tuple[str, Cell], Sequence[str]]()

    async def work(databases: Databases) -> None:
        with Programs() as programs:
            while queue:
                name, cell = queue.pop(0)
                with tempfile.TemporaryDirectory(prefix="edgeoutbox-crash-") as made:
                    finding = await _finding(programs, name, stagings[name], databases.of(cell), Path(made))
                troubles[name, cell] = finding.trouble
                _say(f"{len(troubles)}/{total} {name}: {cell}: {'; '.join(finding.trouble) or finding.found}")

    with Databases() as databases:
        await asyncio.gather(*(work(databases) for _ in range(jobs)))
    return troubles


async def _finding(programs: Programs, name: str, staging: Staging, cell: Cell, folder: Path) -> Finding:
    try:
        async with _stage(staging, folder) as subject:
            return await run_cell(programs, subject, cell, folder)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except Exception:  # noqa: BLE001 - the subject's own code, such as its provider: the cell shows nothing
        return Finding(None, [traceback.format_exc()])


def _overview(stagings: Mapping[str, Staging], troubles: Mapping[tuple[str, Cell], Sequence[str]]) -> str:
    """Green cells of all, by failpoint and subject."""
    green: Counter[tuple[str, str]] = Counter()
    every: Counter[tuple[str, str]] = Counter()
    for (name, cell), trouble in troubles.items():
        every[cell.failpoint, name] += 1
        green[cell.failpoint, name] += not trouble
    width = max(map(len, Failpoint)) + 2
    lines = ["".join(["".ljust(width), *(name.rjust(len(name) + 2) for name in stagings)])]
    for failpoint in Failpoint:
        if not any((failpoint, name) in every for name in stagings):
            continue
        line = failpoint.ljust(width)
        for name in stagings:
            good, of = green[failpoint, name], every[failpoint, name]
            line += (f"{good}/{of}" if good == of else f"RED {good}/{of}").rjust(len(name) + 2)
        lines.append(line)
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
