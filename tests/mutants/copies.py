"""A copy of the repository in a temporary folder, in which a mutant can stand and tests can run."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Edit, Mutant
from tests.mutants.outcomes import Outcomes, outcomes_of

ROOT = Path(__file__).parents[2]

LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "dist", "build", "*.egg-info", "*.db*")
)

PACKAGES = ("edgeoutbox", "edgeoutbox_smtp", "edgeoutbox_slack", "edgeoutbox_webhook")

OF_ONE_TEST = 30
"""Seconds that one test may take; a mutant that makes it hang is told apart from one that it fails by."""


class TableError(Exception):
    """The table of mutants does not fit the repository; the message says where and what to do."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy at `folder`, whose tests import the copy's own packages."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, source: Path = ROOT) -> "Copy":
        """Copy the sources, with the times of their files."""
        shutil.copytree(source, folder, ignore=LEFT_OUT, symlinks=True)
        return cls(folder)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Let the mutant stand in the copy for as long as the block runs."""
        files = {edit.file: self.folder / edit.file for edit in mutant.edits}
        kept = {file: (path.read_bytes(), path.stat()) for file, path in files.items()}
        try:
            for file, path in files.items():
                edits = [edit for edit in mutant.edits if edit.file == file]
                path.write_text(mutate(mutant.name, path.read_text(encoding="utf-8"), edits), encoding="utf-8")
                # Python tells sources apart by second and size, and a mutant may be as long as what it replaces.
                changed = kept[file][1].st_mtime_ns + 10_000_000_000
                os.utime(path, ns=(changed, changed))
            yield
        finally:
            for file, (content, status) in kept.items():
                files[file].write_bytes(content)
                os.utime(files[file], ns=(status.st_atime_ns, status.st_mtime_ns))

    async def require_own_packages(self) -> None:
        """Raise `TableError` unless a program in this copy imports the copy's packages and no installed one."""
        program = f"import {', '.join(PACKAGES)}\nfor name in {PACKAGES}: print(globals()[name].__file__)"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), cwd=self.folder, env=self._environment(), stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
        found = [Path(line) for line in told.decode().splitlines()]
        if len(found) != len(PACKAGES) or not all(map(self._holds, found)):
            raise TableError(f"the copy does not import its own packages, but {[str(path) for path in found]}")

    def _holds(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.folder.resolve())

    async def run(
        self, tests: Sequence[str], *, within: float | None, postgres: bool = False, keep_bytecode: bool = False
    ) -> Outcomes:
        """Run these tests, or all when none is named, and return what became of each.

        Of tests that are named, the cases for Postgres run, or the others. Each run starts the server that it needs.
        """
        report = self.folder / "junit.xml"
        report.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={self.folder / 'temporary'}", f"--junitxml={report}"]
        options += ["-o", "timeout_method=signal"]  # so that there is a report all the same
        if not tests:
            options.append("--ignore=tests/mutants")  # which sees that a mutant stands there, not what it does
        else:
            options += [f"--timeout={OF_ONE_TEST}", "-k", "postgres" if postgres else "not postgres"]
        if len(tests) == 1:
            options.append("-x")  # one case that fails is enough
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", *options, *tests),
            cwd=self.folder,
            env=self._environment(keep_bytecode=keep_bytecode),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(within):
                told, _ = await process.communicate()
        except TimeoutError:
            return Outcomes({}, f"the run did not end within {within:.0f} s")
        finally:
            with suppress(ProcessLookupError):  # with the programs that its tests started
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return outcomes_of(report, told.decode(errors="replace"))

    def _environment(self, *, keep_bytecode: bool = True) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "EDGEOUTBOX_"))}
        paths = (self.folder, self.folder / "adapters")  # before what is installed
        own["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        if keep_bytecode:
            own.pop("PYTHONDONTWRITEBYTECODE", None)
        else:
            own["PYTHONDONTWRITEBYTECODE"] = "1"
        return own


def mutate(name: str, source: str, edits: Sequence[Edit]) -> str:
    """The source with the edits made. Raises `TableError` when a text does not stand there exactly once."""
    for edit in edits:
        times = source.count(edit.old)
        if times != 1:
            raise TableError(
                f"mutant {name}: its text stands {times} times in {edit.file} instead of once; "
                f"fit the mutant to the source as it is now. The text: {edit.old!r}"
            )
        source = source.replace(edit.old, edit.new)
    return source
