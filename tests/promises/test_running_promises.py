"""Promises that concern the running executor: P1, P2, P5, P6, P7, P10, P11, P13 and P14."""

import asyncio
import random
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiosqlite
import apsw
import pytest

from edgeoutbox import (
    Attempt,
    Defer,
    Done,
    Executor,
    FenceRefused,
    KeyOfAnotherKind,
    Outbox,
    Result,
    Retry,
    State,
    Uncertain,
    UnknownVariant,
    key_suffix,
)
from edgeoutbox.errors import DatabaseBusy
from edgeoutbox.storage.sqlite.drivers import ApswDriver
from edgeoutbox.testing import ScriptedAdapter, Step, drain, until
from tests.executor.processes import calls, program, run_python
from tests.executor.world import DATABASE_ERRORS, DRIVERS, DriverType, World, ended, outcome, request, sqlite_only, the


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.copy)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A database for programs of their own, on the machine's clock."""
    driver: DriverType = request.param
    return World(tmp_path / "app.db", driver)


@pytest.mark.parametrize("commits", [True, False])
async def test_p1_the_callers_transaction_decides(real: World, commits: bool) -> None:
    """An action enqueued on the caller's connection is sent when that commits, and never when it rolls back."""
    adapter = ScriptedAdapter()
    async with Outbox(real.url, [adapter]) as outbox, Executor(outbox):
        if real.driver is ApswDriver:
            own: Any = apsw.Connection(str(real.path))
        else:
            own = await aiosqlite.connect(real.path, isolation_level=None)

        async def do(sql: str) -> None:
            answer = own.execute(sql)
            if not isinstance(own, apsw.Connection):
                await answer

        await do("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        await do("BEGIN IMMEDIATE")
        await do("INSERT INTO orders VALUES (42)")
        asked = await outbox.enqueue(request(), connection=own)
        assert await outbox.get(asked.id) is None
        await do("COMMIT" if commits else "ROLLBACK")
        after = await outbox.enqueue(request("after"))
        await ended(outbox, after.id)
        if commits:
            assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
            assert sorted(adapter.writes) == ["a", "after"]
        else:
            assert await outbox.get(key="a") is None
            assert adapter.writes == ["after"]
        closing = own.close()
        if closing is not None:
            await closing


KILLED_BEFORE_COMMIT = """
import os, signal, sqlite3, sys
from edgeoutbox import ActionRequest, enqueue_sync
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO orders VALUES (42)")
enqueue_sync(ActionRequest(kind="scripted", idempotency_key="a", payload={}), connection)
if sys.argv[2] == "commits":
    connection.execute("COMMIT")
os.kill(os.getpid(), signal.SIGKILL)
"""


@sqlite_only("the other program speaks to a file")
@pytest.mark.parametrize("commits", ["commits", "does not"])
async def test_p1_killed_around_the_commit(world: World, commits: str) -> None:
    """A program killed before its commit leaves neither its row nor its action; killed after it, both."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    world.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    killed = await asyncio.to_thread(run_python, KILLED_BEFORE_COMMIT, str(world.path), commits)
    assert killed.returncode == -9
    if commits == "commits":
        world.clock.set_wall(3600.0)
        await adapter.wait_for_writes("a")
    await executor.until_idle()
    there = int(commits == "commits")
    assert world.sql("SELECT COUNT(*) FROM orders") == [(there,)]
    assert len(adapter.writes) == there
    assert (await outbox.get(key="a") is not None) == bool(there)


async def test_p2_once_per_key(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A repeat returns the first action, in every state; other content is said and logged, another kind refused."""
    adapter = ScriptedAdapter()
    await world.running(adapter, ScriptedAdapter("other"))
    outbox = await world.outbox()
    first = await outbox.enqueue(request("a", payload={"n": 1}, lane_key="lane"))
    await ended(outbox, first.id)
    again = await outbox.enqueue(request("a", payload={"n": 1}, lane_key="lane"))
    assert (again.id, again.created, again.same_content, again.state) == (first.id, False, True, State.DONE)
    for different in (request("a", payload={"n": 2}, lane_key="lane"), request("a", payload={"n": 1})):
        caplog.clear()
        assert (await outbox.enqueue(different)).same_content is False
        assert [record.__dict__["event"] for record in caplog.records] == ["action.key.reused"]
    with pytest.raises(KeyOfAnotherKind, match=f"action {first.id} of kind scripted"):
        await outbox.enqueue(request("a", kind="other"))
    assert adapter.writes == ["a"]


async def test_p2_many_at_once_make_one(world: World) -> None:
    """Fifty concurrent enqueues of one key are one action, sent once."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    answers = await asyncio.gather(*[outbox.enqueue(request("a")) for _ in range(50)])
    await executor.until_idle()
    assert len({answer.id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1
    assert adapter.writes == ["a"]


@pytest.mark.parametrize("seed", range(2))
async def test_p5_lanes_keep_their_order(world: World, seed: int) -> None:  # noqa: C901 - one story, told once
    """With retries, deferrals, proposals and two executors, first attempts of a lane start in id order, alone."""
    dice = random.Random(seed)  # noqa: S311 - a schedule, no secret
    began: dict[str, list[int]] = defaultdict(list)
    inside: dict[str, int] = defaultdict(int)

    async def watched(attempt: Attempt[Any]) -> Result:
        lane = str(attempt.action.lane_key)
        inside[lane] += 1
        assert inside[lane] == 1
        if attempt.action.id not in began[lane]:
            began[lane].append(attempt.action.id)
        await asyncio.sleep(0)
        inside[lane] -= 1
        if dice.random() < 0.3:
            return Retry("421", wait=2.0) if dice.random() < 0.5 else Defer("450", wait=3.0)
        await attempt.begin_write()
        return Done()

    adapters = [ScriptedAdapter(concurrency=32), ScriptedAdapter(concurrency=32)]
    for adapter in adapters:
        for n in range(120):
            adapter.on(f"k{n}", *[Step(watched, fence=False)] * 40)
    outbox = await world.outbox(adapters[0])
    proposals = []
    for n in range(120):
        asked = request(f"k{n}", lane_key=f"lane{n % 15}", due_at=world.clock.milliseconds + dice.randrange(0, 5000))
        if n % 10 == 0:
            proposals.append((await outbox.propose(asked)).id)
        else:
            await outbox.enqueue(asked)
    await world.executor(outbox)
    other = await world.outbox(adapters[1])
    await world.executor(other)
    for _ in range(3000):
        if proposals and dice.random() < 0.2:
            proposal = await the(outbox, proposals.pop(0))
            await outbox.admit(proposal.id, "ops", proposal.payload_digest or "")
        [(left,)] = world.sql("SELECT COUNT(*) FROM agent_action WHERE ended_at IS NULL")
        if left == 0:
            break
        await world.passes(1.0)
        await asyncio.sleep(0.002)
    assert sum(len(ids) for ids in began.values()) == 120
    for ids in began.values():
        assert ids == sorted(ids)


async def test_p5_what_waits_holds_its_lane(world: World) -> None:
    """A retry, a later due time and a proposal hold what stands behind them; another lane passes them."""
    adapter = ScriptedAdapter()
    adapter.on("r1", Retry("421", wait=100.0))
    outbox, executor = await world.running(adapter)
    await outbox.enqueue(request("r1", lane_key="r"))
    await outbox.enqueue(request("d1", lane_key="d", due_at=world.clock.milliseconds + 100_000))
    await outbox.propose(request("p1", lane_key="p"))
    for lane in "rdp":
        await outbox.enqueue(request(f"{lane}2", lane_key=lane))
    await outbox.enqueue(request("free", lane_key="free"))
    await outbox.enqueue(request("alone"))
    await executor.until_idle()
    await until(lambda: executor.metrics.total("action.attempts") == 3)
    assert [call.key for call in adapter.calls if call.key[-1] == "2"] == []
    await drain(executor, world.clock)
    assert [key for key in adapter.writes if key.startswith("r")] == ["r1", "r1", "r2"]
    assert [key for key in adapter.writes if key.startswith("d")] == ["d1", "d2"]
    assert [key for key in adapter.writes if key.startswith("p")] == []


async def test_p5_what_comes_while_its_lane_executes_waits(world: World) -> None:
    """Enqueued beside a running attempt, an action does not overtake its retry."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("first", Step(Retry("421", wait=100.0), gate=gate))
    outbox, executor = await world.running(adapter)
    await outbox.enqueue(request("first", lane_key="lane"))
    await adapter.wait_for_writes("first")
    await outbox.enqueue(request("second", lane_key="lane"))
    gate.set()
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    await executor.until_idle()
    assert [call.key for call in adapter.calls] == ["first"]
    await drain(executor, world.clock)
    assert adapter.writes == ["first", "first", "second"]


@pytest.mark.parametrize("how", ["erased", "ended by sql", "reclaimed"])
async def test_p6_a_stale_attempt_changes_nothing(world: World, how: str) -> None:
    """Once the action was erased, ended or claimed again, the running attempt gets no fence and settles nothing."""
    gate = asyncio.Event()
    refused: list[bool] = []

    async def late(attempt: Attempt[Any]) -> Result:
        await gate.wait()
        try:
            await attempt.begin_write()
        except FenceRefused:
            refused.append(True)
            raise
        return Done("stale")

    adapter = ScriptedAdapter()
    adapter.on("a", Step(late, fence=False))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request(subject_account_id="p1"))
    await adapter.wait_for_calls("a")
    if how == "erased":
        await outbox.erase("p1")
    elif how == "ended by sql":
        world.sql("UPDATE agent_action SET state = 'UNCERTAIN', stop_reason = 'LEASE_LOST_AFTER_WRITE', payload = NULL")
    else:
        next(iter(executor._running._attempts)).deadline += 10_000.0
        await world.passes(121.0)
        world.sql(
            "UPDATE agent_action SET epoch = 2, attempt = 2, lease_owner = 'x', lease_expires_at = ?",
            world.clock.milliseconds + 120_000,
        )
    before = world.sql("SELECT * FROM agent_action")
    gate.set()
    await until(lambda: not executor._running)
    assert refused == [True]
    assert world.sql("SELECT * FROM agent_action") == before
    assert asked.id == 1


async def test_p7_the_fence_is_committed_before_the_adapter_goes_on(world: World) -> None:
    """What `begin_write` returned is in the file for every other connection, with its time in the dispatch log."""
    seen: list[list[tuple[Any, ...]]] = []

    async def look(attempt: Attempt[Any]) -> Result:
        await attempt.begin_write()
        seen.append(
            world.sql("SELECT write_started_at, (SELECT write_started_at FROM agent_action_attempt) FROM agent_action")
        )
        return Done()

    adapter = ScriptedAdapter()
    adapter.on("a", Step(look, fence=False))
    outbox, _ = await world.running(adapter)
    await ended(outbox, (await outbox.enqueue(request())).id)
    assert seen == [[(world.clock.milliseconds, world.clock.milliseconds)]]


@sqlite_only("Postgres has no lock that stops every writer")
async def test_p7_no_call_when_the_fence_cannot_be_stored(world: World) -> None:
    """While another program holds the write lock, no provider is called; the attempt does not count."""
    adapter = ScriptedAdapter()
    at, go_on, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly(attempt: Attempt[Any]) -> Result:
        at.set()
        await go_on.wait()
        try:
            await attempt.begin_write()
        except DatabaseBusy:
            refused.set()
            raise
        adapter.writes.append("a")
        return Done()

    adapter.on("a", *[Step(slowly, fence=False)] * 3)
    outbox = await world.outbox(adapter, busy_timeout=20)
    executor = await world.executor(outbox)
    asked = await outbox.enqueue(request())
    await at.wait()
    foreign = world.connect()
    foreign.execute("BEGIN IMMEDIATE")
    go_on.set()
    await asyncio.wait_for(refused.wait(), 10)
    assert adapter.writes == []
    foreign.execute("ROLLBACK")
    foreign.close()
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    assert (await the(outbox, asked.id)).attempt == 0
    await world.passes(1.1)
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert adapter.writes == ["a"]


async def test_p10_an_action_that_kills_its_process(real: World, tmp_path: Path) -> None:
    """It ends ATTEMPTS_EXHAUSTED after as many crashes as it has attempts, each of them logged; its lane goes on."""
    record = tmp_path / "record"
    async with Outbox(real.url) as outbox:
        poison = await outbox.enqueue(request("poison", kind="file", payload={"dies": "exits"}, lane_key="lane"))
        behind = await outbox.enqueue(request("behind", kind="file", lane_key="lane"))
        crashes = 0
        for _ in range(5):
            with program(real.url, record, "--lease", "0.3", "--until-idle") as process:
                crashes += await asyncio.to_thread(process.wait, 20.0)
            if (await the(outbox, behind.id)).ended:
                break
            [left] = [(await the(outbox, poison.id)).lease_expires_at or 0]
            await until(lambda: real.sql_now() >= left)  # noqa: B023 - awaited in this turn of the loop
        assert outcome(await the(outbox, poison.id)) == ("FAILED", "ATTEMPTS_EXHAUSTED")
        assert outcome(await the(outbox, behind.id)) == ("DONE", "CONFIRMED")
        assert crashes == 3
        assert [record.result for record in await outbox.attempts(poison.id)] == [None, None, None]
    assert [key for key, _, _ in calls(record)] == ["behind"]


async def test_p10_others_never_wait_for_a_dead_holder(world: World) -> None:
    """While the dead holder's lease runs, other lanes go on; when it ends, so does its own."""
    adapter = ScriptedAdapter()
    outbox = await world.outbox(adapter)
    lost = await outbox.enqueue(request("lost", lane_key="lane"))
    behind = await outbox.enqueue(request("behind", lane_key="lane"))
    other = await outbox.enqueue(request("other", lane_key="other"))
    world.taken("dead", 120_000, f"id = {lost.id}")
    executor = await world.executor(outbox)
    await ended(outbox, other.id)
    await executor.until_idle()
    assert adapter.writes == ["other"]
    await world.passes(120.1)
    await ended(outbox, behind.id)
    assert adapter.writes == ["other", "lost", "behind"]
    assert (await the(outbox, lost.id)).attempt == 2


async def test_p11_two_builds_over_one_database(world: World) -> None:
    """Each build carries out the variants that it knows; the others keep their lane and are not reaped or counted."""
    old = ScriptedAdapter(variants=key_suffix("send"), max_attempts=1)
    new = ScriptedAdapter(variants=key_suffix("send", "retract"), max_attempts=1)
    outbox, executor = await world.running(old)
    producer = await world.outbox()
    first = await producer.enqueue(request("1:send", lane_key="lane"))
    retract = await producer.enqueue(request("1:retract", lane_key="lane", expires_at=world.clock.milliseconds + 10**7))
    behind = await producer.enqueue(request("2:send", lane_key="lane"))
    elsewhere = await producer.enqueue(request("3:send"))
    await ended(outbox, first.id)
    await ended(outbox, elsewhere.id)
    world.taken("newer", 1000, f"id = {retract.id}")
    await world.passes(20_000.0)
    await executor.until_idle()
    unknown = await the(outbox, retract.id)
    assert (unknown.state, unknown.epoch) == (State.EXECUTING, 1)
    assert [action.id for action in await outbox.lane("lane")] == [retract.id, behind.id]
    assert [row.executing for row in await outbox.backlog()] == [0]
    with pytest.raises(UnknownVariant):
        outbox.decode(unknown)
    assert {call.key for call in old.calls} == {"1:send", "3:send"}
    await executor.stop()  # which could run what comes behind while the clock is moved for the other
    _, upgraded = await world.running(new)
    await drain(upgraded, world.clock)
    assert outcome(await the(outbox, retract.id)) == ("CANCELLED", "EXPIRED")
    assert outcome(await the(outbox, behind.id)) == ("DONE", "CONFIRMED")


async def test_p13_a_forgotten_subject_leaves_nothing(world: World) -> None:
    """Erased in every state, with the dispatch log; the running attempt's later writes find nothing."""
    gate = asyncio.Event()
    adapter = ScriptedAdapter()
    adapter.on("runs", Step(Uncertain("no answer"), gate=gate))
    adapter.on("waits", Retry("421", wait=1000.0))
    outbox, executor = await world.running(adapter)
    await ended(outbox, (await outbox.enqueue(request("done", subject_account_id="p1"))).id)
    for key in ("runs", "waits"):
        await outbox.enqueue(request(key, subject_account_id="p1"))
        await adapter.wait_for_writes(key)
    await outbox.propose(request("proposed", subject_account_id="p1"))
    kept = await outbox.enqueue(request("kept", subject_account_id="p2"))
    await ended(outbox, kept.id)
    await until(lambda: executor.metrics.total("action.attempts") == 3)
    assert await outbox.erase("p1") == 4
    gate.set()
    await executor.until_idle()
    assert world.sql("SELECT idempotency_key FROM agent_action") == [("kept",)]
    assert world.sql("SELECT DISTINCT action_id FROM agent_action_attempt") == [(kept.id,)]
    assert world.sql("SELECT * FROM agent_action_ended") == []


@sqlite_only("the write lock of SQLite tells of a transaction; Postgres has no such lock")
async def test_p14_no_transaction_across_a_provider_call(world: World) -> None:
    """From inside the adapter, before and behind its fence, another program gets the write lock at once."""
    locked: list[str] = []

    async def call(attempt: Attempt[Any]) -> Result:
        for moment in ("before", "behind"):
            foreign = world.connect()
            try:
                foreign.execute("PRAGMA busy_timeout = 0")
                await until(lambda foreign=foreign: begins(foreign))  # type: ignore[misc]
                foreign.execute("ROLLBACK")
                locked.append(moment)
            finally:
                foreign.close()
            if moment == "before":
                await attempt.begin_write()
        return Done()

    def begins(foreign: Any) -> bool:
        try:
            foreign.execute("BEGIN IMMEDIATE")
        except DATABASE_ERRORS:
            return False
        return True

    adapter = ScriptedAdapter()
    adapter.on("a", Step(call, fence=False))
    outbox, _ = await world.running(adapter)
    await ended(outbox, (await outbox.enqueue(request())).id)
    assert locked == ["before", "behind"]
    assert sqlite3.threadsafety >= 1
