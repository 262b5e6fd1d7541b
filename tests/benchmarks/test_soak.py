import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soak
from benchmarks.soak import Plan, Soak
from benchmarks.soaking import neighbours
from benchmarks.soaking.doubts import WINDOW, Causes, Doubt, unexplained
from benchmarks.soaking.ledger import Row, Told, lines, never, unbalanced, unswept
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


def test_what_was_not_measured_is_not_flat() -> None:
    """A sampler that stops early has seen nothing stay."""
    assert growing(_samples()[:19]) == ["19 samples were taken, too few to say whether anything grows"]
    assert growing([]) != []


@pytest.mark.asyncio
async def test_a_run_that_cannot_measure_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sampler raises ends the run at once, and nothing of it is left running."""

    def unreadable(_: int) -> float:
        raise OSError("no such process")

    async def capacity(_: Soak) -> float:
        return 50.0

    monkeypatch.setattr(soak, "resident_mb", unreadable)
    monkeypatch.setattr(Soak, "_capacity", capacity)
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="no such process")):
        await Soak(tmp_path, "apsw", Plan.lasting(soak.SHORTEST), seed=1).run()


def test_a_neighbour_that_fails_is_no_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its thread, or in the other: the program does not end well."""
    file = tmp_path / "some.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE soak_till (holds)")
    monkeypatch.setattr(sys, "argv", ["neighbours", str(file), "0.2", "0.01", "0.01", "1"])
    monkeypatch.setattr(neighbours, "pin", lambda connection, _: connection.execute("SELECT pins FROM soak_till"))
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        neighbours.main()


@pytest.mark.parametrize("seconds", [soak.SHORTEST, 30.0, soak.JUDGED_FROM - 1, soak.JUDGED_FROM, 3600.0])
def test_everything_that_is_planned_has_time_to_happen(seconds: float) -> None:
    """Each neighbour stays once at least, however its rests are drawn, and an executor is killed."""
    plan = Plan.lasting(seconds)
    assert neighbours.SURE * max(plan.hold, plan.pin) <= seconds
    assert max(plan.kill) <= plan.bad
    assert never({"killed": 1, "pinned": 0}) == ["pinned: not once in the whole run"]


def _doubt(**differs: Any) -> Doubt:
    return replace(Doubt("email-1", "NO_CONFIRMATION", "17:ab", 1_000, 1_500, 1), **differs)


@pytest.mark.parametrize(
    ("doubt", "unanswered", "killed", "explained"),
    [
        (_doubt(), ["email-1"], {}, True),
        (_doubt(stop_reason="ERROR_AFTER_WRITE"), ["email-1"], {}, True),
        (_doubt(settled=1_000 + WINDOW), [], {}, True),
        (_doubt(), [], {"17": 1_500}, False),
        (_doubt(owner=None, fenced=None, settled=None, recorded=None), [], {}, False),
        (_doubt(stop_reason="LEASE_LOST_AFTER_WRITE", settled=None, recorded=None), [], {"17": 1_200}, True),
        (_doubt(stop_reason="LEASE_LOST_AFTER_WRITE", settled=None, recorded=None), [], {"17": 900}, False),
        (_doubt(stop_reason="LEASE_LOST_AFTER_WRITE", settled=None, recorded=None), [], {"18": 1_200}, False),
        (_doubt(stop_reason="LEASE_LOST_AFTER_WRITE", settled=20_000, recorded=0), [], {}, True),
        (_doubt(stop_reason="READBACK_EXHAUSTED"), ["email-1"], {"17": 1_200}, False),
    ],
)
def test_each_doubt_has_a_cause(doubt: Doubt, unanswered: list[str], killed: dict[str, int], explained: bool) -> None:
    """The relay did not answer, the window was over, or its executor was killed under the fence or came too late."""
    causes = Causes(0.1, 10, unanswered, killed)
    line = ["1 UNCERTAIN, and nothing that happened explains it: email-1"]
    assert lines(unexplained([doubt], causes)) == ([] if explained else line)


def test_a_relay_that_answers_nobody_is_no_weather() -> None:
    """Each doubt has its cause, and there are far more of them than bad weather leaves."""
    keys = [f"email-{n}" for n in range(76)]
    causes = Causes(0.015, 282, keys)
    doubts = [_doubt(key=key) for key in keys]
    [line] = lines(unexplained(doubts, causes))
    assert line.startswith("76 left without an answer by the relay, which is more than 16 of 282: email-0, ")
    assert lines(unexplained(doubts[:3], Causes(0.015, 282, keys[:3]))) == []
    assert lines(unexplained(doubts[:2], Causes(0.015, 282, keys[:3]))) == [
        "1 left without an answer by the relay, and not UNCERTAIN: email-2"
    ]


@pytest.mark.parametrize(
    ("name", "by", "words"),
    [("resident", 0.6, "resident memory"), ("file", 0.6, "database file"), ("wal", 2.5, "write-ahead log")],
)
def test_what_grows_is_told(name: str, by: float, words: str) -> None:
    """Each of the three, and the others not."""
    [line] = growing(_samples(**{name: by}))
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
