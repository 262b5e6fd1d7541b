"""What every demonstration has: a folder, processes that it starts and ends, and figures in the end."""

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from edgeoutbox.sidecar.configuration import PREFIX
from edgeoutbox.sidecar.database import Look

LONGEST = 60.0
"""Seconds after which a demonstration gives up and counts what it finds."""

_ENDED = "SELECT COUNT(*) FROM agent_action WHERE ended_at IS NOT NULL"
_FILE = "edgeoutbox.toml"
_POLL = 0.05
_PATIENCE = 10.0

_KILLED = {-9, 1}
"""How a killed process ends: by SIGKILL, and on Windows, which knows no signals."""


@dataclass(frozen=True, slots=True)
class Found(ABC):
    """What a demonstration ended with; `actions` is how many were enqueued."""

    actions: int

    @property
    @abstractmethod
    def good(self) -> bool:
        """Whether it is what was promised."""

    @abstractmethod
    def rows(self) -> Sequence[tuple[str, int, str]]:
        """What was counted, how many, and what that means."""

    @abstractmethod
    def verdict(self, *, good: bool) -> str:
        """All of it in one sentence; `good` also knows whether everything was enqueued."""


@dataclass
class Performance(ABC):
    """One demonstration in a folder of its own. `tell` gets each step as a sentence, `progress` how many have ended."""

    folder: Path
    tell: Callable[[str], None]
    progress: Callable[[int], None]
    kills: int = field(default=0, init=False)

    @property
    @abstractmethod
    def total(self) -> int:
        """How many actions it enqueues."""

    @abstractmethod
    async def perform(self) -> Found:
        """Do all of it, and count."""

    @property
    def url(self) -> str:
        """The database."""
        return f"sqlite+apsw:///{self.folder / 'demo.db'}"

    @property
    def log(self) -> Path:
        """What the processes logged."""
        return self.folder / "executor.log"

    def configure(self, text: str) -> None:
        """Write the configuration that executors run with."""
        (self.folder / _FILE).write_text(text, encoding="utf-8")

    async def executor(self) -> asyncio.subprocess.Process:
        """Start an executor of its own process."""
        return await self.start("-m", "edgeoutbox", "run", "--config", _FILE)

    async def start(self, *arguments: str, stdout: int | None = None) -> asyncio.subprocess.Process:
        """Start Python in the folder; it logs to the log, and its output goes there too unless `stdout` says else."""
        with self.log.open("ab") as log:
            out: int | IO[bytes] = log if stdout is None else stdout
            return await asyncio.create_subprocess_exec(
                sys.executable, *arguments, cwd=self.folder, env=_environment(), stdout=out, stderr=log
            )

    async def kill(self, executor: asyncio.subprocess.Process) -> None:
        """Kill a process, and count it if that is what ended it."""
        if executor.returncode is None:
            executor.kill()
        self.kills += await executor.wait() in _KILLED

    async def until(self, executor: asyncio.subprocess.Process, reached: Callable[[], bool]) -> None:
        """Wait for something that the executor brings about. Raises `TimeoutError` when the executor ends."""
        while not reached():
            if executor.returncode is not None:
                raise TimeoutError  # it will not come any more; the figures say what is missing
            self.progress(self.ended())
            await asyncio.sleep(_POLL)
        self.progress(self.ended())

    def ended(self) -> int:
        """How many actions have ended."""
        with Look(self.url) as look:
            [(ended,)] = look.rows(_ENDED)
        return int(ended)


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a process, by force if it does not want to."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _environment() -> dict[str, str]:
    """This process's environment without settings of ours: a demonstration has its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
