"""Trying mutants side by side, each worker in a copy of its own."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.copies import Copy, TableError
from tests.mutants.mutant import Mutant
from tests.mutants.outcomes import Outcomes

OF_NAMED_TESTS = 120.0
OF_BASELINE = 600.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a mutant. `killed_by`: which cases failed, and how. `survived`: why it lives, else `None`."""

    mutant: Mutant
    killed_by: Mapping[str, str]
    survived: str | None
    seconds: float


async def try_all(
    mutants: Sequence[Mutant], *, workers: int, all_tests: bool, tell: Callable[[str | Trial], None]
) -> list[Trial]:
    """Try each mutant and return how it went, in the order of the table. Raises `TableError`."""
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True)))
        first = await asyncio.to_thread(Copy.make, scratch / "0")
        for mutant in mutants:
            with first.mutated(mutant):  # an error in the table is told before anything runs
                pass
        await first.require_own_packages()
        others = [scratch / str(number) for number in range(1, min(workers, len(mutants)))]
        copies = [first, *[await asyncio.to_thread(Copy.make, folder, first.folder) for folder in others]]
        tell(f"{len(mutants)} mutants; first their tests without them")
        for postgres in (False, True):
            await _require_green(copies, mutants, postgres=postgres)
        if all_tests:
            tell("and now all tests, without them")
            clean = await first.run((), within=None, keep_bytecode=True)
            if clean.trouble or clean.failures:
                raise TableError(f"not every test passes without any mutant: {clean.trouble or list(clean.failures)}")
        return await _try(copies, mutants, all_tests=all_tests, tell=tell)


async def _require_green(copies: Sequence[Copy], mutants: Sequence[Mutant], *, postgres: bool) -> None:
    """Raise `TableError` unless each test that is named for this database exists and passes on the product as it is."""
    named = sorted({test for mutant in mutants if mutant.of_postgres is postgres for test in mutant.killers})
    # Neighbours share imports, and each copy keeps its bytecode for the runs to come.
    share = -(-len(named) // len(copies))
    parts = [named[start : start + share] for start in range(0, len(named), share or 1)]
    runs = [
        copy.run(part, within=OF_BASELINE, postgres=postgres, keep_bytecode=True)
        for copy, part in zip(copies, parts, strict=False)
    ]
    for part, outcomes in zip(parts, await asyncio.gather(*runs), strict=True):
        if outcomes.trouble is not None:
            raise TableError(f"the tests of the table do not run without any mutant: {outcomes.trouble}")
        for test in part:
            found = outcomes.of(test)
            if not found:
                raise TableError(f"test {test} of the table did not run")
            for case, how in found.items():
                if how != "passed":
                    raise TableError(f"test {case} does not pass without any mutant: {how}")


async def _try(
    copies: Sequence[Copy], mutants: Sequence[Mutant], *, all_tests: bool, tell: Callable[[str | Trial], None]
) -> list[Trial]:
    left = list(enumerate(mutants))[::-1]
    trials: dict[int, Trial] = {}

    async def work(copy: Copy) -> None:
        while left:
            place, mutant = left.pop()
            trials[place] = await _one(copy, mutant, all_tests=all_tests)
            tell(trials[place])

    async with asyncio.TaskGroup() as group:
        for copy in copies:
            group.create_task(work(copy))
    return [trials[place] for place in sorted(trials)]


async def _one(copy: Copy, mutant: Mutant, *, all_tests: bool) -> Trial:
    began = time.monotonic()
    with copy.mutated(mutant):
        outcomes = await copy.run(
            () if all_tests else mutant.killers,
            within=None if all_tests else OF_NAMED_TESTS,
            postgres=mutant.of_postgres,
        )
    seconds = time.monotonic() - began
    if all_tests:
        why = None if outcomes.failures else outcomes.trouble or "no test failed"
        return Trial(mutant, outcomes.failures, why, seconds)
    seen = [case for test in mutant.killers if (case := outcomes.failure_of(test)) is not None]
    return Trial(mutant, {case: outcomes.cases[case] for case in seen}, _why_alive(mutant, outcomes), seconds)


def _why_alive(mutant: Mutant, outcomes: Outcomes) -> str | None:
    """Every named test has to fail: one that does not is no witness, and its name says what the product lacks."""
    for test in mutant.killers:
        if outcomes.failure_of(test) is None:
            hows = sorted(set(outcomes.of(test).values()))
            return f"{test}: {'; '.join(hows) or outcomes.trouble or 'it did not run'}"
    return None
