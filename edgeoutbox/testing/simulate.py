"""The command of the simulation: `python -m edgeoutbox.testing.simulate --seeds 2000`.

Exit code 0: every promise held; 1: one was broken, and what replays it is printed; 2: wrong arguments.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from edgeoutbox.testing.simulation.disk import Machine
from edgeoutbox.testing.simulation.plan import draw
from edgeoutbox.testing.simulation.seeds import Failure, Tally, run_plan, run_seeds
from edgeoutbox.testing.simulation.world import simulate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m edgeoutbox.testing.simulate", description=(__doc__ or "").partition("\n")[0]
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and print its trace")
    which.add_argument("--seeds", type=_positive, help="run so many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of --seeds (0)")
    parser.add_argument("--only", help="with --seed: the numbers of the events to keep, such as 0,3,4")
    parser.add_argument("--shrink", action="store_true", help="with --seed: shrink a failure")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes (one for each core)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    if given.seed is not None:
        tally = _one(given.seed, given.only, shrink=given.shrink, quiet=given.json)
    else:
        progress = _progress(given.seeds) if sys.stderr.isatty() else lambda _: None
        tally = run_seeds(range(given.first, given.first + given.seeds), given.jobs, progress)
    _say(tally, time.monotonic() - began, as_json=given.json, one=given.seed is not None)
    return 1 if tally.failures else 0


def _one(seed: int, only: str | None, *, shrink: bool, quiet: bool) -> Tally:
    plan = draw(seed)
    if only is not None:
        plan = plan.only([int(number) for number in only.split(",")])
    with Machine() as machine:
        if not quiet and not shrink:
            for line in simulate(plan, machine).trace:
                print(line)  # noqa: T201 - a command
        return run_plan(plan, machine, shrink_for=20.0 if shrink else 0.0)


def _say(tally: Tally, seconds: float, *, as_json: bool, one: bool) -> None:
    if as_json:
        print(json.dumps(_plain(tally, seconds)))  # noqa: T201 - a command
        return
    for failure in tally.failures:
        print(f"\n{failure}" if not one else f"seed {failure.seed}: {failure.complaint}")  # noqa: T201 - a command
    minutes = tally.simulated / 60
    print(  # noqa: T201 - a command
        f"{tally.seeds} seeds, {minutes:.0f} simulated minutes in {seconds:.1f} s; "
        f"{1000 * tally.seconds / tally.seeds:.1f} ms of processor a seed; {len(tally.failures)} failures",
        file=sys.stderr,
    )


def _plain(tally: Tally, seconds: float) -> dict[str, object]:
    return {
        "seeds": tally.seeds,
        "simulated_minutes": round(tally.simulated / 60, 1),
        "seconds": round(seconds, 2),
        "processor_seconds": round(tally.seconds, 2),
        "failures": [_failure(failure) for failure in tally.failures],
    }


def _failure(failure: Failure) -> dict[str, object]:
    return {
        "seed": failure.seed,
        "promise": failure.promise,
        "complaint": failure.complaint,
        "replay": failure.command,
        "trace": list(failure.trace),
    }


def _progress(seeds: int) -> "_Progress":
    return _Progress(seeds)


class _Progress:
    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._began = time.monotonic()

    def __call__(self, tally: Tally) -> None:
        each = (time.monotonic() - self._began) / max(1, tally.seeds)
        left = each * (self._seeds - tally.seeds)
        sys.stderr.write(f"\r{tally.seeds} of {self._seeds} seeds, {left:.0f} s left   ")
        if tally.seeds >= self._seeds or tally.failures:
            sys.stderr.write("\n")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
