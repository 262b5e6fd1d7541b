"""The executor: claim -> attempt -> settle, and what keeps the house.

`loop` claims and runs, `attempt` is one run of an adapter under one claim, `upkeep` reaps, sweeps, runs owed hooks and
says that the executor is there, `drift` notices a machine that slept or a clock that was set.
"""

from edgeoutbox.executor.loop import Executor

__all__ = ["Executor"]
