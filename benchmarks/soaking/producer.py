"""The soak's application: its own transactions, in which it enqueues, proposes, decides, withdraws and supersedes.

python -m benchmarks.soaking.producer soak.db RELAY_PORT PROVIDER_PORT RATE SECONDS SEED LEDGER

It writes a line of JSON to the ledger for each thing that it was told: `key`, and whether it was `committed`, or how it
has to end (`ends`). What it rolled back, or what was refused, is in the ledger with `committed: false`.
"""

import asyncio
import heapq
import json
import random
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO

import aiosqlite

from benchmarks.soaking.kinds import Ports, adapters_of, payload_of
from edgeoutbox import ActionRequest, ActionRunning, DatabaseBusy, NotPossible, Outbox, prepare_async

LANES = 200
ROLLED_BACK = 0.03
REPEATED = 0.03
TILL = "UPDATE soak_till SET enqueued = enqueued + ?"
KINDS = {"email": 35, "post": 25, "call": 25, "draft": 15}
SORTS = {"plain": 85, "proposal": 6, "doomed": 3, "withdrawn": 3, "superseding": 3}
DECISIONS = {"admit": 5, "refuse": 2, "withdraw": 1, "expire": 2}

Later = Callable[[], Awaitable[None]]


def chosen(chance: random.Random, shares: dict[str, int]) -> str:
    """One of these."""
    return chance.choices(list(shares), list(shares.values()))[0]


def soon(seconds: float) -> int:
    """The time so many seconds from now, as an action has it."""
    return round((time.time() + seconds) * 1000)


def plain_request(chance: random.Random, number: int) -> ActionRequest:
    """One action of any kind, most of them in a lane."""
    kind = chosen(chance, KINDS)
    key = f"{kind}-{number}"
    lane = f"lane-{chance.randrange(LANES)}" if chance.random() < 0.7 else None  # noqa: PLR2004 - a share
    return ActionRequest(kind=kind, idempotency_key=key, payload=payload_of(kind, key), lane_key=lane)


@dataclass
class Producer:
    """Makes transactions on a connection of its own, and remembers what it has to do later."""

    outbox: Outbox
    connection: aiosqlite.Connection
    ledger: IO[str]
    chance: random.Random
    made: int = 0
    committed: deque[ActionRequest] = field(default_factory=lambda: deque(maxlen=1000))
    waiting: list[tuple[float, int, Later]] = field(default_factory=list)
    _ties: "count[int]" = field(default_factory=count)

    async def work(self, rate: float, seconds: float) -> None:
        """Enqueue so many actions a second for so long, then do what is left to do."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            await self._do_what_waits()
            if self.made < passed * rate:
                await self._transaction()
            else:
                await asyncio.sleep(0.5 / rate)
        while self.waiting:
            await self._do_what_waits()
            await asyncio.sleep(0.05)

    async def _do_what_waits(self) -> None:
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, later = heapq.heappop(self.waiting)
            try:
                await later()
            except (NotPossible, ActionRunning, DatabaseBusy):
                continue  # it had ended or started, or a neighbour held the lock: nothing was promised

    def _after(self, seconds: float, later: Later) -> None:
        heapq.heappush(self.waiting, (time.monotonic() + seconds, next(self._ties), later))

    async def _transaction(self) -> None:
        """One to three actions of which all or none are there."""
        new: list[ActionRequest] = []
        try:
            await self.connection.execute("BEGIN IMMEDIATE")
            for _ in range(self.chance.randint(1, 3)):
                if self.committed and self.chance.random() < REPEATED:
                    await self._repeat()
                else:
                    new.append(await self._one())
            await self.connection.execute(TILL, (len(new),))
            committed = self.chance.random() >= ROLLED_BACK
            await self.connection.execute("COMMIT" if committed else "ROLLBACK")
        except (DatabaseBusy, sqlite3.OperationalError):
            if self.connection.in_transaction:
                await self.connection.execute("ROLLBACK")
            committed = False
        for request in new:
            self.ledger.write(json.dumps({"key": request.idempotency_key, "committed": committed}) + "\n")
        if committed:
            self.committed.extend(new)

    async def _repeat(self) -> None:
        """Enqueue what is there already."""
        request = self.chance.choice(self.committed)
        answer = await self.outbox.enqueue(request, connection=self.connection)
        if answer.created or not answer.same_content:
            raise SystemExit(f"{request.idempotency_key}: a repeat was answered {answer}")

    async def _one(self) -> ActionRequest:
        self.made += 1
        request = plain_request(self.chance, self.made)
        key = request.idempotency_key
        match chosen(self.chance, SORTS):
            case "proposal":
                return await self._proposed(request)
            case "doomed":
                request = _changed(request, lane_key=None, due_at=soon(8), expires_at=soon(2))
                self._tell(key, "EXPIRED")
            case "withdrawn":
                request = _changed(request, due_at=soon(4))
                self._after(1.0, lambda: self._withdraw(key))
            case "superseding":  # a lane of news, of which only the latest counts
                request = _changed(request, lane_key=f"news-{self.chance.randrange(10)}", due_at=soon(2))
                await self.outbox.enqueue(request, connection=self.connection, supersede=True)
                return request
            case _:
                pass
        await self.outbox.enqueue(request, connection=self.connection)
        return request

    async def _proposed(self, request: ActionRequest) -> ActionRequest:
        decision = chosen(self.chance, DECISIONS)
        key = request.idempotency_key
        if decision == "expire":
            request = _changed(request, expires_at=soon(2))
            self._tell(key, "EXPIRED")
        else:
            self._after(0.5, lambda: self._decide(key, decision))
        await self.outbox.propose(request, connection=self.connection)
        return request

    async def _decide(self, key: str, decision: str) -> None:
        action = await self.outbox.get(key=key)
        if action is None:
            return  # it was rolled back
        match decision:
            case "admit":
                await self.outbox.admit(action.id, "soak", action.payload_digest or "")
            case "refuse":
                await self.outbox.refuse(action.id, "soak")
                self._tell(key, "REFUSED")
            case _:
                await self._withdraw(key)

    async def _withdraw(self, key: str) -> None:
        action = await self.outbox.get(key=key)
        if action is not None:
            await self.outbox.withdraw(action.id, by="soak")
            self._tell(key, "WITHDRAWN")

    def _tell(self, key: str, ends: str) -> None:
        self.ledger.write(json.dumps({"key": key, "ends": ends}) + "\n")


def _changed(request: ActionRequest, **changes: object) -> ActionRequest:
    return ActionRequest(**{**request.model_dump(), **changes})


async def produce(file: Path, ports: Ports, rate: float, seconds: float, seed: int, ledger: Path) -> None:
    """Work for so long."""
    async with (
        Outbox(f"sqlite:///{file}", adapters_of(ports)) as outbox,
        aiosqlite.connect(file, isolation_level=None) as connection,
    ):
        await prepare_async(connection)
        with ledger.open("w", encoding="utf-8") as out:
            chance = random.Random(seed)  # noqa: S311 - no secret
            await Producer(outbox, connection, out, chance).work(rate, seconds)


if __name__ == "__main__":
    _, at, relay, provider, per_second, lasting, drawn, told = sys.argv
    asyncio.run(
        produce(Path(at), Ports(int(relay), int(provider)), float(per_second), float(lasting), int(drawn), Path(told))
    )
