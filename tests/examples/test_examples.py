import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, command: Sequence[str | Path]) -> str:
    """Run an example in a folder of its own; returns what it printed."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEOUTBOX_")}
    ended = subprocess.run(  # noqa: S603 - our own programs
        command, cwd=folder, env={**kept, "PATH": scripts}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def captured(folder: Path) -> list[str]:
    """The recipients of what was captured."""
    lines = [line for file in sorted((folder / "captured").glob("*.eml")) for line in file.read_text().splitlines()]
    return [line.partition(": ")[2] for line in lines if line.startswith("X-Envelope-To: ")]


def paid(folder: Path) -> list[tuple[int]]:
    """The orders that the example marked as paid."""
    with closing(sqlite3.connect(folder / "app.db")) as database:
        return database.execute("SELECT id FROM orders WHERE paid = 1").fetchall()


@pytest.mark.parametrize("name", ["first_program.py", "without_asyncio.py"])
def test_an_order_and_its_receipt(tmp_path: Path, name: str) -> None:
    """The change and the email are both there, and a second run sends no second email."""
    for _ in range(2):
        assert run(tmp_path, [sys.executable, EXAMPLES / name]) == "DONE\n"
    assert (paid(tmp_path), captured(tmp_path)) == ([(42,)], ["jane@example.com"])


def test_the_first_program_is_short() -> None:
    """The first program has at most 25 lines."""
    assert len((EXAMPLES / "first_program.py").read_text(encoding="utf-8").splitlines()) <= 25


def test_own_notice(tmp_path: Path) -> None:
    """Who left in the meantime gets no message, and the action says why."""
    out = run(tmp_path, [sys.executable, EXAMPLES / "own_notice.py"])
    assert out.splitlines() == ["acc-1 DONE CONFIRMED", "acc-2 CANCELLED NOT_NEEDED"]
    assert captured(tmp_path) == ["jane@example.com"]


def has_sqlite3() -> bool:
    """Whether the sqlite3 program is here, and new enough for the schema."""
    program = shutil.which("sqlite3")
    if program is None:
        return False
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    return tuple(map(int, version.split()[0].split("."))) >= (3, 37, 2)


@pytest.mark.skipif(not has_sqlite3(), reason="needs the sqlite3 program")
def test_sidecar_any_language(tmp_path: Path) -> None:
    """What the sqlite3 program inserted in the application's transaction is sent by the sidecar."""
    out = run(tmp_path, ["sh", EXAMPLES / "sidecar_any_language.sh"])
    assert "ended DONE: CONFIRMED" in out
    assert (paid(tmp_path), captured(tmp_path)) == ([(42,)], ["jane@example.com"])
