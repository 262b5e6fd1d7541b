"""For programs without asyncio: the outbox and its executor in a thread, behind methods that block."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from edgeoutbox.adapter import Adapter
from edgeoutbox.errors import InvalidRequest, NotClaimable
from edgeoutbox.executor import Executor
from edgeoutbox.model import Action, ActionRequest, AttemptRecord, Backlog, Enqueued, Page
from edgeoutbox.outbox import Outbox
from edgeoutbox.states import State

T = TypeVar("T")


class BlockingOutbox:
    """The methods of `Outbox`, each of which returns when it is done. Safe to use from any thread."""

    def __init__(self, outbox: Outbox, executor: Executor | None, loop: asyncio.AbstractEventLoop) -> None:
        self._outbox = outbox
        self._executor = executor
        self._loop = loop

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def enqueue(
        self,
        request: ActionRequest,
        *,
        connection: object | None = None,
        supersede: bool = False,
        if_running: Literal["enqueue", "refuse"] = "enqueue",
    ) -> Enqueued:
        """See `Outbox.enqueue`; `connection` is a synchronous one of the calling thread."""
        if connection is None:
            return self._wait_for(self._outbox.enqueue(request, supersede=supersede, if_running=if_running))
        prepared, validated = self._wait_for(self._outbox.prepared(request))
        how = self._outbox.superseding(supersede, if_running)
        return self._outbox.enqueue_prepared(prepared, connection, how, validated=validated)

    def propose(self, request: ActionRequest) -> Enqueued:
        """See `Outbox.propose`."""
        return self._wait_for(self._outbox.propose(request))

    def enqueue_many(self, requests: Iterable[ActionRequest]) -> list[Enqueued]:
        """See `Outbox.enqueue_many`."""
        return self._wait_for(self._outbox.enqueue_many(requests))

    def get(self, action: int | None = None, *, key: str | None = None) -> Action | None:
        """See `Outbox.get`."""
        if (action is None) == (key is None):
            raise InvalidRequest("get: give either an id or key=")
        return self._wait_for(self._outbox.get(key=key or "") if action is None else self._outbox.get(action))

    def list(
        self,
        *,
        state: State | str | None = None,
        kind: str | None = None,
        lane_key: str | None = None,
        run_id: str | None = None,
        subject_account_id: str | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> Page:
        """See `Outbox.list`."""
        return self._wait_for(
            self._outbox.list(
                state=state,
                kind=kind,
                lane_key=lane_key,
                run_id=run_id,
                subject_account_id=subject_account_id,
                after=after,
                limit=limit,
            )
        )

    def lane(self, lane_key: str) -> Sequence[Action]:
        """See `Outbox.lane`."""
        return self._wait_for(self._outbox.lane(lane_key))

    def why(self, action_id: int) -> str:
        """See `Outbox.why`."""
        return self._wait_for(self._outbox.why(action_id))

    def backlog(self) -> Sequence[Backlog]:
        """See `Outbox.backlog`."""
        return self._wait_for(self._outbox.backlog())

    def attempts(self, action_id: int) -> Sequence[AttemptRecord]:
        """See `Outbox.attempts`."""
        return self._wait_for(self._outbox.attempts(action_id))

    def wait(self, action_id: int, timeout: float | None = None) -> Action:
        """See `Outbox.wait`."""
        return self._wait_for(self._outbox.wait(action_id, timeout))

    def admit(self, action_id: int, by: str, payload_digest: str, *, note: str | None = None) -> Action:
        """See `Outbox.admit`."""
        return self._wait_for(self._outbox.admit(action_id, by, payload_digest, note=note))

    def refuse(self, action_id: int, by: str, *, note: str | None = None) -> Action:
        """See `Outbox.refuse`."""
        return self._wait_for(self._outbox.refuse(action_id, by, note=note))

    def withdraw(self, action_id: int, *, by: str | None = None, note: str | None = None, lost: bool = False) -> Action:
        """See `Outbox.withdraw`."""
        return self._wait_for(self._outbox.withdraw(action_id, by=by, note=note, lost=lost))

    def withdraw_run(self, run_id: str, *, by: str | None = None, note: str | None = None) -> Sequence[Action]:
        """See `Outbox.withdraw_run`."""
        return self._wait_for(self._outbox.withdraw_run(run_id, by=by, note=note))

    def preview(self, action_id: int) -> str:
        """See `Outbox.preview`."""
        return self._wait_for(self._outbox.preview(action_id))

    def erase(self, subject_account_id: str) -> int:
        """See `Outbox.erase`."""
        return self._wait_for(self._outbox.erase(subject_account_id))

    def forget(self, key: str) -> bool:
        """See `Outbox.forget`."""
        return self._wait_for(self._outbox.forget(key))

    def pause(self, kind: str, by: str) -> None:
        """See `Outbox.pause`."""
        self._wait_for(self._outbox.pause(kind, by))

    def resume(self, kind: str, *, copied: bool = False) -> None:
        """See `Outbox.resume`."""
        self._wait_for(self._outbox.resume(kind, copied=copied))

    def run_now(self, action_id: int) -> Action:
        """See `Executor.run_now`. Raises `NotClaimable` when this program was started without adapters."""
        if self._executor is None:
            raise NotClaimable(self.why(action_id))
        return self._wait_for(self._executor.run_now(action_id))


@contextmanager
def background(url: str, adapters: Iterable[Adapter[Any]] = (), *, concurrency: int = 64) -> Iterator[BlockingOutbox]:
    """Open an outbox and run its executor in a thread until the block ends; without adapters, only the outbox.

    Leaving the block lets running attempts finish like `Executor.stop`.
    """
    started: list[BlockingOutbox] = []
    failed: list[BaseException] = []
    ready = threading.Event()
    stop: list[asyncio.Event] = []

    async def live() -> None:
        stop.append(asyncio.Event())
        outbox = Outbox(url, adapters)
        async with outbox:
            loop = asyncio.get_running_loop()
            if not outbox.adapters:
                started.append(BlockingOutbox(outbox, None, loop))
                ready.set()
                await stop[0].wait()
                return
            async with Executor(outbox, concurrency=concurrency) as executor:
                started.append(BlockingOutbox(outbox, executor, loop))
                ready.set()
                await stop[0].wait()

    def body() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=body, name="edgeoutbox", daemon=True)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    try:
        yield started[0]
    finally:
        started[0]._loop.call_soon_threadsafe(stop[0].set)  # noqa: SLF001 - the two are one room
        thread.join()
        if failed:
            raise failed[0]
