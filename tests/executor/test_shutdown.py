"""Stopping: what runs is recorded as what it means now, and no thread keeps a process alive."""

import asyncio
import logging
import signal
import threading
from typing import Any

import pytest

from edgeoutbox import Attempt, Done, Executor, Reread, Result, State
from edgeoutbox.testing import ScriptedAdapter, Step, until
from tests.executor.processes import run_python
from tests.executor.world import DRIVERS, DriverType, World, ended, outcome, request, sqlite_only, the


class ClosedAdapter(ScriptedAdapter):
    """A scripted adapter that notes when it is closed."""

    closed = 0

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1


async def test_attempts_finish_within_the_grace_period(world: World) -> None:
    """A stop waits for what runs, claims nothing more, leaves nothing executing and closes the adapter."""
    gate = asyncio.Event()
    adapter = ClosedAdapter()
    adapter.on("a", Step(gate=gate))
    outbox, executor = await world.running(adapter, grace=10.0)
    asked = await outbox.enqueue(request(lane_key="lane"))
    behind = await outbox.enqueue(request("b", lane_key="lane"))
    await adapter.wait_for_writes("a")
    await until(lambda: not executor._taking)
    stopping = asyncio.ensure_future(executor.stop())
    await asyncio.sleep(0)
    assert adapter.closed == 0
    gate.set()
    await stopping
    assert outcome(await the(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert (await the(outbox, behind.id)).state is State.ADMITTED
    assert (adapter.closed, adapter.writes) == (1, ["a"])
    assert world.sql("SELECT COUNT(*) FROM agent_action_executor") == [(0,)]


@pytest.mark.parametrize(
    ("delivery", "fence", "then"),
    [
        ("at_most_once", False, ("ADMITTED", 0, False)),
        ("at_most_once", True, ("UNCERTAIN", 1, True)),
        ("reads_back", True, ("EXECUTING", 1, True)),
        ("reads_back", False, ("ADMITTED", 0, False)),
        ("writes_nothing", False, ("ADMITTED", 0, False)),
    ],
)
@pytest.mark.parametrize("deaf", [False, True])
async def test_what_a_stop_means_now(
    world: World, monkeypatch: pytest.MonkeyPatch, deaf: bool, delivery: str, fence: bool, then: tuple[str, int, bool]
) -> None:
    """After the grace period: unfenced is given back and does not count; fenced is uncertain, or to be read back."""
    monkeypatch.setattr("edgeoutbox.executor.running.OVERRUN", 0.1)
    release = asyncio.Event()

    async def hangs(_: Attempt[Any]) -> Result:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                if not deaf:
                    raise
        return Done()

    adapter = ScriptedAdapter(delivery=delivery)
    adapter.on("a", Step(hangs, fence=fence))
    outbox, executor = await world.running(adapter, grace=0.0)
    asked = await outbox.enqueue(request())
    await (adapter.wait_for_writes("a") if fence else adapter.wait_for_calls("a"))
    await executor.stop()
    action = await the(outbox, asked.id)
    assert (action.state.value, action.attempt, action.write_started_at is not None) == then
    assert action.lease_owner is None
    assert [record.recorded for record in await outbox.attempts(asked.id)] == [True]
    release.set()
    await asyncio.sleep(0.01)
    assert (await the(outbox, asked.id)).state.value == then[0]


async def test_a_stop_that_is_cancelled_ends_the_grace_period(world: World) -> None:
    """Whoever cannot wait for the grace period still gets every attempt settled."""
    adapter = ScriptedAdapter()
    adapter.on("a", Step(hangs=True))
    outbox, executor = await world.running(adapter, grace=600.0)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(executor.stop(), 0.05)
    assert outcome(await the(outbox, asked.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")
    assert world.sql("SELECT COUNT(*) FROM agent_action_executor") == [(0,)]


async def test_a_stop_leaves_a_settlement_its_time(world: World) -> None:
    """What the provider confirmed is recorded, although the grace period is over before the database has taken it."""
    settling, over, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hangs(_: Attempt[Any]) -> Result:
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return Done()

    adapter = ScriptedAdapter()
    adapter.on("b", Step(hangs))
    outbox = await world.outbox(adapter)
    settle = outbox.storage.settle

    async def slow(*args: Any) -> bool:
        settling.set()
        await go_on.wait()
        return await settle(*args)

    outbox.storage.settle = slow  # type: ignore[method-assign, assignment]
    executor = await world.executor(outbox, grace=0.0)
    confirmed = await outbox.enqueue(request("a"))
    await settling.wait()
    running = await outbox.enqueue(request("b"))
    await adapter.wait_for_writes("b")
    stopping = asyncio.ensure_future(executor.stop())
    await over.wait()
    go_on.set()
    await stopping
    assert outcome(await the(outbox, confirmed.id)) == ("DONE", "CONFIRMED")
    assert outcome(await the(outbox, running.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")


async def test_a_stop_in_the_middle_of_a_claim_leaves_nothing_executing(world: World) -> None:
    """What was claimed while the stop came is begun, cancelled and given back, not left to its lease."""
    adapter = ScriptedAdapter()
    for key in "abc":
        adapter.on(key, Step(hangs=True, fence=False))
    outbox = await world.outbox(adapter)
    claim = outbox.storage.claim
    claimed, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **options: Any) -> Any:
        claims = await claim(*args, **options)
        if claims:
            claimed.set()
            await go_on.wait()
        return claims

    outbox.storage.claim = slow  # type: ignore[method-assign]
    await outbox.enqueue_many([request(key) for key in "abc"])
    executor = await world.executor(outbox, grace=0.0)
    await claimed.wait()
    stopping = asyncio.ensure_future(executor.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([stopping])
    assert world.sql("SELECT DISTINCT state, attempt FROM agent_action") == [("ADMITTED", 0)]


@sqlite_only("Postgres has no lock that stops every writer")
async def test_a_stop_while_the_database_is_locked_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the database takes no settlement, a stop does not wait for it for ever; the lease decides."""
    monkeypatch.setattr("edgeoutbox.executor.running.OVERRUN", 0.1)
    adapter = ScriptedAdapter()
    adapter.on("a", Step(hangs=True))
    outbox = await world.outbox(adapter, busy_timeout=10)
    executor = await world.executor(outbox, grace=0.0)
    asked = await outbox.enqueue(request())
    await adapter.wait_for_writes("a")
    foreign = world.connect()
    foreign.execute("BEGIN IMMEDIATE")
    await asyncio.wait_for(executor.stop(), 5.0)
    foreign.execute("ROLLBACK")
    foreign.close()
    assert (await the(outbox, asked.id)).state is State.EXECUTING
    await world.passes(121.0)
    await world.executor(outbox)
    assert outcome(await ended(outbox, asked.id)) == ("UNCERTAIN", "LEASE_LOST_AFTER_WRITE")


async def test_an_embedded_executor_installs_no_signal_handlers(world: World) -> None:
    """The application's own handlers stay."""
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in watched]
    outbox, _ = await world.running(ScriptedAdapter())
    await ended(outbox, (await outbox.enqueue(request())).id)
    assert [signal.getsignal(number) for number in watched] == before


async def test_run_ends_when_cancelled_and_when_idle(world: World) -> None:
    """`run()` is a task to cancel; `run(until_idle=True)` ends by itself."""
    adapter = ScriptedAdapter()
    adapter.on("b", Step(Reread("x"), hangs=True))
    outbox = await world.outbox(adapter)
    asked = await outbox.enqueue(request())
    await asyncio.wait_for(Executor(outbox, clock=world.clock).run(until_idle=True), 5.0)
    assert outcome(await the(outbox, asked.id)) == ("DONE", "CONFIRMED")
    running = asyncio.ensure_future(Executor(outbox, clock=world.clock, grace=0.0).run())
    hanging = await outbox.enqueue(request("b"))
    await adapter.wait_for_writes("b")
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert outcome(await the(outbox, hanging.id)) == ("UNCERTAIN", "ERROR_AFTER_WRITE")


async def test_closing_leaves_no_thread(world: World) -> None:
    """After the outbox is closed its threads are gone."""
    before = set(threading.enumerate())
    outbox = await world.outbox(ScriptedAdapter())
    async with Executor(outbox, clock=world.clock):
        await ended(outbox, (await outbox.enqueue(request())).id)
    await outbox.close()
    left = [
        t
        for t in threading.enumerate()
        if t not in before and not t.name.startswith(("asyncio", "edgeoutbox-reader-stop"))
    ]
    await until(lambda: not any(thread.is_alive() for thread in left))


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.copy)
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A database for programs of their own."""
    driver: DriverType = request.param
    return World(tmp_path / "app.db", driver).url


FORGETS = """
import asyncio, sys
from edgeoutbox import ActionRequest, Executor, Outbox
from edgeoutbox.testing import ScriptedAdapter
kept = []
async def main():
    outbox = Outbox(sys.argv[1], [ScriptedAdapter()])
    kept.append(outbox)
    await outbox.open()
    executor = Executor(outbox)
    kept.append(executor)
    await executor.start()
    asked = await outbox.enqueue(ActionRequest(kind="scripted", idempotency_key="a", payload={}))
    print((await outbox.wait(asked.id, 10)).state)
    {end}
asyncio.run(main())
print("over")
"""


@pytest.mark.parametrize(
    ("end", "returncode"),
    [
        ("return", 0),
        ("raise RuntimeError('crash')", 1),
        ("raise KeyboardInterrupt", -2),
        ("import signal, os; os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(60)", -2),
        ("asyncio.get_running_loop().stop(); await asyncio.sleep(60)", 1),
        ("sys.exit(3)", 3),
    ],
    ids=["returns", "raises", "keyboard-interrupt", "sigint", "loop-stopped", "exits"],
)
def test_a_program_that_forgets_to_close_still_ends(url: str, end: str, returncode: int) -> None:
    """Outbox and executor held in a global, never closed: the process ends as it would without them."""
    ran = run_python(FORGETS.replace("{end}", end), url)
    assert ran.stdout.startswith("DONE\n")
    assert ran.returncode in {returncode, 130 if returncode == -2 else returncode}
    if returncode == 0:
        assert ran.stdout == "DONE\nover\n"


CLOSED_LOOP = """
import asyncio, sys
from edgeoutbox import ActionRequest, Outbox
loop = asyncio.new_event_loop()
outbox = Outbox(sys.argv[1])
loop.run_until_complete(outbox.open())
task = loop.create_task(outbox.enqueue(ActionRequest(kind="scripted", idempotency_key="a", payload={})))
loop.run_until_complete(asyncio.sleep(0))
loop.run_until_complete(asyncio.sleep(0))
task._log_destroy_pending = False
loop.close()
async def again():
    async with Outbox(sys.argv[1]) as second:
        found = await second.get(key="a")
        print(found is None or found.state == "ADMITTED")
        print((await second.enqueue(ActionRequest(kind="scripted", idempotency_key="b", payload={}))).created)
asyncio.run(again())
"""


def test_a_closed_event_loop_leaves_no_open_transaction(url: str) -> None:
    """A loop closed under an enqueue: it happened or it did not, nothing is locked, and the process ends."""
    ran = run_python(CLOSED_LOOP, url)
    assert (ran.stdout, ran.returncode) == ("True\nTrue\n", 0), ran.stderr


PLAIN = """
import sqlite3, sys
from edgeoutbox import ActionRequest, background
from edgeoutbox.testing import ScriptedAdapter
def ask(key):
    return ActionRequest(kind="scripted", idempotency_key=key, payload={})
adapter = ScriptedAdapter()
with background(sys.argv[1], [adapter]) as outbox:
    print(outbox.wait(outbox.enqueue(ask("a")).id, 10).state)
    if not sys.argv[1].startswith("sqlite+apsw"):
        own = sqlite3.connect(sys.argv[2], isolation_level=None)
        own.execute("CREATE TABLE orders (id INTEGER)")
        own.execute("BEGIN IMMEDIATE")
        own.execute("INSERT INTO orders VALUES (42)")
        asked = outbox.enqueue(ask("b"), connection=own)
        assert outbox.get(asked.id) is None
        own.execute("COMMIT")
        print(outbox.wait(asked.id, 10).state)
        own.execute("BEGIN IMMEDIATE")
        undone = outbox.enqueue(ask("c"), connection=own)
        own.execute("ROLLBACK")
        assert outbox.get(key="c") is None
        own.close()
    else:
        print(outbox.wait(outbox.enqueue(ask("b")).id, 10).state)
    assert [one.created for one in outbox.enqueue_many([ask("d"), ask("a")])] == [True, False]
    print(len(outbox.list(kind="scripted").actions))
print(sorted(adapter.writes)[:2])
"""


def test_background_in_a_plain_program(url: str, tmp_path: Any) -> None:
    """A program without asyncio enqueues, also on its own sqlite3 connection, and its executor carries it out."""
    ran = run_python(PLAIN, url, str(tmp_path / "app.db"))
    assert (ran.stdout, ran.returncode) == ("DONE\nDONE\n3\n['a', 'b']\n", 0), ran.stderr


WITHOUT_ADAPTERS = """
import sys
from edgeoutbox import ActionRequest, NotClaimable, background
with background(sys.argv[1]) as outbox:
    asked = outbox.enqueue(ActionRequest(kind="scripted", idempotency_key="a", payload={}))
    print(outbox.why(asked.id))
    try:
        outbox.run_now(asked.id)
    except NotClaimable as error:
        print(error)
try:
    with background("nonsense://x"):
        pass
except ValueError as error:
    print(type(error).__name__)
try:
    with background(sys.argv[1]) as outbox:
        raise KeyError("mine")
except KeyError as error:
    print(error)
"""


def test_background_without_adapters_only_enqueues(url: str) -> None:
    """run_now says what is missing, a wrong URL is the caller's error, and the block's own exception passes through."""
    ran = run_python(WITHOUT_ADAPTERS, url)
    why = "Action 1 (scripted) waits because no running executor serves its kind.\n"
    assert (ran.stdout, ran.returncode) == (f"{why}{why}ConfigurationError\n'mine'\n", 0), ran.stderr


FORGOTTEN_BACKGROUND = """
import sys
from edgeoutbox import background
from edgeoutbox.testing import ScriptedAdapter
held = background(sys.argv[1], [ScriptedAdapter()])
outbox = held.__enter__()
print("over")
"""


def test_a_background_that_is_never_left_lets_the_program_end(url: str) -> None:
    """Its thread does not keep the process alive."""
    ran = run_python(FORGOTTEN_BACKGROUND, url)
    assert (ran.stdout, ran.returncode) == ("over\n", 0), ran.stderr


ENQUEUES = """
import sqlite3, sys
own = sqlite3.connect(sys.argv[1])
own.execute("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('scripted', 'a', '{}')")
own.commit()
"""


@sqlite_only("the other program speaks to a file; the conformance suite asks the same of Postgres")
async def test_a_commit_of_another_process_wakes_the_executor(world: World) -> None:
    """An idle executor starts what another program commits, long before its slowest look at the database."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    await executor.until_idle()
    world.clock.set_wall(3600.0)
    await executor.until_idle()
    now = asyncio.get_running_loop().time
    await until(lambda: executor._timer is not None and executor._timer.when() - now() > 30.0)
    ran = await asyncio.to_thread(run_python, ENQUEUES, str(world.path))
    if ran.returncode:
        pytest.fail(ran.stderr)
    await adapter.wait_for_writes("a", timeout=5.0)
    assert outbox.storage.mark() is not None


async def test_a_local_commit_wakes_the_executor(world: World) -> None:
    """So does an enqueue of the same process, and an admission."""
    adapter = ScriptedAdapter()
    outbox, executor = await world.running(adapter)
    await executor.until_idle()
    await outbox.enqueue(request())
    await adapter.wait_for_writes("a", timeout=5.0)
    proposal = await outbox.propose(request("b"))
    await executor.until_idle()
    action = await the(outbox, proposal.id)
    await outbox.admit(proposal.id, "ops", action.payload_digest or "")
    await adapter.wait_for_writes("b", timeout=5.0)


async def test_stopping_twice_and_starting_none(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A second stop does nothing, and a stop that was never started neither."""
    outbox = await world.outbox(ScriptedAdapter())
    executor = Executor(outbox, clock=world.clock)
    await executor.stop()
    await executor.start()
    await executor.stop()
    await executor.stop()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
