"""The life of an executor, its hooks and its storage, when others do not behave."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from edgeoutbox import (
    ActionRequest,
    Attempt,
    DatabaseBusy,
    Defer,
    Done,
    EndedAction,
    Executor,
    ForbiddenByGuard,
    NoSchema,
    NotClaimable,
    Outbox,
    Result,
    StorageError,
    Transaction,
)
from edgeoutbox.storage.sqlite.checkpoints import Checkpoints
from edgeoutbox.testing import HookedAdapter, ScriptedAdapter, Step, drain, until
from tests.executor.world import World, ended, outcome, request, the


async def test_p9_everybody_who_stops_an_executor_waits_until_it_has_stopped(world: World) -> None:
    """A second stop that returned at once would let the outbox close under a running attempt."""
    adapter = ScriptedAdapter()
    gate = asyncio.Event()
    adapter.on("a", Step(gate=gate))
    outbox = await world.outbox(adapter)
    executor = Executor(outbox, clock=world.clock, grace=10.0)
    await executor.start()
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    first, second = asyncio.create_task(executor.stop()), asyncio.create_task(executor.stop())
    done, _ = await asyncio.wait([first, second], timeout=0.05)
    assert done == set()
    gate.set()
    await asyncio.gather(first, second)
    assert outcome(await the(outbox, asked.id)) == ("DONE", "CONFIRMED")


async def test_an_executor_that_was_stopped_while_it_started_does_nothing(world: World) -> None:
    """The wish to stop is not forgotten."""
    outbox = await world.outbox(ScriptedAdapter())
    executor = Executor(outbox, clock=world.clock)
    starting = asyncio.create_task(executor.start())
    await asyncio.sleep(0)
    await executor.stop()
    await starting
    asked = await outbox.enqueue(request())
    with pytest.raises(RuntimeError):
        await executor.until_idle()
    with pytest.raises(NotClaimable, match="stops"):
        await executor.run_now(asked.id)
    assert (await the(outbox, asked.id)).state == "ADMITTED"


async def test_an_executor_lives_once(world: World) -> None:
    """One that was stopped cannot be entered again, and says so."""
    executor = Executor(await world.outbox(ScriptedAdapter()), clock=world.clock)
    async with executor:
        pass
    with pytest.raises(RuntimeError, match="make a new one"):
        await executor.start()


async def test_an_adapter_that_cannot_be_closed_does_not_keep_others_open(world: World) -> None:
    """Each adapter is closed, and the executor says that it is gone."""

    class Broken(ScriptedAdapter):
        async def aclose(self) -> None:
            raise ValueError

    class Closing(ScriptedAdapter):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    last = Closing("last")
    outbox = await world.outbox(Broken("first"), last)
    async with Executor(outbox, clock=world.clock):
        pass
    assert last.closed
    assert [kind.served for kind in await outbox.backlog()] == [False, False]


async def test_p9_a_producer_without_the_hook_does_not_silence_it(world: World) -> None:
    """Only who carries a kind out can say that nobody wants to hear of its ends."""

    async def hear(_: EndedAction, __: Transaction) -> None:
        return

    adapter = HookedAdapter(hear)
    outbox, executor = await world.running(adapter)
    producer = await world.outbox(ScriptedAdapter())
    forgotten = await producer.enqueue(request("forgotten", due_at=world.clock.milliseconds + 1000))
    withdrawn = await producer.enqueue(request("withdrawn", due_at=world.clock.milliseconds + 1000))
    await producer.withdraw(withdrawn.id)
    await producer.forget("forgotten")
    await drain(executor, world.clock)
    assert sorted(action.id for action in adapter.heard) == [forgotten.id, withdrawn.id]
    assert await outbox.get(forgotten.id) is None


@pytest.mark.parametrize("statement", ["INSERT OR ROLLBACK INTO once VALUES (1)", "\ufeffCOMMIT", "\ufeff ROLLBACK"])
async def test_p1_a_hook_cannot_commit_or_enqueue_beside_its_transaction(world: World, statement: str) -> None:
    """Whatever it does to its transaction, what it enqueues exists exactly when its end is heard."""

    async def enqueue_after(action: EndedAction, tx: Transaction) -> None:
        if action.idempotency_key == "a":
            with contextlib.suppress(Exception):  # a hook that swallows what it is told
                await tx.execute(statement)
            await tx.enqueue(ActionRequest(kind="scripted", idempotency_key="follow", payload={}))
            raise ValueError

    adapter = HookedAdapter(enqueue_after)
    outbox, executor = await world.running(adapter)
    world.sql("CREATE TABLE once (n INTEGER UNIQUE)")
    world.sql("INSERT INTO once VALUES (1)")
    asked = await outbox.enqueue(request("a"))
    await executor.until_idle()
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert await outbox.get(key="follow") is None
    assert adapter.writes == ["a"]


async def test_p9_evidence_of_any_shape_costs_no_result(world: World) -> None:
    """What cannot be stored is dropped; the result is not."""
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    adapter = ScriptedAdapter()
    adapter.on("a", Done(evidence={"deep": nested}))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await executor.until_idle()
    assert outcome(await the(outbox, asked.id)) == ("DONE", "CONFIRMED")


async def test_p6_a_stale_attempt_does_not_cool_its_kind(world: World) -> None:
    """What an attempt says whose action was erased changes nothing, the weather neither."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)

    async def erased(_: Attempt[Any]) -> Result:
        await outbox.erase("acc-7")
        return Defer("no relay", scope="kind")

    adapter.on("a", Step(erased, fence=False))
    await outbox.enqueue(request(subject_account_id="acc-7"))
    await executor.until_idle()
    assert (await outbox.kinds())["scripted"].cooling_until is None


async def test_p10_a_refused_settlement_is_let_go_also_when_the_database_is_locked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane goes on when the lease ends, however long letting go had to be tried."""
    adapter = ScriptedAdapter()
    outbox, _ = await world.running(adapter)
    settle, let_go = outbox.storage.settle, outbox.storage.let_go
    answers: list[Exception] = [ForbiddenByGuard("no")]
    locks: list[Exception] = [DatabaseBusy("locked"), DatabaseBusy("locked")]

    async def refused(*given: Any) -> bool:
        if answers:
            raise answers.pop()
        return await settle(*given)

    async def locked(*given: Any) -> None:
        if locks:
            raise locks.pop()
        await let_go(*given)

    monkeypatch.setattr(outbox.storage, "settle", refused)
    monkeypatch.setattr(outbox.storage, "let_go", locked)
    first = await outbox.enqueue(request("a", lane_key="lane"))
    second = await outbox.enqueue(request("b", lane_key="lane"))
    async with asyncio.timeout(10):
        while (await the(outbox, first.id)).lease_owner is not None or not adapter.writes:
            await outbox.storage.changed(outbox.storage.mark(), 0.05)
    await world.passes(121.0)
    assert outcome(await ended(outbox, first.id)) == ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")
    assert outcome(await ended(outbox, second.id)) == ("DONE", "CONFIRMED")


async def test_p9_a_result_is_given_up_only_for_what_the_database_says_of_the_row(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever else is amiss, such as a right that is missing, is said once, and the result recorded when it is not."""
    adapter = ScriptedAdapter()
    outbox, _ = await world.running(adapter)
    settle = outbox.storage.settle
    answers: list[Exception] = [StorageError("no right"), StorageError("no right"), NoSchema("no tables")]

    async def refused(*given: Any) -> bool:
        if answers:
            raise answers.pop()
        return await settle(*given)

    monkeypatch.setattr(outbox.storage, "settle", refused)
    asked = await outbox.enqueue(request("a"))
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    said = [record.__dict__.get("event") for record in caplog.records]
    assert (said.count("action.settle.waits"), "action.settle.refused" in said) == (1, False)


async def test_the_writer_survives_what_its_upkeep_raises(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that fails in an unforeseen way ends no thread: the next call is answered."""

    def broken(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Checkpoints, "due", lambda _: True)
    monkeypatch.setattr(Checkpoints, "run", broken)
    outbox = await world.outbox(ScriptedAdapter())
    async with asyncio.timeout(5):
        await outbox.enqueue(request("a"))
        await outbox.enqueue(request("b"))


async def test_an_outbox_is_opened_once(world: World) -> None:
    """Opening it again is refused, and the first goes on."""
    outbox = await world.outbox(ScriptedAdapter())
    with pytest.raises(StorageError, match="open already"):
        await outbox.open()
    assert (await outbox.enqueue(request())).created


async def test_a_cancelled_read_leaves_nothing_behind(world: World) -> None:
    """Reads keep no snapshot: what was cancelled is not seen by the next one."""
    outbox: Outbox = await world.outbox(ScriptedAdapter())
    asked = await outbox.enqueue(request())
    for _ in range(20):
        reading = asyncio.create_task(outbox.why(asked.id))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await outbox.withdraw(asked.id)
    assert (await the(outbox, asked.id)).state == "CANCELLED"
    assert (await outbox.why(asked.id)).startswith("Action 1 (scripted) ended CANCELLED: WITHDRAWN; ")


async def test_until_idle_leaves_a_sweep_its_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is under way when nothing else is due is not cut short by the end of the program."""
    outbox = await world.outbox(ScriptedAdapter(retention_days=1))
    asked = await outbox.enqueue(request())
    await Executor(outbox, clock=world.clock).run(until_idle=True)
    world.clock.advance(86_400)
    executor = Executor(outbox, clock=world.clock)
    honest = outbox.storage.sweep

    async def late(kinds: Sequence[str], limit: int = 500) -> int:
        await until(executor._idle.is_set)
        return await honest(kinds, limit)

    monkeypatch.setattr(outbox.storage, "sweep", late)
    await executor.run(until_idle=True)
    assert await outbox.get(asked.id) is None


async def test_an_executor_that_never_lives_for_a_minute_sweeps_too(world: World) -> None:
    """A program that is run now and then until nothing is due would keep what has ended for ever."""
    outbox = await world.outbox(ScriptedAdapter(retention_days=1))
    asked = await outbox.enqueue(request())
    await Executor(outbox, clock=world.clock).run(until_idle=True)
    assert (await the(outbox, asked.id)).ended
    world.clock.advance(86_400)
    await Executor(outbox, clock=world.clock).run(until_idle=True)
    assert await outbox.get(asked.id) is None
