"""The application's door: enqueue effects, ask what became of them, decide about them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

from edgeoutbox import telemetry
from edgeoutbox.adapter import Adapter, has_ended_hook
from edgeoutbox.connections import ANYWHERE, run_async, run_sync
from edgeoutbox.errors import ConfigurationError, InvalidRequest, NoSuchAction, UnknownVariant
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action, ActionRequest, AttemptRecord, Backlog, Enqueued, Page
from edgeoutbox.states import State
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.protocol import Decision, KindDeclaration, KindPolicy, Query, Storage, Supersede
from edgeoutbox.storage.statements import deciding, enqueueing, reading
from edgeoutbox.storage.statements.lanes import Lanes
from edgeoutbox.waiting import sentence

Adapters = Iterable[Adapter[Any]]


class Outbox:
    """A database of actions. Open it with `async with`; it needs no adapter to enqueue and to ask.

    `url` is `sqlite:///path` (the standard library's copy of SQLite, for applications that use it or aiosqlite or
    SQLAlchemy) or `sqlite+apsw:///path`; or a `Storage`. For the kinds of the given adapters, enqueue validates the
    payload and prepares the message.
    """

    def __init__(self, url: str | Storage, adapters: Adapters = ()) -> None:
        self.storage: Storage = open_storage(url) if isinstance(url, str) else url
        self.adapters: dict[str, Adapter[Any]] = by_kind(adapters)
        self._wakers: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, migrate the schema, and declare the kinds of the adapters."""
        await self.storage.open()
        try:
            if self.adapters:
                await self.declare(self.adapters.values(), carries_out=False)
        except BaseException:
            await self.storage.close()
            raise

    async def close(self) -> None:
        """Finish what was submitted and release every connection and thread."""
        await self.storage.close()

    async def declare(self, adapters: Adapters, *, carries_out: bool) -> Mapping[str, KindPolicy]:
        """Declare the adapters' kinds and return what holds; what is looser than that, or changes, is logged.

        Who `carries_out` the kinds with other provider settings than before ends their cooling.
        """
        declarations = [declaration_of(adapter, carries_out=carries_out) for adapter in adapters]
        known = await self.storage.kinds()
        policies = await self.storage.declare_kinds(declarations)
        for declaration in declarations:
            policy = policies[declaration.name]
            changed = policy.changed_since(known.get(declaration.name))
            if changed:
                telemetry.event(logging.INFO, "kind.changed", action_kind=declaration.name, **changed)
            held = policy.stricter_than(declaration)
            if held:
                telemetry.event(
                    logging.WARNING,
                    "kind.stricter",
                    action_kind=declaration.name,
                    **held,
                    what="the database holds a stricter guarantee than this program declares; it stays. "
                    "Loosen it with: edgeoutbox kind NAME --allow",
                )
        return policies

    async def enqueue(
        self,
        request: ActionRequest,
        *,
        connection: object | None = None,
        supersede: bool = False,
        if_running: Literal["enqueue", "refuse"] = "enqueue",
    ) -> Enqueued:
        """Make one effect a row, in the caller's transaction when `connection` is given, and never commit for it.

        A key that exists returns the first action and changes nothing. `supersede` first ends everything of the lane
        that has not started. Raises `InvalidRequest`, `KeyOfAnotherKind`, `LaneBusy` (with `if_running="refuse"`),
        `UndecodableInLane` and `StorageError`; then nothing was stored.
        """
        return await self._enqueue(request, connection, supersede=self.superseding(supersede, if_running))

    async def propose(self, request: ActionRequest, *, connection: object | None = None) -> Enqueued:
        """Like `enqueue`, but the action waits until somebody admits it."""
        return await self._enqueue(request, connection, proposed=True)

    async def enqueue_many(
        self, requests: Iterable[ActionRequest], *, connection: object | None = None
    ) -> list[Enqueued]:
        """Enqueue every request, in order, all or none."""
        prepared = [await self.prepared(request) for request in requests]
        if not prepared:
            return []
        if connection is None:
            answers = await self.storage.enqueue([request for request, _ in prepared])
            self.wake()
        else:
            every = tuple(request for request, _ in prepared)
            answers = await run_async(connection, enqueueing.enqueue_many(every), self.storage, Lanes.of(every))
        return [
            _answered(answer, validated=validated) for answer, (_, validated) in zip(answers, prepared, strict=True)
        ]

    async def _enqueue(
        self,
        request: ActionRequest,
        connection: object | None,
        *,
        proposed: bool = False,
        supersede: Supersede | None = None,
    ) -> Enqueued:
        request, validated = await self.prepared(request)
        if connection is None:
            [answer] = await self.storage.enqueue([request], proposed=proposed, supersede=supersede)
            self.wake()
        else:
            steps = enqueueing.enqueue(request, proposed=proposed, supersede=supersede)
            lanes = Lanes.of([request], supersedes=supersede is not None)
            answer = await run_async(connection, steps, self.storage, lanes)
        return _answered(answer, validated=validated)

    def enqueue_prepared(
        self, request: ActionRequest, connection: object, supersede: Supersede | None, *, validated: bool
    ) -> Enqueued:
        """The part of `enqueue` that runs in the thread of a synchronous connection."""
        steps = enqueueing.enqueue(request, supersede=supersede)
        lanes = Lanes.of([request], supersedes=supersede is not None)
        return _answered(run_sync(connection, steps, self.storage, lanes), validated=validated)

    async def prepared(self, request: ActionRequest) -> tuple[ActionRequest, bool]:
        """The request as it will be stored, and whether an adapter of its kind validated it."""
        adapter = self.adapters.get(request.kind)
        if adapter is None:
            if self.adapters and request.kind not in await self.storage.kinds():
                telemetry.event(
                    logging.WARNING,
                    "action.kind.unknown",
                    action_kind=request.kind,
                    what="no program has declared this kind in this database; the action waits until one does",
                )
            return request, False
        payload = adapter.kind.variants.validate(request.payload)
        adapter.kind.variants.require_key(request.idempotency_key)
        prepared = await adapter.prepare(payload)
        if prepared is None:
            raise ConfigurationError(f"kind {request.kind}: its adapter's prepare() returned None, not the payload")
        changes: dict[str, Any] = {}
        if prepared is not payload:
            changes["payload"] = adapter.kind.variants.dump(prepared)
        if request.lane_key is None and (lane := adapter.lane(prepared)) is not None:
            changes["lane_key"] = lane
        request = ActionRequest(**{**request.model_dump(), **changes}) if changes else request
        adapter.kind.variants.require_decodable(request.payload, request.idempotency_key)
        return request, True

    def superseding(self, supersede: bool, if_running: Literal["enqueue", "refuse"]) -> Supersede | None:
        """What an enqueue that may supersede tells the storage."""
        if not supersede:
            if if_running == "refuse":
                raise InvalidRequest('if_running: "refuse" goes with supersede=True')
            return None
        return Supersede(if_running, {name: adapter.kind.variants.condition for name, adapter in self.adapters.items()})

    @overload
    async def get(self, action: int, *, connection: object | None = None) -> Action | None: ...
    @overload
    async def get(self, *, key: str, connection: object | None = None) -> Action | None: ...
    async def get(
        self, action: int | None = None, *, key: str | None = None, connection: object | None = None
    ) -> Action | None:
        """One action by id or by idempotency key, or `None`."""
        if (action is None) == (key is None):
            raise InvalidRequest("get: give either an id or key=")
        if connection is None:
            return await self.storage.get(action_id=action, key=key)
        return await run_async(connection, reading.get(action, key), self.storage, None)

    async def list(
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
        """Actions that fit, newest first. `after` is the cursor of the page before."""
        query = Query(State(state) if state else None, kind, lane_key, run_id, subject_account_id, after, limit + 1)
        found = tuple(await self.storage.list(query))
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def lane(self, lane_key: str, *, connection: object | None = None) -> Sequence[Action]:
        """The open actions of a lane in their order; none is left out, also when this build cannot decode it."""
        if connection is None:
            return await self.storage.lane(lane_key)
        return await run_async(connection, reading.lane(lane_key), self.storage, None)

    def decode(self, action: Action) -> Any:
        """The typed payload of an action that has not ended.

        Raises `UnknownVariant` when no adapter of this outbox decodes the row, and `InvalidPayload`.
        """
        adapter = self.adapters.get(action.kind)
        if adapter is None or action.payload is None:
            why = "it has ended and has no payload" if action.payload is None else "no adapter of its kind is here"
            raise UnknownVariant(f"action {action.id} of kind {action.kind} cannot be decoded: {why}")
        return adapter.kind.variants.decode(action.payload, action.idempotency_key)

    async def why(self, action_id: int) -> str:
        """One true sentence: what the action waits for, or how it ended. Raises `NoSuchAction`."""
        situation = await self.storage.situation(action_id)
        if situation is None:
            raise _no_such(action_id)
        return sentence(situation)

    async def backlog(self) -> Sequence[Backlog]:
        """What waits, by kind, and whether a running executor serves it."""
        return await self.storage.backlog({name: a.kind.variants.condition for name, a in self.adapters.items()})

    async def attempts(self, action_id: int) -> Sequence[AttemptRecord]:
        """The dispatch log of an action, oldest first."""
        return await self.storage.attempts(action_id)

    async def wait(self, action_id: int, timeout: float | None = None) -> Action:
        """The action once it has ended.

        Raises `TimeoutError` after `timeout` seconds, and `NoSuchAction`, also for one that was forgotten at its end.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._ended(action_id)
        except TimeoutError:
            raise TimeoutError(f"not ended after {timeout} s: {await self.why(action_id)}") from None

    async def _ended(self, action_id: int) -> Action:
        while True:
            mark = self.storage.mark()
            action = await self.storage.get(action_id=action_id)
            if action is None:
                raise _no_such(action_id)
            if action.ended:
                return action
            await self.storage.changed(mark, 1.0)

    async def admit(self, action_id: int, by: str, payload_digest: str, *, note: str | None = None) -> Action:
        """Admit a proposal whose payload has this digest: what was approved is what runs.

        Raises `DigestMismatch`, `NoSuchAction` and `NotPossible`.
        """
        return await self._decide(action_id, Decision("admit", by, note, payload_digest))

    async def refuse(self, action_id: int, by: str, *, note: str | None = None) -> Action:
        """Refuse a proposal. Raises `NoSuchAction` and `NotPossible`."""
        return await self._decide(action_id, Decision("refuse", by, note))

    async def withdraw(
        self,
        action_id: int,
        *,
        by: str | None = None,
        note: str | None = None,
        lost: bool = False,
        connection: object | None = None,
    ) -> Action:
        """End an action that has not started. `lost` ends one whose lease passed and that no executor serves.

        Raises `ActionRunning`, `NoSuchAction` and `NotPossible`.
        """
        decision = Decision("withdraw_lost" if lost else "withdraw", by, note)
        if connection is None:
            return await self._decide(action_id, decision)
        return await run_async(connection, deciding.decide(action_id, decision), self.storage)

    async def withdraw_run(self, run_id: str, *, by: str | None = None, note: str | None = None) -> Sequence[Action]:
        """Withdraw every action of an agent's run that has not started, latest first, and return them."""
        withdrawn = await self.storage.withdraw_run(run_id, Decision("withdraw", by, note))
        self.wake()
        return withdrawn

    async def _decide(self, action_id: int, decision: Decision) -> Action:
        action = await self.storage.decide(action_id, decision)
        if action.state is State.UNCERTAIN:
            telemetry.uncertain(action.id, action.kind, str(action.stop_reason), "withdrawn as lost")
        self.wake()
        return action

    async def preview(self, action_id: int) -> str:
        """What the recipient of an action would see. Raises `NoSuchAction`, `UnknownVariant` and `InvalidPayload`."""
        action = await self.storage.get(action_id=action_id)
        if action is None:
            raise _no_such(action_id)
        payload = self.decode(action)
        return await self.adapters[action.kind].preview(payload)

    async def erase(self, subject_account_id: str) -> int:
        """Delete the subject's actions in every state, with what was logged of them; returns how many."""
        erased = await self.storage.erase(subject_account_id)
        self.wake()
        return erased

    async def forget(self, key: str) -> bool:
        """Delete an ended action now, a live one as soon as it ends; false when no action has the key."""
        return await self.storage.forget(key)

    async def pause(self, kind: str, by: str) -> None:
        """Stop claims of a kind in every process until `resume`."""
        _require_declared(kind, declared=await self.storage.pause(kind, by))

    async def resume(self, kind: str, *, copied: bool = False) -> None:
        """End a kind's pause and its cooling.

        A kind that was copied to another database is on hold, and refused with `NotPossible`: what was sent there
        would be sent again from here. `copied` says that nothing was carried out there.
        """
        _require_declared(kind, declared=await self.storage.resume(kind, copied=copied))
        self.wake()

    async def allow(
        self, kind: str, *, delivery: Delivery | str | None = None, requires_approval: bool | None = None
    ) -> KindPolicy:
        """Set a kind's guarantee on a person's word. Raises `LooseningRefused` while one of its actions is fenced."""
        return await self.storage.allow(kind, Delivery(delivery) if delivery else None, requires_approval)

    async def kinds(self) -> Mapping[str, KindPolicy]:
        """Every declared kind."""
        return await self.storage.kinds()

    def on_change(self, waker: Callable[[], None]) -> Callable[[], None]:
        """Call `waker` whenever this outbox changed what can be claimed; returns what ends that."""
        self._wakers.append(waker)
        return lambda: self._wakers.remove(waker)

    def wake(self) -> None:
        """Tell the executors of this process that there may be work."""
        for waker in self._wakers:
            waker()


def enqueue_sync(request: ActionRequest, connection: object) -> Enqueued:
    """Make one effect a row in the transaction of a synchronous connection; needs no open `Outbox`.

    `connection` is of `sqlite3`, `apsw` or psycopg, or a SQLAlchemy `Session` or `Connection`; on Postgres its
    search_path finds our tables. Never commits. The payload is stored as it is (`validated=False`). Raises
    `InvalidRequest`, `KeyOfAnotherKind` and `StorageError`.
    """
    answer = run_sync(connection, enqueueing.enqueue(request), ANYWHERE)
    return _answered(answer, validated=False)


def by_kind(adapters: Adapters) -> dict[str, Adapter[Any]]:
    """Adapters by the name of their kind; two of one kind raise `ConfigurationError`."""
    found: dict[str, Adapter[Any]] = {}
    for adapter in adapters:
        if adapter.kind.name in found:
            raise ConfigurationError(f"kind {adapter.kind.name}: two adapters; exactly one carries out a kind")
        found[adapter.kind.name] = adapter
    return found


def declaration_of(adapter: Adapter[Any], *, carries_out: bool) -> KindDeclaration:
    """What an adapter declares of its kind; the provider's settings only where it is carried out."""
    kind = adapter.kind
    return KindDeclaration(
        name=kind.name,
        delivery=kind.delivery,
        instance_level=kind.instance_level,
        requires_approval=kind.requires_approval,
        retention_days=kind.retention_days,
        has_ended_hook=has_ended_hook(adapter),
        settings=adapter.settings() if carries_out else None,
    )


def _answered(answer: Enqueued, *, validated: bool) -> Enqueued:
    return Enqueued(answer.id, answer.created, answer.same_content, validated, answer.state, answer.superseded)


def _no_such(action_id: int) -> NoSuchAction:
    return NoSuchAction(f"no action has the id {action_id}; it never existed, was erased, or its retention passed")


def _require_declared(kind: str, *, declared: bool) -> None:
    if not declared:
        raise InvalidRequest(f"kind {kind}: no program has declared it in this database")
