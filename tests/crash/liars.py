"""Adapters that do not keep what they declare, as subjects: the matrix is there to see them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from edgeoutbox.adapter import Attempt
from edgeoutbox.kinds import Delivery
from edgeoutbox.results import Done, Result
from edgeoutbox.testing.crash.matrix import Subject
from edgeoutbox.testing.crash.model import FileProvider, ModelAdapter, a_request, effects


class WritesFirst(ModelAdapter):
    """Calls the provider before it asks for the fence."""

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Write, then fence."""
        await self._provider.take(attempt.action.idempotency_key)
        await attempt.begin_write()
        return Done()


class NeverLooks(ModelAdapter):
    """Declares that it reads back, and writes again."""

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Fence and write, whatever may be there."""
        await attempt.begin_write()
        await self._provider.take(attempt.action.idempotency_key)
        return Done()


class BelievesItself(ModelAdapter):
    """Says that an earlier write is there without looking."""

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Believe that what may be there is there."""
        if attempt.inherited_write_at is not None:
            return Done(read_back=True)
        return await super().execute(attempt)


class Raises(ModelAdapter):
    """Cannot be made."""

    def __init__(self, delivery: str, record: str) -> None:
        super().__init__(delivery, record)
        raise ValueError("no such pager")


def liar(factory: type[ModelAdapter], delivery: Delivery, folder: Path) -> Subject:
    """A liar with a provider that counts each write."""
    record = folder / "record"
    counted = partial(effects, Delivery.AT_MOST_ONCE, FileProvider(record))
    return Subject(factory, (delivery.value, str(record)), a_request, counted)


@asynccontextmanager
async def never_looks(folder: Path) -> AsyncIterator[Subject]:
    """One of them, as the command takes it."""
    yield liar(NeverLooks, Delivery.READS_BACK, folder)
