"""Upkeep: reap, run owed hooks, sweep, say that the executor is there."""

import asyncio
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgeoutbox.adapter import Adapter
from edgeoutbox.errors import StorageError
from edgeoutbox.executor.drift import Drift
from edgeoutbox.executor.reports import Reports
from edgeoutbox.executor.running import Running
from edgeoutbox.storage.protocol import Served, Storage
from edgeoutbox.variants import Condition

TICK = 1.0
HEARTBEAT_EVERY = 10.0
SWEEP_EVERY = 60.0
SWEEP_AT_ONCE = 500


class Upkeep:
    """The executor's second loop, once a second."""

    def __init__(
        self,
        storage: Storage,
        adapters: Mapping[str, Adapter[Any]],
        owner: str,
        running: Running,
        reports: Reports,
        drift: Drift,
    ) -> None:
        self._storage = storage
        self._adapters = adapters
        self._owner = owner
        self._running = running
        self._reports = reports
        self._drift = drift
        self.kept = asyncio.Event()
        """Set once the first turn, which sweeps, is over."""

    def served(self, name: str, limit: int = 1) -> Served:
        """A kind as this executor carries it out."""
        kind = self._adapters[name].kind
        return Served(name, kind.variants.condition, round(kind.lease * 1000), kind.max_attempts, limit)

    async def run(self) -> None:
        """Keep the house until cancelled."""
        try:
            await self._run()
        finally:
            self.kept.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        seen = loop.time()
        swept = seen - SWEEP_EVERY  # at once, for programs that never live for a minute
        while True:
            await self._running.watch_over()
            try:
                await self.once()
                # In an outage each time: it writes, so it shows whether the database takes anything again.
                if loop.time() - seen >= HEARTBEAT_EVERY or not self._reports.storage_works:
                    seen = loop.time()
                    await self.arrive()
                    self._reports.storage(None)
                if loop.time() - swept >= SWEEP_EVERY:
                    swept = loop.time()
                    await self._sweep()
            except Exception as error:  # noqa: BLE001 - whatever it is, the house is looked after again in a moment
                self._reports.storage(error)
            self.kept.set()
            await asyncio.sleep(TICK)

    async def once(self) -> int:
        """Reap what expired or was lost, and run hooks that are owed; returns how many actions that concerned."""
        done = 0
        if not self._drift.suspicious():
            served = [self.served(name) for name in self._adapters]
            for action in await self._storage.reap(served, self._owner, self._running.hooks):
                self._reports.end(action.id, action.kind, action.state, str(action.stop_reason), action.last_error)
                done += 1
        if self._running.hooks:
            done += await self._storage.owed_hooks(self._running.hooks)
        return done

    async def arrive(self) -> None:
        """Say that the executor is there, and what it carries out."""
        conditions: dict[str, Condition] = {
            name: adapter.kind.variants.condition for name, adapter in self._adapters.items()
        }
        await self._storage.heartbeat(self._owner, _version(), conditions)

    async def _sweep(self) -> None:
        """Delete what has been kept long enough, a little at a time."""
        while await self._storage.sweep(list(self._adapters), SWEEP_AT_ONCE) >= SWEEP_AT_ONCE:  # noqa: ASYNC110 - in turns
            await asyncio.sleep(0.05)

    async def leave(self) -> None:
        """Say that the executor is gone; if the database cannot be told, its silence will."""
        try:
            await self._storage.leave(self._owner)
        except StorageError as error:
            self._reports.storage(error)


@cache
def _version() -> str:
    try:
        return version("edgeoutbox")
    except PackageNotFoundError:
        return "unknown"
