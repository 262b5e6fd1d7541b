import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soaking.ledger import Row, Told, unbalanced, unswept
from benchmarks.soaking.past import DAY, Moment
from benchmarks.soaking.samples import Sample, growing

ROOT = Path(__file__).resolve().parents[2]

DONE = Row(1, "post-1", "post", "lane-1", "DONE", "CONFIRMED")
LATER = Row(2, "post-2", "post", "lane-1", "DONE", "CONFIRMED")
NEVER = Row(3, "call-3", "call", None, "CANCELLED", "WITHDRAWN")
ROWS = [DONE, LATER, NEVER]
TOLD = Told({"post-1": True, "post-2": True, "call-3": True, "post-4": False}, {"call-3": "WITHDRAWN"})
ORDER = ["post-1", "post-2"]


def test_what_adds_up_is_balanced() -> None:
    """Every committed key is there, ended as answered, and what is DONE arrived once and in order."""
    assert unbalanced(ROWS, TOLD, ORDER) == []


@pytest.mark.parametrize(
    ("rows", "told", "order", "line"),
    [
        (ROWS[:2], TOLD, ORDER, "1 committed, and not in the database: call-3"),
        (ROWS, Told({"post-1": True, "post-2": True}), ORDER, "1 in the database, and not committed: call-3"),
        ([DONE, LATER, Row(3, "call-3", "call", None, "ADMITTED", None)], TOLD, ORDER, "1 not ended: call-3"),
        (ROWS, Told(TOLD.committed, {"call-3": "EXPIRED"}), ORDER, "1 ended in another way than was answered: call-3"),
        (ROWS, TOLD, [*ORDER, "post-2"], "1 arrived more than once: post-2"),
        (ROWS, TOLD, [*ORDER, "post-4"], "1 arrived, and not committed: post-4"),
        (ROWS, TOLD, ORDER[:1], "1 DONE, and never arrived: post-2"),
        (ROWS, TOLD, [*ORDER, "call-3"], "1 FAILED or CANCELLED, and arrived: call-3"),
        (
            [DONE, Row(2, "post-2", "post", "lane-1", "UNCERTAIN", "READBACK_EXHAUSTED"), NEVER],
            TOLD,
            ORDER,
            "1 UNCERTAIN, though not at most once: post-2",
        ),
        (ROWS, TOLD, ORDER[::-1], "1 arrived after a later one of their lane"),
    ],
)
def test_each_thing_that_does_not_add_up_is_a_line(rows: list[Row], told: Told, order: list[str], line: str) -> None:
    """A balance that misses something would let a broken promise through."""
    assert line in unbalanced(rows, told, order)


def test_the_sweep_takes_what_is_due_and_nothing_else() -> None:
    """Both what is late and what went too early are told."""
    moments = [Moment(1_000, 5), Moment(2_000, 5), Moment(3_000, 5)]
    judged = (DAY * 1000 + 1_500, DAY * 1000 + 2_500)
    assert unswept(moments, {2_000: 3, 3_000: 5}, judged) == []
    assert unswept(moments, {1_000: 1, 3_000: 5}, judged) == ["1 actions, due to be swept 2 s ago, are there"]
    assert unswept(moments, {3_000: 4}, judged) == ["1 actions were swept 0 s too early"]


def _samples(**grows: float) -> list[Sample]:
    """Forty samples; what is named grows by so much in each, beside a saw that does not matter."""

    def size(name: str, start: float, n: int) -> float:
        return start + n % 3 + n * grows.get(name, 0.0)

    return [
        Sample(n * 5.0, size("resident", 50.0, n), size("file", 10.0, n), size("wal", 4.0, n), n) for n in range(40)
    ]


def test_what_stays_is_flat() -> None:
    """A saw is no growth, nor is a log that is large for a while."""
    samples = _samples()
    pinned = [Sample(s.at, s.resident, s.file, 100.0, s.ended) if 31 < n < 36 else s for n, s in enumerate(samples)]
    assert growing(samples) == growing(pinned) == []
    assert growing(samples[:19]) is None


@pytest.mark.parametrize(
    ("name", "words"), [("resident", "resident memory"), ("file", "database file"), ("wal", "write-ahead log")]
)
def test_what_grows_is_told(name: str, words: str) -> None:
    """Each of the three, and the others not."""
    [line] = growing(_samples(**{name: 0.6})) or [""]
    assert words in line


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the soak reads the memory of a process from /proc")
def test_a_quick_soak_holds(tmp_path: Path) -> None:
    """All its processes together, for some seconds: nothing is lost, and everything that it plans does happen."""
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.2", "--json"]
    place = {**os.environ, "EDGEOUTBOX_BENCH_DIR": str(tmp_path)}
    ran = subprocess.run(command, cwd=ROOT, env=place, capture_output=True, text=True, timeout=110, check=False)  # noqa: S603 - ours
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["broken"] == []
    assert found["enqueued"] == sum(found["states"].values()) > 0
    assert list(tmp_path.iterdir()) == []
