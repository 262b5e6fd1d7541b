"""A provider in a file, and adapters of each delivery for it: what the matrix runs when it is given nothing else."""

import asyncio
import os
from functools import partial
from pathlib import Path

from edgeoutbox.adapter import Adapter, Attempt
from edgeoutbox.kinds import Delivery, Kind
from edgeoutbox.model import ActionRequest
from edgeoutbox.results import Done, Result
from edgeoutbox.testing.crash.matrix import Subject
from edgeoutbox.testing.scripted import ScriptedPayload
from edgeoutbox.variants import one


class FileProvider:
    """Keeps the tokens that it was given, a line each, appended in one write. It may take a write and not answer."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._holding = record.with_suffix(".hold")

    def tokens(self) -> list[str]:
        """What it was given, in order."""
        return self._record.read_text(encoding="utf-8").splitlines() if self._record.exists() else []

    def hold(self) -> None:
        """Take the next write and never answer it."""
        self._holding.touch()

    async def take(self, token: str) -> None:
        """Take a write."""
        holds = self._holding.exists()
        if holds:
            self._holding.unlink()  # before the effect can be seen: whoever sees it may kill us at once
        descriptor = os.open(self._record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{token}\n".encode())
        finally:
            os.close(descriptor)
        if holds:
            await asyncio.Event().wait()


class ModelAdapter(Adapter[ScriptedPayload]):
    """Carries out actions as its delivery promises, and in no other way."""

    def __init__(self, delivery: str, record: str) -> None:
        self.kind = Kind("model", variants=one(ScriptedPayload), delivery=delivery)
        self._provider = FileProvider(Path(record))

    async def execute(self, attempt: Attempt[ScriptedPayload]) -> Result:
        """Look, fence and write: as much of it as the delivery asks for."""
        token = attempt.action.idempotency_key
        looks = self.kind.delivery is Delivery.READS_BACK and attempt.inherited_write_at is not None
        if looks and token in self._provider.tokens():
            return Done(read_back=True)
        if self.kind.delivery is not Delivery.WRITES_NOTHING:
            await attempt.begin_write()
        await self._provider.take(token)
        return Done()


def effects(delivery: Delivery, provider: FileProvider, token: str) -> int:
    """How many effects of a token there are: a repeatable kind's provider counts a token once, a draft is no effect."""
    count = provider.tokens().count(token)
    return {Delivery.REPEATABLE: min(count, 1), Delivery.WRITES_NOTHING: 0}.get(delivery, count)


def a_request(key: str) -> ActionRequest:
    """A request of the model's kind."""
    return ActionRequest(kind="model", idempotency_key=key, payload={})


def model_subject(delivery: Delivery, folder: Path) -> Subject:
    """The model of a delivery, with its record in a folder."""
    record = folder / "record"
    provider = FileProvider(record)
    # A draft has no effect by which the provider's side could see that it was asked for.
    hold = None if delivery is Delivery.WRITES_NOTHING else provider.hold
    return Subject(ModelAdapter, (delivery.value, str(record)), a_request, partial(effects, delivery, provider), hold)
