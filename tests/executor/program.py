"""A program for the tests to start, kill and count: an executor whose provider is a file that remembers every call.

    python program.py URL RECORD [--lease SECONDS] [--delivery DELIVERY] [--until-idle]

The payload says how this program dies, if it does: {"dies": "before", "fenced", "called" or "exits"}.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from edgeoutbox import Adapter, Attempt, Done, Executor, Kind, Outbox, Result, one


class Death(BaseModel):
    """How the program dies of this action: "before", "fenced", "called", "exits", or not at all."""

    dies: str | None = None


class FileProvider(Adapter[Death]):
    """Appends the key of each call to a file, in one write, before it answers."""

    def __init__(self, record: Path, *, delivery: str = "at_most_once", lease: float = 1.0) -> None:
        self.kind = Kind(
            "file",
            variants=one(Death),
            delivery=delivery,
            lease=lease,
            write_window=lease / 2,
            max_attempts=3,
            concurrency=16,
        )
        self._record = record

    async def execute(self, attempt: Attempt[Death]) -> Result:
        """Die as the payload says, or call."""
        dies = attempt.payload.dies
        if dies == "exits":
            os._exit(1)
        if dies == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await attempt.begin_write()
        if dies == "fenced":
            os.kill(os.getpid(), signal.SIGKILL)
        self._note(f"{attempt.action.idempotency_key} {attempt.action.lane_key} {attempt.action.epoch}\n")
        if dies == "called":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0)
        return Done()

    def _note(self, line: str) -> None:
        descriptor = os.open(self._record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


async def carry_out(options: Any) -> None:
    """Run the executor."""
    adapter = FileProvider(options.record, delivery=options.delivery, lease=options.lease)
    async with Outbox(options.url, [adapter]) as outbox:
        executor = Executor(outbox, grace=0.2)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await executor.run(until_idle=options.until_idle)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("record", type=Path)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--delivery", default="at_most_once")
    parser.add_argument("--until-idle", action="store_true")
    asyncio.run(carry_out(parser.parse_args()))


if __name__ == "__main__":
    main()
