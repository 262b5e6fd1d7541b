"""The long form: `python -m tests.power --cuts 10000`, or one life again: `python -m tests.power --seed 4711`."""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.power.cuts import IN_MEMORY, Lived, live
from tests.power.faults import live_with_faults

EVERY = 5.0
"""Seconds between lines of progress."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Live lives until one is broken; 1 when one was."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--seed", type=int, help="live this one life, with its log")
    parser.add_argument("--cuts", type=_positive, help="how many lives (10000)")
    parser.add_argument("--first", type=int, help="the first seed (0)")
    parser.add_argument(
        "--synchronous", choices=["NORMAL", "OFF"], help="tamper with every connection, to see it found"
    )
    parser.add_argument("--faults", action="store_true", help="lives of test_faults: full, failing and slow disks")
    given = parser.parse_args(arguments)
    if given.faults and given.synchronous:
        parser.error("--synchronous: a life with --faults is not tampered with")
    if given.seed is not None and (given.cuts or given.first is not None):
        parser.error("--seed is one life: --cuts and --first go without it")
    tamper = (f"PRAGMA synchronous = {given.synchronous}",) if given.synchronous else ()
    if given.seed is not None:
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
        lived = _live(given.seed, tamper, faults=given.faults)
        sys.stdout.write(f"{lived.told}\n")
        return bool(lived.broken)
    logging.disable()
    try:
        return _live_many(given, tamper)
    finally:
        logging.disable(logging.NOTSET)


def _live_many(given: argparse.Namespace, tamper: tuple[str, ...]) -> int:
    began = said = time.monotonic()
    lives, first = given.cuts or 10_000, given.first or 0
    happened = 0
    for count, seed in enumerate(range(first, first + lives), 1):
        lived = _live(seed, tamper, faults=given.faults)
        happened += len(lived.happened)
        if lived.broken:
            kind = " --faults" if given.faults else f" --synchronous {given.synchronous}" if tamper else ""
            sys.stdout.write(f"{lived.told}\nagain: python -m tests.power{kind} --seed {seed}\n")
            return 1
        if time.monotonic() - said > EVERY or count == lives:
            said = time.monotonic()
            what = "troubles" if given.faults else "cuts"
            sys.stdout.write(f"{count} lives, {happened} {what}, {said - began:.0f} s: all holds\n")
            sys.stdout.flush()
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _live(seed: int, tamper: tuple[str, ...], *, faults: bool) -> Lived:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        return live_with_faults(Path(folder), seed) if faults else live(Path(folder), seed, tamper=tamper)


if __name__ == "__main__":
    sys.exit(main())
