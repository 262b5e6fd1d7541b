"""P7 with the standard library's copy of SQLite, which no disk of ours can stand under: its syncs are counted.

`strace` counts the system calls of a program of its own. Where there is none, or it may not trace, the test says so.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 5

# Each round marks its steps with a system call that nothing else makes.
PROGRAM = f"""
import asyncio, os, sys
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.sqlite import drivers
from edgeoutbox.testing.conformance.story import DONE, WINDOW, a_request, claim_all

drivers.PRAGMAS = (*drivers.PRAGMAS, *sys.argv[2:])

async def main():
    storage = open_storage(sys.argv[1])
    await storage.open()
    for round in range({ROUNDS}):
        await storage.enqueue([a_request(f"{{round}}:{{n}}") for n in range(4)])
        held = await claim_all(storage)
        assert len(held) == 4
        os.getppid()
        await asyncio.gather(*(storage.begin_write(one.id, one.epoch, one.owner, WINDOW) for one in held))
        os.getppid()
        await asyncio.gather(*(storage.settle(one, DONE) for one in held))
        os.getppid()
    await storage.close()

asyncio.run(main())
"""


def traced(folder: Path, *arguments: str) -> list[str]:
    """The names of the program's syncs and marks, in their order."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed, which counts the syncs of the standard library's copy of SQLite")
    log = folder / "calls"
    watch = [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync,getppid", "-o", str(log)]
    if subprocess.run([*watch, sys.executable, "-c", ""], check=False, capture_output=True).returncode:  # noqa: S603
        pytest.skip("strace may not trace here, so the syncs of the standard library's copy of SQLite go uncounted")
    program = [sys.executable, "-c", PROGRAM, f"sqlite:///{folder / 'app.db'}", *arguments]
    subprocess.run([*watch, *program], check=True, timeout=60)  # noqa: S603 - our own program
    return re.findall(r"^\d+ +(fsync|fdatasync|getppid)\(", log.read_text(), re.MULTILINE)


def syncs_per_step(calls: list[str]) -> list[int]:
    """How many syncs each step between two marks made: fences, settlements, and what is between two rounds."""
    return [len(step.split()) for step in " ".join(calls).split("getppid")][1:-1]


def test_p7_each_batch_of_fences_is_one_sync(tmp_path: Path) -> None:
    """And so is each batch of settlements; enqueue and claim between two rounds are one each."""
    steps = syncs_per_step(traced(tmp_path))
    assert steps == [1, 1, 2] * (ROUNDS - 1) + [1, 1]


def test_the_count_sees_a_commit_without_its_sync(tmp_path: Path) -> None:
    """With synchronous=NORMAL no step is synced: what the test above counts is the fence's own sync."""
    steps = syncs_per_step(traced(tmp_path, "PRAGMA synchronous = NORMAL"))
    assert steps == [0, 0, 0] * (ROUNDS - 1) + [0, 0]
