"""The programs that are killed, from outside: one server for each factory, and the lives that it is asked for."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.testing.crash.factories import Reference
from edgeoutbox.testing.crash.lives import LONGEST_LIFE, REFUSED, Life, Report

CHECK_EVERY = 0.002
"""Seconds between two looks at a provider that holds its answer back."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a life ended: killed, or by itself with a report."""

    killed: bool
    report: Report | None


class LifeWentWrong(RuntimeError):
    """A life that was not killed by us and brought no report: with what it raised, or that it lasted too long."""


class Program:
    """A server that lives lives. Its children are ended with it."""

    def __init__(self, factory: Reference) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError("the crash matrix kills and forks processes: run it on Linux or macOS")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edgeoutbox.testing.crash.program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what goes wrong is told; the rest is what a log says of a crash
            text=True,
        )
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="edgeoutbox-crash")
        error = self._ask(json.dumps({"path": sys.path, "factory": asdict(factory)}))["error"]
        if error is not None:
            self.close()
            raise ConfigurationError(f"{factory.name} cannot be loaded in a process of its own:\n{error}")

    def _ask(self, line: str = "") -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the program has no pipes")
        if line:
            stdin.write(line + "\n")
            stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError(f"the program that starts the lives ended ({self._process.poll()})")
        told: dict[str, Any] = json.loads(answer)
        return told

    async def live(self, life: Life, until: Callable[[], bool] | None = None) -> Death:
        """Let it live; with `until`, kill it as soon as that holds.

        Raises `LifeWentWrong`, and `ConfigurationError` when what it was given is wrong.
        """
        loop = asyncio.get_running_loop()
        child = (await loop.run_in_executor(self._threads, self._ask, life.dump()))["pid"]
        ending = asyncio.ensure_future(loop.run_in_executor(self._threads, self._ask))
        try:
            while until is not None and not ending.done():
                if until():
                    _kill(child)
                    break
                await asyncio.sleep(CHECK_EVERY)
            ended = await asyncio.shield(ending)
        except BaseException:
            _kill(child)
            raise
        if ended["code"] == REFUSED and ended["told"]:
            raise ConfigurationError(ended["told"])
        if ended["code"] not in {0, -signal.SIGKILL}:
            overdue = ended["code"] == -signal.SIGALRM
            why = f"it did not end within {LONGEST_LIFE} seconds" if overdue else ended["told"]
            raise LifeWentWrong(f"a life went wrong (exit code {ended['code']}): {why}")
        killed = ended["code"] != 0
        return Death(killed, None if killed else Report.load(ended["told"]))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._threads.shutdown()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself in this moment
        os.kill(child, signal.SIGKILL)


class Programs:
    """The programs of a run, one for each factory, started when first needed."""

    def __init__(self) -> None:
        self._started: dict[Reference, Program] = {}

    def of(self, factory: Callable[..., Any]) -> Program:
        """The program of a factory. Raises `ConfigurationError` when its own process cannot load it."""
        reference = Reference.of(factory)
        if reference not in self._started:
            self._started[reference] = Program(reference)
        return self._started[reference]

    def close(self) -> None:
        """End them all."""
        for program in self._started.values():
            program.close()
        self._started.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
