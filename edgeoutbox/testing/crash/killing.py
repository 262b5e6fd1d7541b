"""How a process kills itself at a failpoint: wrappers around a driver, a storage and an adapter.

The product has no failpoint: what is not wrapped cannot be killed, and costs nothing.
"""

import os
import secrets
import signal
from collections.abc import Sequence
from typing import Any, Generic, NoReturn, TypeVar, cast

from edgeoutbox.adapter import Adapter, Attempt, Check, EndedAction, Transaction, WriteWindow, has_ended_hook
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action, ActionRequest
from edgeoutbox.results import Result
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.protocol import Refusal, Storage
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.drivers import Copy, Driver, OnConnect, Reader
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.steps import Row
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.crash.failpoints import Failpoint, Seam, Step

P_co = TypeVar("P_co", covariant=True)

AFTERMATH = "crash_ended"
"""The kind of the follow-up that the ended hook of a killed action enqueues; one for each time that it counted."""

CALLS = {
    "enqueue": Step.ENQUEUE,
    "claim": Step.CLAIM,
    "begin_write": Step.FENCE,
    "settle": Step.SETTLE,
    "owed_hooks": Step.OWED,
    "reap": Step.REAP,
    "sweep": Step.SWEEP,
}
"""Which call of the storage protocol makes which step."""

_ACTION = "SELECT COUNT(*) FROM agent_action WHERE idempotency_key = ?"
_ENDED = _ACTION + " AND ended_at IS NOT NULL"

CARRIED = {
    Step.ENQUEUE: (_ACTION, 1),
    Step.CLAIM: (_ACTION + " AND epoch > 0", 1),
    Step.FENCE: (_ACTION + " AND write_started_at > 0", 1),
    Step.SETTLE: (_ENDED, 1),
    Step.OWED: (_ENDED + " AND id NOT IN (SELECT action_id FROM agent_action_ended)", 1),  # noqa: S608 - constants
    Step.REAP: (_ENDED, 1),
    Step.SWEEP: (_ACTION, 0),
}
"""How many rows of the action with this key tell that a transaction carries the step; before it they are others."""


class Trap:
    """One failpoint, armed: it is sprung by the action with this key. Without a failpoint nothing springs it."""

    def __init__(self, failpoint: Failpoint | None, seam: Seam | None, key: str) -> None:
        self.failpoint = failpoint
        self.seam = seam
        self.key = key

    def set_at(self, seam: Seam) -> Step | None:
        """The step that the trap waits for at this seam."""
        return self.failpoint.step if self.failpoint is not None and self.seam is seam else None

    def passes(self, failpoint: Failpoint, seam: Seam) -> None:
        """Die here, if this is the failpoint."""
        if failpoint is self.failpoint and seam is self.seam:
            die()


def die() -> NoReturn:
    """End this process as `kill -9` does: nothing of it runs any more, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process outlived SIGKILL")


class DeadlyConnection:
    """A connection whose process dies beside the COMMIT of the transaction that carries the step."""

    def __init__(self, inner: Connection, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement; a COMMIT may be the last, or one too many."""
        if sql != "COMMIT" or not self._carries():
            return self._inner.execute(sql, parameters)
        if self._trap.failpoint is not None and not self._trap.failpoint.before:
            self._inner.execute(sql)
        die()

    def _carries(self) -> bool:
        step = self._trap.set_at(Seam.COMMIT)
        if step is None:
            return False
        rows, tell = CARRIED[step]
        return self._inner.execute(rows, (self._trap.key,)) == [(tell,)]

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._inner.in_transaction

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()


class DeadlyDriver:
    """A driver of deadly connections."""

    def __init__(self, inner: Driver, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap
        self.copy: Copy = inner.copy

    def version(self) -> tuple[int, ...]:
        """The version of the copy."""
        return self._inner.version()

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
        """Open a deadly connection."""
        return DeadlyConnection(self._inner.open(path, busy_timeout, on_connect), self._trap)

    async def reader(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Reader:
        """Open a connection that reads."""
        return await self._inner.reader(path, busy_timeout, on_connect)


class DeadlyStorage:
    """A storage whose process dies before the call that makes the step, or when its answer says that it was made."""

    def __init__(self, inner: Storage, trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if CALLS.get(name) is None or CALLS[name] is not self._trap.set_at(Seam.STORAGE):
            return call

        async def deadly(*given: Any, **options: Any) -> Any:
            if self._trap.failpoint is not None and self._trap.failpoint.before:
                die()
            answer = await call(*given, **options)
            if answer and not isinstance(answer, Refusal):
                die()
            return answer

        return deadly


def deadly_storage(url: str, clock: MovableClock, trap: Trap) -> Storage:
    """The storage of a URL, on this clock, that dies in this trap. Raises `ConfigurationError` for an unknown URL."""
    plain = open_storage(url)
    if isinstance(plain, SqliteStorage):
        plain = SqliteStorage(plain.path, DeadlyDriver(plain.driver, trap), on_connect=clock.register)
    return cast("Storage", DeadlyStorage(plain, trap))


class DeadlyAttempt(Generic[P_co]):
    """An attempt whose process dies when it may write."""

    def __init__(self, inner: Attempt[P_co], trap: Trap) -> None:
        self._inner = inner
        self._trap = trap

    @property
    def payload(self) -> P_co:
        """The typed payload."""
        return self._inner.payload

    @property
    def action(self) -> Action:
        """The action as it was claimed."""
        return self._inner.action

    @property
    def last(self) -> bool:
        """Whether no further attempt is allowed."""
        return self._inner.last

    @property
    def inherited_write_at(self) -> int | None:
        """When an earlier attempt started a write."""
        return self._inner.inherited_write_at

    @property
    def write_started_at(self) -> int | None:
        """When this attempt started its first write."""
        return self._inner.write_started_at

    async def begin_write(self) -> WriteWindow:
        """Store the fence, and die."""
        window = await self._inner.begin_write()
        self._trap.passes(Failpoint.BEFORE_PROVIDER, Seam.ADAPTER)
        return window


class DeadlyAdapter(Adapter[Any]):
    """An adapter whose process dies around its provider and its ended hook.

    Its hook also enqueues a follow-up of the kind `AFTERMATH`, so that a hook which counts twice is seen; with `owes`
    it fails instead.
    """

    def __init__(self, inner: Adapter[Any], trap: Trap, *, owes: bool = False) -> None:
        self.kind = inner.kind
        self._inner = inner
        self._trap = trap
        self._owes = owes

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Run an attempt of the adapter."""
        if self.kind.delivery is Delivery.WRITES_NOTHING:
            self._trap.passes(Failpoint.BEFORE_PROVIDER, Seam.ADAPTER)
        result = await self._inner.execute(DeadlyAttempt(attempt, self._trap))
        self._trap.passes(Failpoint.AFTER_PROVIDER, Seam.ADAPTER)
        return result

    async def ended(self, action: EndedAction, tx: Transaction) -> None:
        """Run the adapter's hook, and leave a trace of it."""
        if self._owes and action.idempotency_key == self._trap.key:
            raise RuntimeError("this hook is to be owed")
        self._trap.passes(Failpoint.BEFORE_HOOK, Seam.ADAPTER)
        if has_ended_hook(self._inner):
            await self._inner.ended(action, tx)
        trace = f"{AFTERMATH}:{action.id}:{secrets.token_hex(4)}"
        await tx.enqueue(ActionRequest(kind=AFTERMATH, idempotency_key=trace, run_id=str(action.id), payload={}))
        self._trap.passes(Failpoint.AFTER_HOOK, Seam.ADAPTER)

    async def prepare(self, payload: Any) -> Any:
        """What the adapter prepares."""
        return await self._inner.prepare(payload)

    def lane(self, payload: Any) -> str | None:
        """The adapter's lane."""
        return self._inner.lane(payload)

    async def preview(self, payload: Any) -> str:
        """The adapter's preview."""
        return await self._inner.preview(payload)

    async def check(self) -> Sequence[Check]:
        """The adapter's checks."""
        return await self._inner.check()

    def destination(self) -> str:
        """The adapter's destination."""
        return self._inner.destination()

    def settings(self) -> str:
        """The adapter's settings."""
        return self._inner.settings()

    async def aclose(self) -> None:
        """Close the adapter."""
        await self._inner.aclose()
