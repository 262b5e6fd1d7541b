"""P9: a result that the adapter returned is recorded, also when the database is locked or full for a while."""

import asyncio
import logging
from typing import Any

import pytest

from edgeoutbox import Done, EndedAction, Outbox, Transaction
from edgeoutbox.testing import HookedAdapter, ScriptedAdapter, Step, until
from tests.executor.world import World, ended, last_attempt, outcome, request, sqlite_only, the


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    """The log's records of one event."""
    return [record for record in caplog.records if record.__dict__.get("event") == name]


@sqlite_only("Postgres has no lock that stops every writer")
async def test_p9_locked_for_longer_than_the_busy_timeout(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A foreign transaction holds the lock through several busy timeouts: the result is stored after it, said once."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("a", Step(Done("msg-1", evidence={"code": 250}), gate=gate))
    outbox = await world.outbox(adapter, busy_timeout=20)
    executor = await world.executor(outbox)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    foreign = world.connect()
    foreign.execute("BEGIN IMMEDIATE")
    refused = [0]
    settle = outbox.storage.settle

    async def counted(*args: Any) -> bool:
        try:
            return await settle(*args)
        except Exception:
            refused[0] += 1
            raise

    outbox.storage.settle = counted  # type: ignore[method-assign, assignment]
    gate.set()
    await until(lambda: refused[0] >= 3)
    assert executor._running
    foreign.execute("ROLLBACK")
    foreign.close()
    action = await ended(outbox, asked.id)
    assert (outcome(action), action.readback_ref) == (("DONE", "CONFIRMED"), "msg-1")
    assert dict((await last_attempt(outbox, asked.id)).evidence) == {"code": 250}
    assert adapter.writes == ["a"]
    await until(lambda: len(events(caplog, "storage.available")) == 1)
    assert len(events(caplog, "storage.unavailable")) == 1


async def test_p9_a_reference_that_is_known_already_is_kept(world: World) -> None:
    """An application wrote down what the provider calls it, and the adapter's result names nothing."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("a", Step(Done(), gate=gate))
    outbox = await world.outbox(adapter)
    await world.executor(outbox)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    world.sql("UPDATE agent_action SET readback_ref = 'theirs'")
    gate.set()
    action = await ended(outbox, asked.id)
    assert (outcome(action), action.readback_ref) == (("DONE", "CONFIRMED"), "theirs")


@sqlite_only("it is the writer's own limit of pages; a server's disk fills for everybody")
@pytest.mark.parametrize("hooked", [True, False])
async def test_p9_the_disk_is_full_for_a_while(world: World, hooked: bool) -> None:
    """While no page can be added, the result waits; it is stored when there is room, without another call."""
    gate = asyncio.Event()

    async def hook(_: EndedAction, tx: Transaction) -> None:
        await tx.execute("INSERT INTO heard VALUES (zeroblob(20000))")

    adapter = HookedAdapter(hook) if hooked else ScriptedAdapter()
    adapter.on("a", Step(Done("msg-1", evidence={"text": "x" * 4000}), gate=gate))
    outbox = await world.outbox(adapter)
    world.sql("CREATE TABLE heard (words BLOB)")
    executor = await world.executor(outbox)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    await limit_pages(outbox, 1)
    gate.set()
    await until(lambda: not executor._reports.storage_works)
    assert (await the(outbox, asked.id)).state == "EXECUTING"
    await limit_pages(outbox, 1_000_000)
    action = await ended(outbox, asked.id)
    assert (outcome(action), action.readback_ref) == (("DONE", "CONFIRMED"), "msg-1")
    assert adapter.writes == ["a"]
    if hooked:
        await until(lambda: world.sql("SELECT COUNT(*) FROM heard") == [(1,)])


async def limit_pages(outbox: Outbox, pages: int) -> None:
    """Let the writer's connection add no page above this number (or above the file's size, if that is higher)."""
    committer = outbox.storage._committer  # type: ignore[attr-defined]
    await committer.submit(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}"))


@sqlite_only("it is the writer's own limit of pages; a server's disk fills for everybody")
async def test_p9_a_full_disk_refuses_enqueues_and_fences_clearly(world: World) -> None:
    """While the disk is full an enqueue raises a clear error and stores nothing half; afterwards it works by itself."""
    outbox, _ = await world.running(ScriptedAdapter())
    producer = await world.outbox()
    await limit_pages(producer, 1)
    big = request("big", payload={"text": "x" * 100_000})
    with pytest.raises(Exception, match="cannot be used now"):
        await producer.enqueue(big)
    assert await producer.get(key="big") is None
    await limit_pages(producer, 1_000_000)
    plain = request("plain")
    assert (await producer.enqueue(big)).created
    assert outcome(await ended(outbox, (await producer.enqueue(plain)).id)) == ("DONE", "CONFIRMED")


@sqlite_only("Postgres has no lock that stops every writer")
async def test_p9_the_executor_recovers_by_itself_and_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Claims that fail for a while are one line when it begins and one when it ends; then the work goes on."""
    adapter = ScriptedAdapter()
    outbox = await world.outbox(adapter, busy_timeout=10)
    executor = await world.executor(outbox)
    await executor.until_idle()
    failed = [0]
    claim = outbox.storage.claim

    async def counted(*args: Any, **options: Any) -> Any:
        try:
            return await claim(*args, **options)
        except Exception:
            failed[0] += 1
            raise

    outbox.storage.claim = counted  # type: ignore[method-assign]
    foreign = world.connect()
    foreign.execute("BEGIN IMMEDIATE")
    foreign.execute("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('scripted', 'a', '{}')")
    outbox.wake()
    await until(lambda: failed[0] >= 1)
    outbox.wake()
    await until(lambda: failed[0] >= 2)
    foreign.execute("COMMIT")
    foreign.close()
    await adapter.wait_for_writes("a")
    await until(lambda: len(events(caplog, "storage.available")) == 1)
    assert len(events(caplog, "storage.unavailable")) == 1
    assert len(caplog.records) < 10


@sqlite_only("a long reader is in the way of checkpoints of SQLite; to Postgres it is nothing")
async def test_p9_a_long_reader_stops_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign connection that keeps a snapshot open for the whole time neither blocks claims nor settlements."""
    monkeypatch.setattr("edgeoutbox.storage.sqlite.checkpoints.CHECKPOINT_AT", 1)
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    reader = world.connect()
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM agent_action")
    asked = await outbox.enqueue_many([request(f"k{n}") for n in range(50)])
    for one in asked:
        assert outcome(await ended(outbox, one.id)) == ("DONE", "CONFIRMED")
    await executor.until_idle()
    assert reader.execute("SELECT COUNT(*) FROM agent_action") == [(0,)]
    reader.close()


async def test_p9_a_settlement_that_is_refused_is_kept(world: World) -> None:
    """A result that comes after the action was ended by somebody else fills its row of the log, unrecorded."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("a", Step(Done("late", evidence={"code": 250}), gate=gate))
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    world.sql("UPDATE agent_action SET state = 'UNCERTAIN', stop_reason = 'LEASE_LOST_AFTER_WRITE', payload = NULL")
    gate.set()
    await until(lambda: world.sql("SELECT recorded FROM agent_action_attempt") == [(0,)])
    record = await last_attempt(outbox, asked.id)
    assert (record.result, record.readback_ref, dict(record.evidence)) == ("Done", "late", {"code": 250})
    assert outcome(await the(outbox, asked.id)) == ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")
