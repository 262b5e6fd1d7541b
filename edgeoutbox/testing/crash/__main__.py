"""The whole matrix: `python -m edgeoutbox.testing.crash`.

Every subject, at every failpoint and seam, over both copies of SQLite, or each `--database` that is named: progress as
it goes, a table at the end, and the exit code 1 when a cell is red. Without `--subject` it runs the model adapters, one
for each delivery. A subject is `path/to/file.py:name` of a function that is given a folder and returns an async context
manager of a `Subject`.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from edgeoutbox.kinds import Delivery
from edgeoutbox.testing.crash.databases import Databases
from edgeoutbox.testing.crash.factories import Reference
from edgeoutbox.testing.crash.failpoints import Failpoint
from edgeoutbox.testing.crash.matrix import POSTGRES, SCHEMES, Cell, Subject, cells, run_cell
from edgeoutbox.testing.crash.model import model_subject
from edgeoutbox.testing.crash.programs import Programs

Staging: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Subject]]
"""Given a folder: a provider of its own, and what the matrix has to know of it."""


@asynccontextmanager
async def _staged(delivery: Delivery, folder: Path) -> AsyncIterator[Subject]:
    yield model_subject(delivery, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgeoutbox.testing.crash", description=__doc__)
    parser.add_argument("--subject", action="append", metavar="FILE:NAME", help="an adapter to kill; may be repeated")
    parser.add_argument("--database", action="append", choices=[*SCHEMES, POSTGRES])
    parser.add_argument("--failpoint", action="append", choices=[str(one) for one in Failpoint])
    parser.add_argument("--jobs", type=int, default=2, help="how many cells run at once")
    given = parser.parse_args(arguments)
    stagings: dict[str, Staging] = {delivery.value: partial(_staged, delivery) for delivery in Delivery}
    if given.subject:
        stagings = {name.rpartition(":")[2]: Reference.parse(name).load() for name in given.subject}
    wanted = [
        cell for cell in cells(given.database or SCHEMES) if not given.failpoint or cell.failpoint in given.failpoint
    ]
    started = time.monotonic()
    troubles = asyncio.run(_run(stagings, wanted, given.jobs))
    red = sum(map(bool, troubles.values()))
    _say(f"\n{_overview(stagings, troubles)}\n")
    _say(f"{len(troubles) - red} green and {red} red cells in {time.monotonic() - started:.0f} s")
    return 1 if red else 0


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
                    async with stagings[name](Path(made)) as subject:
                        finding = await run_cell(programs, subject, databases.of(cell), Path(made))
                troubles[name, cell] = finding.trouble
                _say(f"{len(troubles)}/{total} {name}: {cell}: {'; '.join(finding.trouble) or finding.found}")

    with Databases() as databases:
        await asyncio.gather(*(work(databases) for _ in range(jobs)))
    return troubles


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
