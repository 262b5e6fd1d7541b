"""The kinds of the soak, one for each delivery: emails through a relay, and three that reach a provider of its own."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from edgeoutbox import (
    Adapter,
    Attempt,
    Defer,
    Delivery,
    Done,
    EndedAction,
    Kind,
    KindLimits,
    Reread,
    Result,
    Transaction,
    one,
)
from edgeoutbox_smtp import Relay, Security, SmtpAdapter

HOST = "127.0.0.1"
LEASE = 10.0
"""Seconds. Long enough for a fence that waits out a neighbour's lock, short enough to see leases that were lost."""

LIMITS: KindLimits = {
    "lease": LEASE,
    "write_window": 4.0,
    "max_attempts": 20,
    "retention_days": 1,
    "concurrency": 16,
}
EMAIL_LIMITS: KindLimits = {**LIMITS, "max_attempts": 3}
"""Few attempts: a relay's "not now" is waited for by the product's own backoff, and the run has an end."""

HEARD = "UPDATE soak_till SET heard = heard + 1"


class Words(BaseModel):
    """A payload."""

    text: str


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the relay and the provider listen."""

    relay: int
    provider: int


@dataclass(frozen=True, slots=True)
class Said:
    """What the provider answered: `yes`, `no` (it has no such write), or `limited` for `wait` seconds."""

    word: str
    wait: float = 0.0


class Caller(Adapter[Words]):
    """Reaches the provider as its delivery demands."""

    def __init__(self, name: str, delivery: Delivery, port: int) -> None:
        self.kind = Kind(name, variants=one(Words), delivery=delivery, **LIMITS)
        self._port = port

    async def execute(self, attempt: Attempt[Words]) -> Result:
        """Look for an earlier write where the kind reads back, then write."""
        key = attempt.action.idempotency_key
        if self.kind.delivery is Delivery.READS_BACK and attempt.inherited_write_at is not None:
            found = await self._ask("find", key)
            if found is None:
                return Reread("the provider did not answer", 0.5)
            if found.word == "yes":
                return Done(key, read_back=True)
        if self.kind.delivery is not Delivery.WRITES_NOTHING:
            await attempt.begin_write()
        match await self._ask("write", key):
            case Said("yes"):
                return Done(key)
            case Said("limited", wait):
                return Defer("limited", wait, scope="kind" if wait < 1 else "action")
            case _ if self.kind.delivery is Delivery.WRITES_NOTHING:
                raise ConnectionError
            case _:
                return Reread("the provider did not answer", 0.5)

    async def _ask(self, what: str, key: str) -> Said | None:
        """The provider's answer, `None` when it gave none."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(json.dumps([self.kind.name, what, key]).encode() + b"\n")
            line = await reader.readline()
        except ConnectionError:
            return None
        finally:
            writer.transport.abort()
        return Said(*json.loads(line)) if line else None


class Drafter(Caller):
    """Has an ended hook, that counts in the transaction of each end."""

    async def ended(self, action: EndedAction, tx: Transaction) -> None:  # noqa: ARG002 - it counts, whatever it was
        """Count."""
        await tx.execute(HEARD)


def adapters_of(ports: Ports) -> list[Adapter[Any]]:
    """The adapters that an executor carries out."""
    relay = Relay.parse(f"smtp://{HOST}:{ports.relay}", security=Security.PLAINTEXT, timeout=LEASE)
    email = SmtpAdapter(relay, sender="soak@soak.example", **EMAIL_LIMITS)
    return [
        email,
        Caller("post", Delivery.READS_BACK, ports.provider),
        Caller("call", Delivery.REPEATABLE, ports.provider),
        Drafter("draft", Delivery.WRITES_NOTHING, ports.provider),
    ]


def payload_of(kind: str, key: str) -> dict[str, str]:
    """What an action is about; the recipient of an email is its key, so that the relay's record tells them apart."""
    if kind != "email":
        return {"text": f"{key} " * 8}
    return {"notice": "message", "to": f"{key}@soak.example", "subject": key, "text": "As often as was meant."}
