"""The long form: `python -m tests.power --cuts 10000`, or one life again: `python -m tests.power --seed 4711`."""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.power.cuts import IN_MEMORY, Lived, live
from tests.power.faults import live_with_faults

EVERY = 5.0
"""Seconds between lines of progress."""


def main() -> int:
    """Live lives until one is broken; 1 when one was."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--seed", type=int, help="live this one life, with its log")
    parser.add_argument("--cuts", type=int, default=10_000, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--synchronous", choices=["NORMAL", "OFF"], help="tamper with every connection, to see it found"
    )
    parser.add_argument("--faults", action="store_true", help="lives of test_faults: full, failing and slow disks")
    given = parser.parse_args()
    tamper = (f"PRAGMA synchronous = {given.synchronous}",) if given.synchronous else ()
    if given.seed is not None:
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
        lived = _live(given.seed, tamper, faults=given.faults)
        sys.stdout.write(f"{lived.told}\n")
        return bool(lived.broken)
    logging.disable()
    began = said = time.monotonic()
    cuts = 0
    for count, seed in enumerate(range(given.first, given.first + given.cuts), 1):
        lived = _live(seed, tamper, faults=given.faults)
        cuts += len(lived.cuts)
        if lived.broken:
            kind = " --faults" if given.faults else ""
            sys.stdout.write(f"{lived.told}\nagain: python -m tests.power{kind} --seed {seed}\n")
            return 1
        if time.monotonic() - said > EVERY or count == given.cuts:
            said = time.monotonic()
            sys.stdout.write(f"{count} lives, {cuts} cuts, {said - began:.0f} s: all holds\n")
            sys.stdout.flush()
    return 0


def _live(seed: int, tamper: tuple[str, ...], *, faults: bool) -> Lived:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        return live_with_faults(Path(folder), seed) if faults else live(Path(folder), seed, tamper=tamper)


if __name__ == "__main__":
    sys.exit(main())
