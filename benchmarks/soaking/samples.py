"""What the soak measures while it runs, and whether it is flat."""

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeoutbox.storage.sqlite.checkpoints import CHECKPOINT_AT, CUT_AT

MEGABYTE = 1e6
GROWTH = 1.10
SMALLEST_QUARTER = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: seconds since the load began, sizes in MB. `resident` is that of the executor that is not killed."""

    at: float
    resident: float
    file: float
    wal: float
    ended: int


def resident_mb(pid: int) -> float:
    """The resident size of a process, in MB (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def size_mb(path: Path) -> float:
    """The size of a file in MB, 0 when there is none."""
    try:
        return path.stat().st_size / MEGABYTE
    except FileNotFoundError:
        return 0.0


def lower_quartile(values: Sequence[float]) -> float:
    """A quarter of the values are below."""
    return statistics.quantiles(values, n=4)[0]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that must stay flat: which part of a sample, what of a quarter is compared, and its allowance in MB."""

    name: str
    of: Callable[[Sample], float]
    middle: Callable[[Sequence[float]], float]
    allowance: float


# The first quarter of a run is warm-up: caches fill, and the file finds its size. Of the others the second is compared
# with the last. The median of a quarter ignores what passes, such as a sample in the middle of a sweep. It may grow by
# a tenth, and by an allowance besides: at the sizes of a short run a tenth is less than what an allocator rounds to.
# Five minutes at 40 actions a second see 6000 between the two: enough for rows that nobody deletes, or for an object of
# 2 KB that every action leaves behind. An hour sees one of 200 bytes.
# The log is written over after a checkpoint, or cut, and grows beside a pinned snapshot for as long as that stays. Pins
# take up about a quarter of the time, so the lower quartile of a quarter tells whether the log comes back after one.
LINES = (
    Line("resident memory of the executor", lambda sample: sample.resident, statistics.median, 2.0),
    Line("database file", lambda sample: sample.file, statistics.median, 1.0),
    Line("write-ahead log", lambda sample: sample.wal, lower_quartile, CUT_AT * CHECKPOINT_AT / 1e6),
)


def growing(samples: Sequence[Sample]) -> list[str]:
    """What is not flat, a sentence each. Nothing was seen to be flat when there are too few samples."""
    quarter = len(samples) // 4
    if quarter < SMALLEST_QUARTER:
        return [f"{len(samples)} samples were taken, too few to say whether anything grows"]
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    broken = []
    for line in LINES:
        before, after = (line.middle([line.of(sample) for sample in part]) for part in (second, last))
        if after > before * GROWTH + line.allowance:
            broken.append(f"the {line.name} grows: {before:.1f} MB in the second quarter, {after:.1f} MB in the last")
    return broken
