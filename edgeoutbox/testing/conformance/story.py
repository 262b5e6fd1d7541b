"""The words in which the suite tells its stories: requests, claims and settlements with everything usual filled in."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import pytest_asyncio

from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action, ActionRequest, Enqueued
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Claim, Fence, KindDeclaration, KindPolicy, Query, Served, Settlement, Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.variants import ALWAYS, Condition, OneOf

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LEASE = 2 * MINUTE
WINDOW = MINUTE
MAX_ATTEMPTS = 5

DONE = Settlement(State.DONE, "Done", StopReason.CONFIRMED)
UNCERTAIN = Settlement(State.UNCERTAIN, "Uncertain", StopReason.NO_CONFIRMATION)
FAILED = Settlement(State.FAILED, "Failed", StopReason.REJECTED)
CANCELLED = Settlement(State.CANCELLED, "Cancelled", StopReason.NOT_NEEDED)

KNOWN = OneOf(("notice",), ("receipt", "reminder"))
"""A build that decodes two notices."""

INSERT = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES (?, ?, ?)"
"""The least that another program inserts."""

WITHDRAW = """
UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL WHERE id = ?
"""
"""How another program withdraws an action, as the schema documents it."""


class Topic:
    """What every topic of the suite stands on. A backend's test class overrides `backend`."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def backend(self) -> Backend:
        """One empty database."""
        raise NotImplementedError("override the fixture `backend` in your test class")

    @pytest.fixture
    def clock(self, backend: Backend) -> MovableClock:
        """The clock of the database."""
        return backend.clock

    @pytest_asyncio.fixture
    async def storage(self, backend: Backend) -> Storage:
        """An open storage."""
        return await backend.open()


def a_request(
    key: str = "order:1:receipt", lane: str | None = None, *, kind: str = "email", **fields: Any
) -> ActionRequest:
    """A request with a payload of its own."""
    return ActionRequest(
        kind=kind, idempotency_key=key, lane_key=lane, payload=fields.pop("payload", {"notice": "receipt"}), **fields
    )


def served(
    kind: str = "email",
    *,
    lease: int = LEASE,
    max_attempts: int = MAX_ATTEMPTS,
    limit: int = 100,
    condition: Condition = ALWAYS,
) -> Served:
    """A kind as an executor carries it out."""
    return Served(kind, condition, lease, max_attempts, limit)


async def enqueue(storage: Storage, key: str = "order:1:receipt", lane: str | None = None, **fields: Any) -> int:
    """Enqueue one new action and return its id."""
    [answer] = await storage.enqueue([a_request(key, lane, **fields)])
    assert answer.created
    return answer.id


async def propose(storage: Storage, key: str = "order:1:receipt", lane: str | None = None, **fields: Any) -> Enqueued:
    """Propose one action."""
    [answer] = await storage.enqueue([a_request(key, lane, **fields)], proposed=True)
    return answer


async def declare(
    storage: Storage,
    kind: str = "email",
    delivery: Delivery = Delivery.AT_MOST_ONCE,
    *,
    hook: bool = False,
    approval: bool = False,
    instance_level: bool = False,
    retention_days: int = 30,
    settings: str = "",
) -> KindPolicy:
    """Declare one kind and return what holds."""
    declaration = KindDeclaration(kind, delivery, instance_level, approval, retention_days, hook, settings)
    return (await storage.declare_kinds([declaration]))[kind]


async def claim_all(storage: Storage, owner: str = "one", *, kind: str = "email", **limits: Any) -> Sequence[Claim]:
    """Claim everything that can be claimed."""
    return await storage.claim([served(kind, **limits)], 100, owner)


async def claim(storage: Storage, owner: str = "one", *, kind: str = "email", **limits: Any) -> Claim:
    """Claim the one action that can be claimed."""
    [claimed] = await claim_all(storage, owner, kind=kind, **limits)
    return claimed


async def fence(storage: Storage, held: Claim, window: int = WINDOW) -> Fence:
    """Fence a claim."""
    answer = await storage.begin_write(held.id, held.epoch, held.owner, window)
    assert isinstance(answer, Fence)
    return answer


async def started(
    storage: Storage, key: str = "order:1:receipt", lane: str | None = None, *, fenced: bool = False, **limits: Any
) -> Claim:
    """An action that executes, fenced or not."""
    action = await enqueue(storage, key, lane)
    [held] = [one for one in await claim_all(storage, **limits) if one.id == action]
    if fenced:
        await fence(storage, held)
    return held


async def read(storage: Storage, action_id: int) -> Action:
    """The action as it stands."""
    action = await storage.get(action_id=action_id)
    assert action is not None
    return action


async def everything(storage: Storage) -> tuple[list[Action], list[Any]]:
    """Every action and its dispatch log, to compare before and after."""
    actions = list(await storage.list(Query(limit=1000)))
    return actions, [await storage.attempts(action.id) for action in actions]


async def retry(storage: Storage, held: Claim, wait: int = 10 * SECOND, *, counts: bool = True) -> None:
    """Settle a claim as a proven retry."""
    settlement = Settlement(State.ADMITTED, "Retry", wait=wait, clears_fence=True, counts=counts, reason="busy")
    assert await storage.settle(held, settlement)


async def reread(storage: Storage, held: Claim, wait: int = 10 * SECOND, *, counts: bool = True) -> None:
    """Settle a claim as a reread."""
    assert await storage.settle(held, Settlement(State.EXECUTING, "Reread", wait=wait, counts=counts))


async def both(*operations: Any) -> list[Any]:
    """Run operations at the same time."""
    return list(await asyncio.gather(*operations))


def milliseconds(clock: MovableClock, later: int) -> None:
    """Let milliseconds pass."""
    clock.advance(later / 1000)
