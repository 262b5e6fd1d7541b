"""Adapters that do not keep what they declare, and storages that do not: the matrix is there to see them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from edgeoutbox.adapter import Attempt
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import ActionRequest
from edgeoutbox.results import Done, Result, Retry
from edgeoutbox.storage.sqlite import backend
from edgeoutbox.storage.sqlite.committer import Committer, Operation
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.steps import Row
from edgeoutbox.testing.crash.matrix import Subject
from edgeoutbox.testing.crash.model import FileProvider, ModelAdapter, a_request, effects
from tests.storage.passing import Passing


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


class AsksAgain(ModelAdapter):
    """Wants a second attempt though nothing went wrong."""

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Do nothing the first time."""
        return await super().execute(attempt) if attempt.action.attempt > 1 else Retry("not in the mood")


class Fails(ModelAdapter):
    """Has a defect."""

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Raise."""
        raise KeyError(attempt.action.id)


class Raises(ModelAdapter):
    """Cannot be made."""

    def __init__(self, delivery: str, record: str) -> None:
        super().__init__(delivery, record)
        raise ValueError("no such pager")


class Eager(Passing):
    """The writer's connection, which does something before each COMMIT."""

    def __init__(self, inner: Connection, committer: "Hasty", batch: Sequence[Operation[Any]]) -> None:
        super().__init__(inner)
        self._committer = committer
        self._batch = batch

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement."""
        if sql == "COMMIT":
            self._committer.before_commit(self.inner, self._batch)
        return super().execute(sql, parameters)


class Hasty(Committer):
    """A committer that does not wait for its COMMIT."""

    def _together(self, connection: Connection, batch: Sequence[Operation[Any]]) -> bool:
        return super()._together(Eager(connection, self, batch), batch)

    def before_commit(self, connection: Connection, batch: Sequence[Operation[Any]]) -> None:
        """What it does too early."""
        raise NotImplementedError


class AnswersBeforeCommit(Hasty):
    """Confirms what is not committed."""

    def before_commit(self, _: Connection, batch: Sequence[Operation[Any]]) -> None:
        """Answer, and give everybody who waited some turns of the loop."""
        loop = batch[0].waiter.get_loop()
        self._unanswered = batch
        self._answer()
        asyncio.run_coroutine_threadsafe(turns(), loop).result()


class CommitsTwice(Hasty):
    """Has everything committed before it commits."""

    def before_commit(self, connection: Connection, _: Sequence[Operation[Any]]) -> None:
        """Commit by another word."""
        connection.execute("END")
        connection.execute("BEGIN IMMEDIATE")


async def turns() -> None:
    """Some turns of the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


def answering_before_commit(delivery: str, record: str) -> ModelAdapter:
    """An honest adapter in a program whose storage answers too early: only the program that is killed makes it."""
    vars(backend)["Committer"] = AnswersBeforeCommit
    return ModelAdapter(delivery, record)


def committing_twice(delivery: str, record: str) -> ModelAdapter:
    """The same in a program whose storage commits too early."""
    vars(backend)["Committer"] = CommitsTwice
    return ModelAdapter(delivery, record)


def another_kind(key: str) -> ActionRequest:
    """A request that is not the model's."""
    return ActionRequest(kind="letter", idempotency_key=key, payload={})


def liar(factory: Callable[[str, str], ModelAdapter], delivery: Delivery, folder: Path) -> Subject:
    """A liar with a provider that counts each write."""
    record = folder / "record"
    counted = partial(effects, Delivery.AT_MOST_ONCE, FileProvider(record))
    return Subject(factory, (delivery.value, str(record)), a_request, counted)


@asynccontextmanager
async def loses_its_provider(_: Path) -> AsyncIterator[Subject]:
    """A subject with a defect of its own."""
    raise OSError("no port is left")
    yield


@asynccontextmanager
async def wants_a_client(folder: Path) -> AsyncIterator[Subject]:
    """A subject that cannot be killed as it stands."""
    yield Subject(ModelAdapter, (FileProvider(folder),), a_request, lambda _: 0)


def gives_nothing(_: Path) -> int:
    """No subject."""
    return 0


@asynccontextmanager
async def never_looks(folder: Path) -> AsyncIterator[Subject]:
    """One of them, as the command takes it."""
    yield liar(NeverLooks, Delivery.READS_BACK, folder)
