"""The program that runs: an executor, until a signal or until nothing is due."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from edgeoutbox.adapter import Adapter
from edgeoutbox.executor import Executor
from edgeoutbox.outbox import Outbox
from edgeoutbox.sidecar.configuration import Configuration
from edgeoutbox.sidecar.database import driver_of, is_file, shown
from edgeoutbox.sidecar.health import way_on, what_remains
from edgeoutbox.sidecar.heap import settled_heap
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver

log = logging.getLogger("edgeoutbox.run")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HURRY = 2
"""The signal that ends the grace period."""


async def serve(
    configuration: Configuration, adapters: Mapping[str, Adapter[Any]], *, until_idle: bool = False
) -> bool:
    """Carry out what is in the database until SIGTERM or SIGINT, or until nothing is due.

    The first signal lets running attempts finish for `grace` seconds; the second cancels them, and each still records
    what that means. Returns false after a second signal. Raises `StorageError` when the database cannot be opened.
    """
    stopping = _Stopping()
    with _signals(stopping.signalled):
        async with Outbox(configuration.database, adapters.values()) as outbox:
            executor = Executor(outbox, concurrency=configuration.concurrency, grace=configuration.grace)
            for line in introduction(configuration, adapters):
                log.info(line)
            for kind, policy in (await outbox.kinds()).items():
                if kind in adapters and (by := policy.paused_by) is not None:
                    log.warning("paused: %s by %s; %s", kind, by, way_on(kind, by))
            with settled_heap():
                await stopping.run(executor.run(until_idle=until_idle))
    ended = executor.metrics.total("action.ended")
    if until_idle and not stopping.signals:
        log.info("stopped: %d ended; %s", ended, what_remains(configuration.database, adapters))
    else:
        log.info("stopped")
    return stopping.signals < _HURRY


def introduction(configuration: Configuration, adapters: Mapping[str, Adapter[Any]]) -> Iterable[str]:
    """What runs here, one line each: database, driver, kinds, and where each kind goes; no secret."""
    driver = driver_of(configuration.database)
    yield f"database: {shown(configuration.database)}"
    if is_file(configuration.database):
        version = (ApswDriver() if driver == "apsw" else StdlibDriver()).version()
        driver = f"{driver} (SQLite {'.'.join(map(str, version))})"
    yield f"driver: {driver}"
    yield f"kinds: {', '.join(f'{name} ({adapter.kind.delivery})' for name, adapter in adapters.items())}"
    for name, adapter in adapters.items():
        yield f"destination: {name} -> {adapter.destination()}"


class _Stopping:
    """What signals do to a run: each cancels it. The first begins its grace period, the second ends that."""

    def __init__(self) -> None:
        self.signals = 0
        self._run: asyncio.Task[None] | None = None

    def signalled(self) -> None:
        """A signal came."""
        self.signals += 1
        if self.signals < _HURRY:
            log.info("stopping: running attempts may finish; a second signal cancels them")
        else:
            log.warning("stopping at once")
        if self._run is not None:
            self._run.cancel()

    async def run(self, running: Coroutine[Any, Any, None]) -> None:
        """Run until it ends by itself or by signals; raises what it raises."""
        self._run = asyncio.create_task(running)
        if self.signals:  # one came while the database was opened
            self._run.cancel()
        await asyncio.wait([self._run])
        if not self._run.cancelled():
            self._run.result()


@contextmanager
def _signals(called: Callable[[], None]) -> Iterator[None]:
    """Call back in the loop on each signal, also where loops take no signal handlers (Windows)."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, called)
        except NotImplementedError:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(called))
    try:
        yield
    finally:
        for number in _SIGNALS:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, before[number])
