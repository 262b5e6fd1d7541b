"""A disk that is full, fails, reads short or dawdles: nothing is sent unfenced, nothing is lost, all goes on."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from edgeoutbox import Executor, Outbox
from edgeoutbox.errors import DatabaseUnavailable
from edgeoutbox.storage.protocol import KindDeclaration, KindPolicy
from edgeoutbox.testing import until
from edgeoutbox.testing.disk import IO_ERROR, NO_SPACE, SLOW, Call, Fault
from edgeoutbox.testing.disk.faults import NEEDS_ROOM
from tests.power.faults import TROUBLES, Outages, live_with_faults
from tests.power.life import Life, WitnessedStorage
from tests.power.test_cuts import AT_ONCE
from tests.power.virtual import run

LIVES = 60


@pytest.mark.parametrize("first", range(0, LIVES, AT_ONCE))
def test_p7_p9_hold_whatever_else_happens_to_the_disk(folder: Path, first: int) -> None:
    """Each fence is certain before its call, nothing is answered that is not so, and each outage is said once."""
    lived = [live_with_faults(folder / str(seed), seed) for seed in range(first, first + AT_ONCE)]
    assert [life.told for life in lived if life.broken] == []
    assert len({struck for life in lived for struck in life.struck}) >= 15  # of what happens to calls of which kind


def test_every_call_fails_and_is_slow_somewhere() -> None:
    """Not only writes and syncs: lives draw from every kind of call."""
    calls = set(get_args(Call))
    for what in (IO_ERROR, SLOW):
        assert calls == {call for each, call in TROUBLES if each == what} - {None}
    assert {call for each, call in TROUBLES if each == NO_SPACE} - {None} == NEEDS_ROOM


@pytest.mark.parametrize(
    ("trouble", "seconds"),
    [(Fault(NO_SPACE, "write", times=10**6), 30), (Fault(IO_ERROR, "sync", times=10**6), 30)],
    ids=["full", "failing"],
)
def test_p9_an_outage_is_waited_for(folder: Path, trouble: Fault, seconds: int) -> None:
    """While the disk takes nothing the provider is not called, the outage is said once, and all goes on by itself."""
    life = Life(folder, seed=5)
    trouble.at, trouble.seen = 1, 0
    calls: list[tuple[float, str]] = []
    life.provider.on_call = lambda key: calls.append((life.clock.boot(), key))

    async def outage() -> tuple[float, float]:
        await until(lambda: bool(calls))
        life.disk.plan(trouble)
        began = life.clock.boot()
        await asyncio.sleep(seconds)
        life.disk.mend()
        return began, life.clock.boot()

    async def both() -> tuple[float, float]:
        task = asyncio.create_task(outage())
        await life._session()
        return await task

    outages = Outages()
    logging.getLogger("edgeoutbox").addHandler(outages)
    try:
        began, over = run(both(), life.clock)
    finally:
        logging.getLogger("edgeoutbox").removeHandler(outages)
    assert outages.said == ["storage.unavailable", "storage.available"]
    assert [key for at, key in calls if began < at < over] == []
    assert any(at >= over for at, _ in calls)
    life.look(at_the_end=True)
    assert life.broken == []


def test_p7_a_slow_fence_is_no_fence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that takes so long that the write could outlive its lease: the call is not made, and is made later."""
    life = Life(folder, seed=5)
    slowed: set[int] = set()
    honest = WitnessedStorage.begin_write

    async def begin_write(self: WitnessedStorage, action_id: int, epoch: int, owner: str, window: int) -> object:
        if action_id not in slowed:
            slowed.add(action_id)
            life.disk.plan(Fault(SLOW, "sync", seconds=4.0))
        return await honest(self, action_id, epoch, owner, window)

    monkeypatch.setattr(WitnessedStorage, "begin_write", begin_write)
    assert life.session()
    life.look(at_the_end=True)
    assert life.broken == []
    given_up = [said for said in life.answers.settled.values() if said.result in {"Timeout", "Abandoned"}]
    assert len(given_up) >= 3
    assert all(said.clears_fence for said in given_up)


def test_a_disk_that_cannot_be_read_is_not_asked_without_a_pause(folder: Path) -> None:
    """Memory still answers a claim, and nobody can say whether others wrote: that must not turn in circles."""
    life = Life(folder, seed=1)
    life.session()
    claims = 0

    async def broken_for_a_while() -> None:
        nonlocal claims
        storage = life.storage()
        async with Outbox(storage, life.adapters()) as outbox, Executor(outbox, clock=life.clock):
            await asyncio.sleep(3)
            claim = storage.claim

            async def counted(*given: object, **options: object) -> object:
                nonlocal claims
                claims += 1
                assert claims < 1000, "it turns in circles"
                return await claim(*given, **options)  # type: ignore[arg-type]

            storage.claim = counted  # type: ignore[method-assign, assignment]
            life.disk.plan(Fault(IO_ERROR, "read", times=10**9))
            await asyncio.sleep(20)
            life.disk.mend()

    run(broken_for_a_while(), life.clock)
    assert 1 <= claims <= 60


def test_an_outbox_that_cannot_be_opened_leaves_nothing_open(folder: Path) -> None:
    """The kinds cannot be declared, as the disk is full; whoever mends that opens another outbox."""
    life = Life(folder, seed=1)

    async def opened() -> None:
        storage = life.storage()
        declare = storage.declare_kinds

        async def full(declarations: Sequence[KindDeclaration]) -> dict[str, KindPolicy]:
            life.disk.plan(Fault(NO_SPACE, "write", times=10**6))
            return await declare(declarations)

        storage.declare_kinds = full  # type: ignore[method-assign]
        await Outbox(storage, life.adapters()).open()

    with pytest.raises(DatabaseUnavailable, match="check its disk"):
        run(opened(), life.clock)
    life.disk.restore()  # raises while a file is open
    assert life.session()
