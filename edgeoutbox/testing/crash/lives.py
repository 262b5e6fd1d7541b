"""One life of a program: what it is to do, whether it is to die of it, and what it saw at its end."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from edgeoutbox.adapter import Adapter
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.executor import Executor, upkeep
from edgeoutbox.model import Action, ActionRequest
from edgeoutbox.outbox import Outbox
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.crash.failpoints import Failpoint, Seam
from edgeoutbox.testing.crash.killing import AFTERMATH, DeadlyAdapter, Trap, deadly_storage
from edgeoutbox.testing.crash.promises import Left
from edgeoutbox.testing.drain import drain

LONGEST_LIFE = 30
"""Seconds after which a life that nobody ended is over. On an idle machine one takes a tenth of a second."""

REFUSED = 2
"""The exit code of a life that could not begin, since what it was given is wrong; its words are a sentence."""

LOST = "lost"
"""What the dispatch log says of an attempt whose process was killed, in a word of ours."""


@dataclass(frozen=True, slots=True)
class Life:
    """What a program does between its start and its end.

    It enqueues `requests`, as one that does not know whether it did so before, and runs an executor: until everything
    due was carried out, with `drains` also what is due later, with `sweeps` until the first action of `keys` is
    deleted. It dies at `failpoint`, as far as that concerns this first action. With `owes` this action's hook fails.
    `wall` is the time when it starts, in seconds since 1970; `arguments` are the adapter's.
    """

    url: str
    wall: float
    keys: tuple[str, ...]
    arguments: tuple[Any, ...] = ()
    requests: tuple[str, ...] = ()
    failpoint: Failpoint | None = None
    seam: Seam | None = None
    drains: bool = True
    sweeps: bool = False
    owes: bool = False

    def dump(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, line: str) -> "Life":
        """What `dump` wrote."""
        given = json.loads(line)
        for name in ("keys", "arguments", "requests"):
            given[name] = tuple(given[name])
        for name, known in (("failpoint", Failpoint), ("seam", Seam)):
            given[name] = None if given[name] is None else known(given[name])
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Seen:
    """An action as the database has it. Without `state` it is gone. `hooks` counts how often its ended hook counted.

    `attempts` has a word for each row of the dispatch log, and `reasons` the reason beside it.
    """

    state: str = ""
    attempts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    hooks: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a life that ended by itself saw: the promise of the kind, and at its end each action by its key.

    `left` is how far the database had the first of them when the life began.
    """

    delivery: str
    left: Left
    actions: Mapping[str, Seen] = field(default_factory=dict)

    def dump(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, line: str) -> "Report":
        """What `dump` wrote."""
        given = json.loads(line)
        seen = {
            key: Seen(one["state"], tuple(one["attempts"]), tuple(one["reasons"]), one["hooks"])
            for key, one in given["actions"].items()
        }
        return cls(given["delivery"], Left(given["left"]), seen)


def lived(life: Life, factory: Callable[..., Adapter[Any]]) -> Report:
    """Live it. The clock stands still but for what `drain` moves, so that nothing waits and no lease is short."""
    return asyncio.run(_lived(life, factory))


async def _lived(life: Life, factory: Callable[..., Adapter[Any]]) -> Report:
    clock = MovableClock(life.wall)
    trap = Trap(life.failpoint, life.seam, life.keys[0])
    adapter = DeadlyAdapter(factory(*life.arguments), trap, owes=life.owes)
    requests = [ActionRequest(**json.loads(request)) for request in life.requests]
    for request in requests:
        if request.kind != adapter.kind.name:
            raise ConfigurationError(
                f"request: it gives an action of the kind {request.kind}, and the adapter carries out "
                f"{adapter.kind.name}; give a request of the adapter's kind"
            )
    if life.sweeps:
        upkeep.TICK = upkeep.SWEEP_EVERY = 0.01
    storage = deadly_storage(life.url, clock, trap)
    async with _on(clock, life.url), Outbox(storage, [adapter]) as outbox:
        clock.on_move(outbox.wake)
        left = await _left(outbox, life.keys[0])
        for request in requests:
            await outbox.enqueue(request)
        async with Executor(outbox, clock=clock) as executor:
            await executor.until_idle()
            if life.drains:
                await drain(executor, clock)
            while life.sweeps and await outbox.get(key=life.keys[0]) is not None:  # noqa: ASYNC110
                await asyncio.sleep(upkeep.TICK)
        return Report(adapter.kind.delivery.value, left, {key: await _seen(outbox, key) for key in life.keys})


@asynccontextmanager
async def _on(clock: MovableClock, url: str) -> AsyncIterator[None]:
    """Give the database of a server the clock; a connection of SQLite takes it when it is opened."""
    if url.startswith("sqlite"):
        yield
        return
    from edgeoutbox.testing.postgres_clock import PostgresClock  # noqa: PLC0415 - its driver is an extra

    with PostgresClock(url, clock):
        yield


async def _seen(outbox: Outbox, key: str) -> Seen:
    action = await outbox.get(key=key)
    if action is None:
        return Seen()
    attempts = await outbox.attempts(action.id)
    return Seen(
        " ".join(filter(None, (action.state, action.stop_reason))),
        tuple(attempt.result or LOST for attempt in attempts),
        tuple(attempt.reason or "" for attempt in attempts),
        await _hooks(outbox, action),
    )


async def _left(outbox: Outbox, key: str) -> Left:
    match await outbox.get(key=key):
        case None:
            return Left.ABSENT
        case Action(ended=True) as action:
            return Left.ENDED if await _hooks(outbox, action) else Left.OWED
        case Action(write_started_at=int()):
            return Left.FENCED
        case Action(epoch=epoch):
            return Left.CLAIMED if epoch else Left.WAITING


async def _hooks(outbox: Outbox, action: Action) -> int:
    return len((await outbox.list(kind=AFTERMATH, run_id=str(action.id))).actions)
