"""The harness finds what it is there to find: with the fence or the answers broken on purpose, a life breaks a promise.

Each break takes one step out of the way from an answer to the disk, and must be found within the lives that the other
tests live.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pytest

from edgeoutbox import Attempt
from edgeoutbox.model import Enqueued
from edgeoutbox.storage.protocol import Fence
from edgeoutbox.storage.sqlite.committer import Committer, Operation
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.testing.disk import Disk
from tests.power.cuts import Lived, live
from tests.power.provider import ProviderAdapter
from tests.power.test_cuts import LIVES

Break: TypeAlias = Callable[[], AbstractContextManager[Any]]


def found(folder: Path, promise: str, tamper: Sequence[str] = (), *, through: bool = False) -> Lived:
    """The first life in which the promise is broken."""
    for seed in range(LIVES):
        lived = live(folder / str(seed), seed, tamper=tamper, through=through)
        if any(promise in what for what in lived.broken):
            return lived
    raise AssertionError(f"{LIVES} lives, and none broke {promise!r}")


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
@pytest.mark.parametrize("promise", ["P7: the fence", "sent 2 times", "P9"])
def test_without_full_syncs_p7_and_p8_break(folder: Path, synchronous: str, promise: str) -> None:
    """A commit that is not synced loses fences, so that actions are sent twice, and loses what was recorded."""
    print(found(folder, promise, [f"PRAGMA synchronous = {synchronous}"], through=True).told)  # noqa: T201


def test_a_checkpoint_without_syncs_leaves_a_database_that_is_not_whole(folder: Path) -> None:
    """The log is emptied while the pages that it held are still on their way to the database."""

    def synced(self: Disk, path: str, *, folder: bool) -> None:
        if not path.endswith(".db"):
            honest(self, path, folder=folder)

    honest = Disk.synced
    with mock.patch.object(Disk, "synced", synced):
        print(found(folder, "whole").told)  # noqa: T201


@contextlib.contextmanager
def answers_first(is_answered: Callable[[Any], bool]) -> Iterator[None]:
    """Answers go out before their transaction is committed."""

    def together(self: Committer, connection: Connection, batch: Sequence[Operation[Any]]) -> bool:
        class Early:
            def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
                if sql == "COMMIT":
                    for operation in batch:
                        if operation.error is None and is_answered(operation.value) and not operation.waiter.done():
                            operation.waiter.set_result(operation.value)
                return connection.execute(sql, parameters)

            @property
            def in_transaction(self) -> bool:
                return connection.in_transaction

        return honest(self, Early(), batch)  # type: ignore[arg-type]

    honest = Committer._together
    with mock.patch.object(Committer, "_together", together):
        yield


def fence_is_answered_before_its_commit() -> AbstractContextManager[Any]:
    """`begin_write` returns, and then the fence is committed."""
    return answers_first(lambda value: isinstance(value, Fence))


def settlement_is_answered_before_its_commit() -> AbstractContextManager[Any]:
    """`settle` returns, and then the settlement is committed."""
    return answers_first(lambda value: value is True)


def enqueue_is_answered_before_its_commit() -> AbstractContextManager[Any]:
    """`enqueue` returns, and then the action is committed."""
    return answers_first(lambda value: isinstance(value, Enqueued))


def fence_after_the_call() -> AbstractContextManager[Any]:
    """The provider is called, and then the fence is written."""

    async def write(self: ProviderAdapter, attempt: Attempt[Any]) -> None:
        self.provider.reached(attempt.action.idempotency_key)
        await attempt.begin_write()

    return mock.patch.object(ProviderAdapter, "write", write)


BREAKS: dict[str, tuple[Break, str]] = {
    "fence answered before its commit": (fence_is_answered_before_its_commit, "P7: the fence"),
    "settlement answered before its commit": (settlement_is_answered_before_its_commit, "P9"),
    "enqueue answered before its commit": (enqueue_is_answered_before_its_commit, "P7: key"),
    "fence after the call": (fence_after_the_call, "sent 2 times"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_answer_before_its_commit_is_found(folder: Path, name: str) -> None:
    """An answer that goes out a moment too early breaks its promise when the power goes in that moment."""
    break_, promise = BREAKS[name]
    with break_():
        print(found(folder, promise, through=True).told)  # noqa: T201
