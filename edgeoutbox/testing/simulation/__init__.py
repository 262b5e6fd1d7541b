"""Deterministic simulation: the product in one thread, on a clock that jumps, with everything drawn from one seed.

`plan` draws what will happen, `world` lets it happen, and `model` says whether a promise was broken: it is the shortest
full account of the promises. `loop` and `disk` are what time, processes and the database are here, `provider` is the
outside world, `observer` tells the model what each commit changed, `shrinking` makes a failure small, and `seeds` runs
many. `python -m edgeoutbox.testing.simulate` is the command.
"""

from edgeoutbox.testing.simulation.disk import Machine
from edgeoutbox.testing.simulation.model import Model
from edgeoutbox.testing.simulation.plan import Plan, draw
from edgeoutbox.testing.simulation.seeds import Failure, Tally, run_seeds
from edgeoutbox.testing.simulation.seen import Broken
from edgeoutbox.testing.simulation.shrinking import shrink
from edgeoutbox.testing.simulation.world import Outcome, simulate

__all__ = [
    "Broken",
    "Failure",
    "Machine",
    "Model",
    "Outcome",
    "Plan",
    "Tally",
    "draw",
    "run_seeds",
    "shrink",
    "simulate",
]
