"""Shrinking: from a failure to a small one of the same promise."""

import time

from edgeoutbox.testing.simulation.disk import Machine
from edgeoutbox.testing.simulation.world import Outcome, simulate


def shrink(failure: Outcome, machine: Machine, seconds: float = 20.0) -> Outcome:
    """Leave out events as long as the same promise stays broken, at most this long.

    First what comes after the failure, then halves of the rest, quarters, and so on down to single events.
    """
    until = time.monotonic() + seconds
    smallest = failure
    over = float(failure.trace[-1].split()[0])
    numbers = [event.number for event in failure.plan.events if event.at <= over]
    if len(numbers) < len(failure.plan.events):
        smallest = _same(failure, numbers, machine) or smallest
    numbers = [event.number for event in smallest.plan.events]
    size = max(1, len(numbers) // 2)
    while time.monotonic() < until:
        left_out = False
        for start in range(0, len(numbers), size):
            fewer = numbers[:start] + numbers[start + size :]
            smaller = _same(failure, fewer, machine)
            if smaller is not None:
                smallest, numbers, left_out = smaller, fewer, True
                break
            if time.monotonic() > until:
                break
        if not left_out:
            if size == 1:
                break
            size = max(1, size // 2)
    return smallest


def _same(failure: Outcome, numbers: list[int], machine: Machine) -> Outcome | None:
    """The outcome with only these events, if it breaks the same promise."""
    outcome = simulate(failure.plan.only(numbers), machine)
    same = failure.broken is not None and outcome.broken is not None
    return outcome if same and outcome.broken.promise == failure.broken.promise else None  # type: ignore[union-attr]
