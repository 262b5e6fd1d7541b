"""`python -m tests.mutants`: break the product on purpose, one defect at a time, and see that the suite notices."""

import asyncio
import json
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence

from rich.console import Console

from edgeoutbox.testing.postgres import DISTRIBUTION, VARIABLE, unavailable
from tests.mutants.copies import TableError
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS
from tests.mutants.trials import Trial, try_all

SURVIVORS = 1
WRONG_TABLE = 2


def main() -> int:
    """Try the mutants and print which test killed which; 1 when one survives, 2 when the table does not fit."""
    parser = ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="try this mutant; may be given several times")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--all-tests", action="store_true", help="run the whole suite against each mutant: takes hours")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="how many to try at once")
    given = parser.parse_args()
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    began = time.monotonic()
    os.environ.pop(VARIABLE, None)  # copies start servers of their own, which a test may crash
    try:
        mutants = _possible(_chosen(given.only), progress)
        trials = asyncio.run(
            try_all(mutants, workers=max(1, given.workers), all_tests=given.all_tests, tell=Teller(progress, mutants))
        )
    except TableError as error:
        progress.print(f"mutants: {error}", style="red", markup=False)
        return WRONG_TABLE
    except KeyboardInterrupt:
        return 130
    if given.json:
        sys.stdout.write(json.dumps([_facts(trial) for trial in trials], indent=2) + "\n")
    else:
        _print(trials, time.monotonic() - began)
    return SURVIVORS if any(trial.survived for trial in trials) else 0


def _chosen(names: Sequence[str] | None) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in MUTANTS}
    if len(known) != len(MUTANTS):
        raise TableError("two mutants have the same name; rename one")
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise TableError(f"no mutant is called {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


def _possible(mutants: Sequence[Mutant], progress: Console) -> Sequence[Mutant]:
    """The mutants whose tests can run on this machine."""
    if unavailable() is None:
        return mutants
    left = [mutant for mutant in mutants if not mutant.of_postgres]
    why = f"there is no Postgres to start; install the package {DISTRIBUTION}"
    if not left:
        raise TableError(why)
    if len(left) < len(mutants):
        progress.print(f"left out, mutants of Postgres: {len(mutants) - len(left)}; {why}", markup=False)
    return left


class Teller:
    """Prints each step as it comes."""

    def __init__(self, console: Console, mutants: Sequence[Mutant]) -> None:
        self._console = console
        self._total = len(mutants)
        self._done = 0

    def __call__(self, step: str | Trial) -> None:
        """Print one line."""
        if isinstance(step, str):
            self._console.print(step)
            return
        self._done += 1
        verdict = "[red]SURVIVED[/red]" if step.survived else "killed"
        self._console.print(f"{self._done:3}/{self._total} {verdict} {step.mutant.name} ({step.seconds:.1f} s)")


def _print(trials: Sequence[Trial], seconds: float) -> None:
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(trial.mutant.name) for trial in trials)
    for trial in trials:
        killers = [_short(case) for case in list(trial.killed_by)[:5]]
        if len(trial.killed_by) > len(killers):
            killers.append(f"and {len(trial.killed_by) - len(killers)} more")
        lines = ["SURVIVED"] if trial.survived else killers
        for name, line in zip([trial.mutant.name, *[""] * len(lines)], lines, strict=False):
            console.print(f"{name:{width}}  {line}", markup=False, style="red" if trial.survived else None)
    alive = [trial for trial in trials if trial.survived]
    for trial in alive:
        console.print(f"\n{trial.mutant.name} survived: {trial.mutant.harm}\n  {trial.survived}", markup=False)
    console.print(f"\n{len(trials) - len(alive)} of {len(trials)} mutants killed in {seconds:.0f} s")


def _short(case: str) -> str:
    """A case by file and test, without the folders and the class."""
    place, _, test = case.partition("::")
    return f"{next(part for part in place.split('.') if part.startswith('test_'))} {test}"


def _facts(trial: Trial) -> dict[str, object]:
    return {
        "name": trial.mutant.name,
        "harm": trial.mutant.harm,
        "killed": trial.survived is None,
        "killed_by": dict(trial.killed_by),
        "survived": trial.survived,
        "seconds": round(trial.seconds, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
