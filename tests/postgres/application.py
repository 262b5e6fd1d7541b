"""An application that enqueues in transactions of its own, to be started and killed.

    python -m tests.postgres.application CONNINFO URL SEED COUNT SECONDS LOG

It appends the number of each transaction to LOG once it knows how that ended, and leaves out what is there already.
What it does not know it does again, with the same keys.
"""

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from edgeoutbox import ActionRequest, Outbox
from edgeoutbox.errors import StorageError
from tests.postgres.hosts import KINDS, NOVEL

LANES = 100
WORKERS = 3
SECRET = "nobody's business"  # noqa: S105 - a word to look for in logs


@dataclass(frozen=True)
class Transaction:
    """What is enqueued together. `own`: on a connection of the application's, beside an order."""

    number: int
    own: bool
    rolls_back: bool
    requests: tuple[ActionRequest, ...]


def plan(seed: int, count: int) -> Iterator[Transaction]:
    """Transactions with `count` actions that are committed."""
    dice = random.Random(seed)  # noqa: S311 - a schedule, no secret
    number, left = 0, count
    while left:
        own = dice.random() < 0.7
        rolls_back = own and dice.random() < 0.15
        size = min(left, dice.choice([1, 1, 2, 3, 8]))
        lanes = [f"lane{dice.randrange(LANES):02}" for _ in range(size)]
        if dice.random() < 0.9:
            lanes.sort()  # else it may wait for another that waits for it, and is told
        requests = tuple(_request(dice, f"{number}.{place}", lane) for place, lane in enumerate(lanes))
        yield Transaction(number, own, rolls_back, requests)
        number += 1
        left -= 0 if rolls_back else size


def _request(dice: random.Random, key: str, lane: str) -> ActionRequest:
    kind = NOVEL if dice.random() < 0.04 else dice.choice(list(KINDS))
    what = "memo" if dice.random() < 0.08 else "note"
    return ActionRequest(
        kind=kind, idempotency_key=key, lane_key=lane, payload={"what": what, "text": f"{SECRET} {key}"}
    )


async def enqueue(transaction: Transaction, conninfo: str, outbox: Outbox) -> None:
    """Make a transaction; raises when it may have failed."""
    if not transaction.own:
        await outbox.enqueue_many(transaction.requests)
        return
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("INSERT INTO orders VALUES (%s) ON CONFLICT DO NOTHING", (transaction.number,))
        for request in transaction.requests:
            await outbox.enqueue(request, connection=connection)
        await (connection.rollback() if transaction.rolls_back else connection.commit())


async def work(mine: list[Transaction], pause: float, conninfo: str, outbox: Outbox, log: int) -> None:
    """Make these transactions one after the other, each until it is certain."""
    for transaction in mine:
        await asyncio.sleep(pause)
        while True:
            try:
                await enqueue(transaction, conninfo, outbox)
            except (StorageError, psycopg.Error):
                await asyncio.sleep(0.1)
            else:
                os.write(log, f"{transaction.number}\n".encode())
                break


async def live(conninfo: str, url: str, seed: int, count: int, seconds: float, log: Path) -> None:
    """Make what is left of the plan."""
    known = set(log.read_text().split()) if log.exists() else set()  # noqa: ASYNC240 - nothing runs yet
    every = list(plan(seed, count))
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        outbox = Outbox(url)
        try:
            await outbox.open()
        except StorageError:
            await asyncio.sleep(0.1)
        else:
            break
    pause = seconds * WORKERS / len(every)
    left = [transaction for transaction in every if str(transaction.number) not in known]
    await asyncio.gather(*(work(left[one::WORKERS], pause, conninfo, outbox, descriptor) for one in range(WORKERS)))
    await outbox.close()


def main() -> None:
    """Read the arguments and run."""
    conninfo, url, seed, count, seconds, log = sys.argv[1:]
    asyncio.run(live(conninfo, url, int(seed), int(count), float(seconds), Path(log)))


if __name__ == "__main__":
    main()
