"""Many seeds, over all cores, and what they found."""

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from edgeoutbox.testing.simulation.disk import Machine
from edgeoutbox.testing.simulation.plan import Plan, draw
from edgeoutbox.testing.simulation.shrinking import shrink
from edgeoutbox.testing.simulation.world import simulate

BLOCK = 100
"""How many seeds a process takes at a time."""

MODULE = "edgeoutbox.testing.simulate"

NONE = "none"
"""What `--only` has when no event is kept."""


@dataclass(frozen=True)
class Failure:
    """A broken promise, and its shrunk trace; an error of the simulation itself breaks the promise `simulation`.

    `events` are those that were kept, `None`: all.
    """

    seed: int
    promise: str
    complaint: str
    events: tuple[int, ...] | None
    trace: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that replays the trace."""
        only = "" if self.events is None else f" --only {','.join(map(str, self.events)) or NONE}"
        return f"python -m {MODULE} --seed {self.seed}{only}"

    def __str__(self) -> str:
        return "\n".join((*self.trace, f"seed {self.seed}: {self.complaint}", f"replay: {self.command}"))


@dataclass
class Tally:
    """What many seeds came to. `simulated` and `seconds` are seconds: of the simulations, and of the processors."""

    seeds: int = 0
    simulated: float = 0.0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add what another came to."""
        self.seeds += other.seeds
        self.simulated += other.simulated
        self.seconds += other.seconds
        self.failures += other.failures


def run_plan(plan: Plan, machine: Machine, shrink_for: float = 20.0) -> Tally:
    """Run one plan; a failure is shrunk for so many seconds at most."""
    began = time.process_time()
    kept = _kept(plan)
    try:
        outcome = simulate(plan, machine)
    except Exception as error:  # noqa: BLE001 - whatever it is, its seed must be known
        trace = tuple(traceback.format_exception(error))
        return Tally(1, failures=[Failure(plan.seed, "simulation", repr(error), kept, trace)])
    tally = Tally(1, outcome.simulated, time.process_time() - began)
    if outcome.broken is not None:
        small = shrink(outcome, machine, shrink_for) if shrink_for else outcome
        tally.failures = [Failure(plan.seed, outcome.broken.promise, str(small.broken), _kept(small.plan), small.trace)]
    return tally


def _kept(plan: Plan) -> tuple[int, ...] | None:
    return None if len(plan.events) == plan.drawn else tuple(event.number for event in plan.events)


def run_block(seeds: Sequence[int]) -> Tally:
    """Run some seeds in this process; after its third failure the rest is left out."""
    tally = Tally()
    collects = gc.isenabled()
    gc.disable()  # each simulation leaves its cycles behind at once, and none before
    try:
        with Machine() as machine:
            for seed in seeds:
                tally.add(run_plan(draw(seed), machine))
                gc.collect(0)
                if len(tally.failures) >= 3:  # noqa: PLR2004 - they would be the same
                    break
    finally:
        if collects:
            gc.enable()
    return tally


def run_seeds(seeds: range, jobs: int, progress: Callable[[Tally], None] = lambda _: None) -> Tally:
    """Run seeds in so many processes; stops after the first block in which something was found."""
    tally = Tally()
    blocks = iter([seeds[start : start + BLOCK] for start in range(0, len(seeds), BLOCK)])
    if jobs == 1:
        for block in blocks:
            tally.add(run_block(block))
            progress(tally)
            if tally.failures:
                break
        return tally
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_block, block) for block in _some(blocks, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for block_done in done:
                tally.add(block_done.result())
            progress(tally)
            if not tally.failures:
                running |= {pool.submit(run_block, block) for block in _some(blocks, len(done))}
    return tally


def _some(blocks: Iterator[range], count: int) -> list[range]:
    return [block for _, block in zip(range(count), blocks, strict=False)]
