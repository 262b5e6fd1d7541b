"""What a program would have sent: an outbox for tests that carries out what waits, and calls no provider."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeoutbox.adapter import Adapter, Attempt, EndedAction, Transaction, has_ended_hook
from edgeoutbox.executor import Executor
from edgeoutbox.kinds import Delivery, Kind
from edgeoutbox.outbox import Adapters, Outbox
from edgeoutbox.results import Done, Result
from edgeoutbox.states import State
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import StdlibDriver
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.drain import drain
from edgeoutbox.testing.scripted import ScriptedPayload
from edgeoutbox.variants import one


@dataclass(frozen=True, slots=True)
class Sent:
    """An action that would have been carried out. `payload` is what was stored of it."""

    kind: str
    payload: dict[str, Any]
    lane_key: str | None
    idempotency_key: str
    subject_account_id: str | None = field(default=None, repr=False)


class Recorder(Adapter[Any]):
    """In an adapter's place: fences where the kind does, notes the action, and says Done."""

    def __init__(self, kind: Kind[Any], sent: list[Sent]) -> None:
        self.kind = kind
        self._sent = sent

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Note the action."""
        if self.kind.delivery is not Delivery.WRITES_NOTHING:
            await attempt.begin_write()
        action = attempt.action
        payload = json.loads(action.payload or "{}")
        self._sent.append(
            Sent(action.kind, payload, action.lane_key, action.idempotency_key, action.subject_account_id)
        )
        return Done()


class HookedRecorder(Recorder):
    """The same for an adapter with an ended hook, which runs."""

    def __init__(self, inner: Adapter[Any], sent: list[Sent]) -> None:
        super().__init__(inner.kind, sent)
        self._inner = inner

    async def ended(self, action: EndedAction, tx: Transaction) -> None:
        """Run the adapter's hook."""
        await self._inner.ended(action, tx)


class RecordingOutbox(Outbox):
    """An outbox on a file of a test's own and on a clock that the test moves."""

    def __init__(self, path: Path, clock: MovableClock, adapters: Adapters = ()) -> None:
        super().__init__(self._storage_of(path, clock), adapters)
        self.path = path
        self.clock = clock

    @staticmethod
    def _storage_of(path: Path, clock: MovableClock) -> SqliteStorage:
        return SqliteStorage(path, StdlibDriver(), on_connect=clock.register)

    async def drain(self) -> None:
        """Carry out by the outbox's adapters all that waits, also what is due later: the clock moves to it.

        Raises what `edgeoutbox.testing.drain` raises.
        """
        async with Executor(self, clock=self.clock) as executor:
            await drain(executor, self.clock)

    @contextmanager
    def recording(self) -> Iterator[list[Sent]]:
        """Record what the block enqueues, of any kind, and call no provider.

        At the end of the block everything that waits is carried out by recorders, one after the other, oldest first,
        also what is due later: the list is filled, the actions are DONE, their ended hooks have run, and what those
        enqueued is carried out too. Proposals, paused kinds and what was superseded or withdrawn are not. When the
        block raises, nothing is carried out. An executor that runs in the block takes actions from the recorders.
        """
        sent: list[Sent] = []
        yield sent
        # In a thread with a loop of its own: a plain `with` cannot await.
        with ThreadPoolExecutor(1, thread_name_prefix="edgeoutbox-recording") as thread:
            thread.submit(lambda: asyncio.run(self._carry_out(sent))).result()

    async def _carry_out(self, sent: list[Sent]) -> None:
        recorders = {name: self._recorder(adapter, sent) for name, adapter in self.adapters.items()}
        ran = False
        while True:
            async with Outbox(self._storage_of(self.path, self.clock)) as outbox:
                # Also kinds whose adapters the test has no use for; an ended hook may have enqueued further ones.
                waiting = await outbox.list(state=State.ADMITTED, limit=10_000)
                unknown = {action.kind for action in waiting.actions} - set(recorders)
                for name in unknown:
                    recorders[name] = Recorder(Kind(name, variants=one(ScriptedPayload)), sent)
                if not recorders or (ran and not unknown):
                    return
                async with Executor(outbox, recorders.values(), clock=self.clock, concurrency=1) as executor:
                    await drain(executor, self.clock)
                ran = True

    @staticmethod
    def _recorder(adapter: Adapter[Any], sent: list[Sent]) -> Adapter[Any]:
        return HookedRecorder(adapter, sent) if has_ended_hook(adapter) else Recorder(adapter.kind, sent)
