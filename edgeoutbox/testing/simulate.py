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
from edgeoutbox.testing.simulation.plan import Plan, draw
from edgeoutbox.testing.simulation.seeds import NONE, Failure, Tally, run_plan, run_seeds
from edgeoutbox.testing.simulation.world import simulate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m edgeoutbox.testing.simulate", description=(__doc__ or "").partition("\n")[0]
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and print its trace")
    which.add_argument("--seeds", type=_positive, help="run so many seeds")
    parser.add_argument("--from", type=int, dest="first", help="with --seeds: the first of them (0)")
    parser.add_argument("--only", type=_numbers, help=f"with --seed: the events to keep, such as 0,3,4, or {NONE}")
    parser.add_argument("--shrink", action="store_true", help="with --seed: shrink a failure")
    parser.add_argument("--jobs", type=_positive, help="with --seeds: processes (one for each core)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    if given.seed is not None:
        _refuse(parser, "--seeds", **{"--from": given.first, "--jobs": given.jobs})
        plan = draw(given.seed)
        if missing := set(given.only or ()) - {event.number for event in plan.events}:
            parser.error(f"--only: seed {given.seed} has the events 0 to {plan.drawn - 1}, and no {min(missing)}")
        tally = _one(plan if given.only is None else plan.only(given.only), shrink=given.shrink, quiet=given.json)
    else:
        _refuse(parser, "--seed", **{"--only": given.only, "--shrink": given.shrink or None})
        progress = _progress(given.seeds) if sys.stderr.isatty() else lambda _: None
        first = given.first or 0
        tally = run_seeds(range(first, first + given.seeds), given.jobs or os.cpu_count() or 1, progress)
    _say(tally, time.monotonic() - began, as_json=given.json, traced=given.seed is not None and not given.shrink)
    return 1 if tally.failures else 0


def _refuse(parser: argparse.ArgumentParser, belongs_to: str, **options: object) -> None:
    for option, value in options.items():
        if value is not None:
            parser.error(f"{option} goes with {belongs_to}")


def _one(plan: Plan, *, shrink: bool, quiet: bool) -> Tally:
    with Machine() as machine:
        tally = run_plan(plan, machine, shrink_for=20.0 if shrink else 0.0)
        if not quiet and not shrink:
            for line in tally.failures[0].trace if tally.failures else simulate(plan, machine).trace:
                print(line)  # noqa: T201 - a command
        return tally


def _say(tally: Tally, seconds: float, *, as_json: bool, traced: bool) -> None:
    if as_json:
        print(json.dumps(_plain(tally, seconds)))  # noqa: T201 - a command
        return
    for failure in tally.failures:
        print(f"\n{failure}" if not traced else f"seed {failure.seed}: {failure.complaint}")  # noqa: T201 - a command
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


def _numbers(text: str) -> list[int]:
    try:
        return [] if text == NONE else [int(number) for number in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of events, such as 0,3,4, or {NONE}") from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
