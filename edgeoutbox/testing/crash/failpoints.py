"""Where a process is killed: before and after every durable boundary of an action's life."""

from collections.abc import Mapping
from enum import StrEnum


class Step(StrEnum):
    """A durable boundary of an action's life."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    FENCE = "fence"
    PROVIDER = "provider"
    SETTLE = "settle"
    HOOK = "hook"
    OWED = "owed hook"
    REAP = "reap"
    SWEEP = "sweep"


class Seam(StrEnum):
    """Which seam of the product the process is killed at; none of them is code of the product."""

    COMMIT = "commit"
    """Beside the COMMIT statement of the transaction that carries the step: the moment before it, the moment after."""
    STORAGE = "storage"
    """Around the call of the storage protocol: before it is made, and when its answer has arrived."""
    ADAPTER = "adapter"
    """Around what the application brings: its provider, and its ended hook."""


class Failpoint(StrEnum):
    """Where the process is killed. The values are their names on the command line and in the tables."""

    BEFORE_ENQUEUE = "before enqueue"
    AFTER_ENQUEUE = "after enqueue"
    BEFORE_CLAIM = "before claim"
    AFTER_CLAIM = "after claim"
    BEFORE_FENCE = "before fence"
    AFTER_FENCE = "after fence"
    BEFORE_PROVIDER = "before provider"
    AFTER_PROVIDER = "after provider"
    BEFORE_SETTLE = "before settle"
    AFTER_SETTLE = "after settle"
    BEFORE_HOOK = "before hook"
    AFTER_HOOK = "after hook"
    BEFORE_OWED_HOOK = "before owed hook"
    AFTER_OWED_HOOK = "after owed hook"
    BEFORE_REAP = "before reap"
    AFTER_REAP = "after reap"
    BEFORE_SWEEP = "before sweep"
    AFTER_SWEEP = "after sweep"

    @property
    def step(self) -> Step:
        """The boundary."""
        return Step(self.value.partition(" ")[2])

    @property
    def before(self) -> bool:
        """On which side of it."""
        return self.value.startswith("before ")

    @property
    def seams(self) -> tuple[Seam, ...]:
        """Where it can be reached."""
        return (Seam.ADAPTER,) if self.step in {Step.PROVIDER, Step.HOOK} else (Seam.COMMIT, Seam.STORAGE)


WHERE: Mapping[Failpoint, str] = {
    Failpoint.BEFORE_ENQUEUE: "the application has asked, nothing is committed",
    Failpoint.AFTER_ENQUEUE: "the row is committed, the application has no answer",
    Failpoint.BEFORE_CLAIM: "an executor was about to take the action",
    Failpoint.AFTER_CLAIM: "it has taken the action, and done nothing with it",
    Failpoint.BEFORE_FENCE: "the adapter asked to write, the fence is not stored",
    Failpoint.AFTER_FENCE: "the fence is stored, the adapter does not know",
    Failpoint.BEFORE_PROVIDER: "the adapter may write, the provider has nothing",
    Failpoint.AFTER_PROVIDER: "the provider has it, its answer has not arrived",
    Failpoint.BEFORE_SETTLE: "the answer has arrived, and is not recorded",
    Failpoint.AFTER_SETTLE: "the result is recorded, with what the ended hook wrote",
    Failpoint.BEFORE_HOOK: "the ended hook is called, in the transaction of the settlement",
    Failpoint.AFTER_HOOK: "the ended hook has written, in the same transaction",
    Failpoint.BEFORE_OWED_HOOK: "a hook that had failed was about to count, nothing is committed",
    Failpoint.AFTER_OWED_HOOK: "it counts",
    Failpoint.BEFORE_REAP: "a lost lease was about to be ended (it was the last attempt, killed at `before provider`)",
    Failpoint.AFTER_REAP: "it is ended",
    Failpoint.BEFORE_SWEEP: "the retention has passed, it was about to be deleted",
    Failpoint.AFTER_SWEEP: "it is deleted",
}
"""What has happened when the process is killed there."""
