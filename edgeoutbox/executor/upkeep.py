"""Upkeep: reap, run owed hooks, sweep, say that the executor is there."""

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from edgeoutbox.errors import StorageError
from edgeoutbox.storage.protocol import Hooks
from edgeoutbox.variants import Condition

if TYPE_CHECKING:
    from edgeoutbox.executor.loop import Executor

TICK = 1.0
HEARTBEAT_EVERY = 10.0
SWEEP_EVERY = 60.0
SWEEP_AT_ONCE = 500


class Upkeep:
    """The executor's second loop, once a second."""

    def __init__(self, executor: "Executor") -> None:
        self._executor = executor
        self._storage = executor.outbox.storage
        self.conditions: dict[str, Condition] = {
            name: adapter.kind.variants.condition for name, adapter in executor.adapters.items()
        }
        self.version = _version()

    @property
    def hooks(self) -> Hooks:
        """The ended hooks of this executor, by kind."""
        found = {name: self._executor.hook(name) for name in self.conditions}
        return {name: hook for name, hook in found.items() if hook is not None}

    async def run(self) -> None:
        """Keep the house until cancelled."""
        loop = asyncio.get_running_loop()
        seen = swept = loop.time()
        while True:
            await self._executor.watch_over()
            try:
                await self.once()
                if loop.time() - seen >= HEARTBEAT_EVERY:
                    seen = loop.time()
                    await self._storage.heartbeat(self._executor.owner, self.version, self.conditions)
                if loop.time() - swept >= SWEEP_EVERY:
                    swept = loop.time()
                    await self.sweep()
            except StorageError as error:
                self._executor.storage_failed(error)
            await asyncio.sleep(TICK)

    async def once(self) -> int:
        """Reap what expired or was lost, and run hooks that are owed; returns how many actions that concerned."""
        done = 0
        if self._executor.leases_are_sure():
            served = [self._executor.served(name) for name in self.conditions]
            for action in await self._storage.reap(served, self._executor.owner, self.hooks):
                reason = str(action.stop_reason)
                self._executor.report_end(action.id, action.kind, action.state, reason, action.last_error)
                done += 1
        if self.hooks:
            done += await self._storage.owed_hooks(self.hooks)
        return done

    async def sweep(self) -> None:
        """Delete what has been kept long enough, a little at a time."""
        while await self._storage.sweep(list(self.conditions), SWEEP_AT_ONCE) >= SWEEP_AT_ONCE:  # noqa: ASYNC110 - in turns
            await asyncio.sleep(0.05)

    async def leave(self) -> None:
        """Say that the executor is gone; if the database cannot be told, its silence will."""
        try:
            await self._storage.leave(self._executor.owner)
        except StorageError as error:
            self._executor.storage_failed(error)


def _version() -> str:
    try:
        return version("edgeoutbox")
    except PackageNotFoundError:
        return "unknown"
