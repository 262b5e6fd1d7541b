"""Starting and ending programs from tests."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")


@contextmanager
def program(url: str, record: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The executor program, running; killed at the end if it still is."""
    command = [sys.executable, str(PROGRAM), url, str(record), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603 - ours
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def started(process: subprocess.Popen[str]) -> None:
    """Wait until the program says that it has opened its database."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def run_python(source: str, *arguments: str, timeout: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Run a program given as text, to its end; raises `TimeoutExpired` when it does not end."""
    command = [sys.executable, "-W", "error", "-c", source, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)  # noqa: S603 - ours


def calls(record: Path) -> Sequence[tuple[str, str, int]]:
    """What reached the provider, in order: key, lane, epoch."""
    if not record.exists():
        return []
    lines = [line.split() for line in record.read_text().splitlines()]
    return [(key, lane, int(epoch)) for key, lane, epoch in lines]
