"""An executor of a host of its own, to be started and killed.

    python -m tests.postgres.hosts URL OWNER PROVIDER BUILD

Build 1 knows notes; build 2 also memos, and the kind `novel`.
"""

import asyncio
import contextlib
import logging
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from edgeoutbox import (
    Adapter,
    Attempt,
    Defer,
    Done,
    Executor,
    Kind,
    Outbox,
    Reread,
    Result,
    Retry,
    Uncertain,
    one,
    settlements,
)
from edgeoutbox.errors import StorageError
from edgeoutbox.storage.postgres import committer
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.protocol import Claim, Served
from tests.postgres.provider import ask

LEASE = 2.5
WINDOW = 1.0

KINDS = {"once": "at_most_once", "readable": "reads_back", "repeat": "repeatable", "draft": "writes_nothing"}
NOVEL = "novel"
"""The kind that only the second build knows."""

FATE_WITHIN = 1.0
"""Seconds for which a lost commit is asked for: less than some are late, so that some stay unknown."""


UNHEARD = "no answer to a claim of"
"""What a host says on its standard error before its name."""

LONGEST_BACKOFF = 0.5
"""Seconds: what was interrupted is tried again while the story lasts."""


class Note(BaseModel):
    """What the first build knows."""

    what: Literal["note"]
    text: str


class NoteOrMemo(BaseModel):
    """What the second build knows."""

    what: Literal["note", "memo"]
    text: str


class Effects(Adapter[Any]):
    """Asks the provider as the kind's guarantee demands."""

    def __init__(self, name: str, delivery: str, model: type[BaseModel], provider: Path) -> None:
        self.kind = Kind(
            name,
            variants=one(model),
            delivery=delivery,
            lease=LEASE,
            write_window=WINDOW,
            max_attempts=500,
            concurrency=8,
        )
        self._provider = provider
        self._carry_out = getattr(self, f"_{delivery}")

    async def execute(self, attempt: Attempt[Any]) -> Result:
        """Now and then put it off; else as the guarantee demands."""
        action = attempt.action
        dice = random.Random(f"{action.idempotency_key}:{action.epoch}")  # noqa: S311 - a schedule, no secret
        if attempt.inherited_write_at is None and dice.random() < 0.02:
            return Defer("not now", wait=0.1)
        result: Result = await self._carry_out(attempt)
        return result

    async def _at_most_once(self, attempt: Attempt[Any]) -> Result:
        await attempt.begin_write()
        return self._result(await ask(self._provider, "write", attempt), Uncertain("no answer"))

    async def _reads_back(self, attempt: Attempt[Any]) -> Result:
        if attempt.inherited_write_at is not None and await ask(self._provider, "find", attempt) == "found":
            return Done(read_back=True)
        return await self._writes_again(attempt)

    async def _writes_again(self, attempt: Attempt[Any]) -> Result:
        await attempt.begin_write()
        return self._result(await ask(self._provider, "write", attempt), Reread("no answer", wait=0.1))

    _repeatable = _writes_again

    async def _writes_nothing(self, attempt: Attempt[Any]) -> Result:
        return self._result(await ask(self._provider, "draft", attempt), Retry("no answer", wait=0.1))

    def _result(self, answer: str | None, unknown: Result) -> Result:
        says: dict[str | None, Result] = {"taken": Done(), "busy": Retry("busy", wait=0.1)}
        return says.get(answer, unknown)


class Telling(PostgresStorage):
    """Says when it cannot know whether it has claimed."""

    async def claim(self, served: Sequence[Served], limit: int, owner: str, *, reclaim: bool = True) -> list[Claim]:
        """Claim."""
        try:
            return await super().claim(served, limit, owner, reclaim=reclaim)
        except committer.OutcomeUnknown:
            sys.stderr.write(f"{UNHEARD} {owner}\n")
            raise


def adapters(build: int, provider: Path) -> list[Effects]:
    """What a build carries out."""
    model: type[BaseModel] = Note if build == 1 else NoteOrMemo
    kinds = KINDS if build == 1 else KINDS | {NOVEL: "at_most_once"}
    return [Effects(name, delivery, model, provider) for name, delivery in kinds.items()]


async def live(url: str, owner: str, provider: Path, build: int) -> None:
    """Run until told to stop; a server that is away is waited for."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    while not stopping.is_set():
        with contextlib.suppress(StorageError):
            async with (
                Outbox(Telling(url), adapters(build, provider)) as outbox,
                Executor(outbox, owner=owner, grace=0.1),
            ):
                sys.stdout.write("ready\n")
                sys.stdout.flush()
                await stopping.wait()
        await asyncio.sleep(0.1)


def main() -> None:
    """Read the arguments and run."""
    url, owner, provider, build = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    committer.FATE_WITHIN = FATE_WITHIN
    settlements.LONGEST_BACKOFF = LONGEST_BACKOFF
    asyncio.run(live(url, owner, Path(provider), int(build)))


if __name__ == "__main__":
    main()
