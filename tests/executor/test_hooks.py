"""Ended hooks: in the transaction that ends the action, owed until they succeeded, and never able to hurt it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from edgeoutbox import ActionRequest, EndedAction, Failed, Retry, StopReason, Transaction
from edgeoutbox.storage.sqlite.drivers import ApswDriver
from edgeoutbox.testing import HookedAdapter, ScriptedAdapter, Step, until
from tests.executor.world import World, ended, outcome, request, the

Body = Callable[[EndedAction, Transaction], Awaitable[None]]


def owed(world: World) -> list[tuple[Any, ...]]:
    """What the database says is owed."""
    return world.sql("SELECT action_id, tries FROM agent_action_ended")


async def test_a_hook_moves_a_domain_row_in_the_ending_transaction(world: World) -> None:
    """The application's row and the end of the action become visible at the same commit."""
    seen: list[list[tuple[Any, ...]]] = []

    async def hook(action: EndedAction, tx: Transaction) -> None:
        await tx.execute("UPDATE orders SET mailed = ? WHERE id = 42", (action.state.value,))
        seen.append(world.sql("SELECT mailed, (SELECT state FROM agent_action) FROM orders"))

    outbox = await world.outbox(HookedAdapter(hook))
    world.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, mailed TEXT)")
    world.sql("INSERT INTO orders VALUES (42, NULL)")
    await world.executor(outbox)
    asked = await outbox.enqueue(request())
    await ended(outbox, asked.id)
    assert seen == [[(None, "EXECUTING")]]
    assert world.sql("SELECT mailed FROM orders") == [("DONE",)]
    assert owed(world) == []


async def test_a_hook_that_raises_stays_owed_and_is_run_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its changes are undone, the action has ended, the provider is not called again; the hook is, with backoff."""
    failing = [True]

    async def hook(_: EndedAction, tx: Transaction) -> None:
        await tx.execute("INSERT INTO heard VALUES (1)")
        if failing[0]:
            raise RuntimeError("secret-of-the-hook")

    adapter = HookedAdapter(hook)
    outbox = await world.outbox(adapter)
    world.sql("CREATE TABLE heard (one INTEGER)")
    executor = await world.executor(outbox)
    asked = await outbox.enqueue(request())
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert world.sql("SELECT * FROM heard") == []
    assert owed(world) == [(asked.id, 1)]
    await executor.until_idle()
    assert len(adapter.heard) == 1
    await world.passes(10.1)
    await until(lambda: owed(world) == [(asked.id, 2)])
    failing[0] = False
    await world.passes(40.1)
    await until(lambda: owed(world) == [])
    assert world.sql("SELECT * FROM heard") == [(1,)]
    assert adapter.writes == ["a"]
    assert "secret-of-the-hook" not in caplog.text
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def awaits_the_loop(_: EndedAction, tx: Transaction) -> None:
    await tx.execute("INSERT INTO heard VALUES (1)")
    await asyncio.sleep(0.01)


async def awaits_nothing_else_but_yields(_: EndedAction, tx: Transaction) -> None:
    await tx.execute("INSERT INTO heard VALUES (1)")
    await asyncio.sleep(0)


async def raises(_: EndedAction, tx: Transaction) -> None:
    await tx.execute("INSERT INTO heard VALUES (1)")
    raise ValueError("no")


async def is_cancelled(_: EndedAction, tx: Transaction) -> None:
    await tx.execute("INSERT INTO heard VALUES (1)")
    raise asyncio.CancelledError


async def leaves(_: EndedAction, tx: Transaction) -> None:
    await tx.execute("INSERT INTO heard VALUES (1)")
    raise SystemExit(1)


def ending(sql: str) -> Body:
    """A hook that writes and then tries this statement."""

    async def hook(_: EndedAction, tx: Transaction) -> None:
        await tx.execute("INSERT INTO heard VALUES (1)")
        await tx.execute(sql)

    return hook


def swallowing(sql: str) -> Body:
    """A hook that tries this statement and hides what came of it."""

    async def hook(_: EndedAction, tx: Transaction) -> None:
        await tx.execute("INSERT INTO heard VALUES (1)")
        try:
            await tx.execute(sql)
        except Exception:  # noqa: BLE001 - the point of this hook
            return

    return hook


BAD_HOOKS: dict[str, Body] = {
    "raises": raises,
    "sleeps": awaits_the_loop,
    "yields": awaits_nothing_else_but_yields,
    "cancelled": is_cancelled,
    "exits": leaves,
    "commit": ending("COMMIT"),
    "commit in lower case": ending("  commit"),
    "end": ending("END TRANSACTION"),
    "rollback": ending("ROLLBACK"),
    "rollback to": ending("ROLLBACK TO edgeoutbox_hook"),
    "release": ending("RELEASE edgeoutbox_hook"),
    "begin": ending("BEGIN"),
    "commit behind a comment": ending("-- done\nCOMMIT"),
    "commit behind another comment": ending("/* done */ COMMIT"),
    "commit behind a semicolon": ending("; COMMIT"),
    "commit as a second statement": ending("SELECT 1; COMMIT"),
    "release and savepoint": ending("SELECT ';'; RELEASE edgeoutbox_hook; SAVEPOINT edgeoutbox_hook"),
    "insert or rollback": ending("INSERT OR ROLLBACK INTO heard VALUES (1000)"),
    "update or rollback": ending("UPDATE OR ROLLBACK heard SET one = 1000"),
    "a trigger that rolls back": ending("INSERT INTO traps VALUES (1)"),
    "no such table": ending("INSERT INTO nowhere VALUES (1)"),
    "insert into the guard": ending("UPDATE agent_action SET state = 'ADMITTED'"),
}


@pytest.mark.parametrize("hook", BAD_HOOKS.values(), ids=BAD_HOOKS.keys())
async def test_a_bad_hook_hurts_only_itself(world: World, hook: Body) -> None:
    """Whatever a hook does, the result is recorded, its own changes are undone, it stays owed, and others go on."""
    outbox = await world.outbox(HookedAdapter(hook), ScriptedAdapter("other"))
    world.sql("CREATE TABLE heard (one INTEGER CHECK (one < 100))")
    world.trap()
    await world.executor(outbox)
    asked = await outbox.enqueue(request())
    beside = await outbox.enqueue_many([request(f"b{n}", kind="other") for n in range(5)])
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    for other in beside:
        assert outcome(await ended(outbox, other.id)) == ("DONE", "CONFIRMED")
    assert world.sql("SELECT * FROM heard") == []
    assert [row[0] for row in owed(world)] == [asked.id]
    assert [record.recorded for record in await outbox.attempts(asked.id)] == [True]
    later = await outbox.enqueue(request("later", kind="other"))
    assert outcome(await ended(outbox, later.id)) == ("DONE", "CONFIRMED")


@pytest.mark.parametrize("sql", ["COMMIT", "SELECT 1; COMMIT", "/**/ROLLBACK"], ids=str)
async def test_a_hook_that_hides_its_attempt_to_commit(world: World, sql: str) -> None:
    """A refused COMMIT whose error the hook swallows has done nothing: its other changes commit with the end."""
    outbox = await world.outbox(HookedAdapter(swallowing(sql)))
    world.sql("CREATE TABLE heard (one INTEGER CHECK (one < 100))")
    await world.executor(outbox)
    asked = await outbox.enqueue(request())
    assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert world.sql("SELECT * FROM heard") == [(1,)]
    assert owed(world) == []


async def test_a_semicolon_in_a_text_is_no_second_statement(world: World) -> None:
    """A hook may write any text, and end its statement with a semicolon and a comment."""
    texts = ["a; COMMIT", "it''s; -- fine", "/* ; */"]

    async def hook(_: EndedAction, tx: Transaction) -> None:
        for text in texts:
            await tx.execute(f"INSERT INTO heard VALUES ('{text}') ; -- and; that is all")  # noqa: S608 - our own texts

    outbox = await world.outbox(HookedAdapter(hook))
    world.sql("CREATE TABLE heard (words TEXT)")
    await world.executor(outbox)
    await ended(outbox, (await outbox.enqueue(request())).id)
    assert [row[0] for row in world.sql("SELECT words FROM heard")] == [text.replace("''", "'") for text in texts]


async def test_a_bad_owed_hook_stalls_no_other(world: World) -> None:
    """Among owed hooks, one that takes the transaction down with it does not keep the others from running."""
    world_is_bad = [True]

    async def hook(action: EndedAction, tx: Transaction) -> None:
        if action.idempotency_key == "bad":
            await tx.execute("INSERT INTO traps VALUES (1)")
        elif world_is_bad[0]:
            raise RuntimeError

    adapter = HookedAdapter(hook)
    outbox = await world.outbox(adapter)
    world.trap()
    await world.executor(outbox)
    asked = [await outbox.enqueue(request(key)) for key in ("bad", "b", "c")]
    for one in asked:
        await ended(outbox, one.id)
    world_is_bad[0] = False
    await world.passes(3600.0)
    await until(lambda: [row[0] for row in owed(world)] == [asked[0].id])
    last = await outbox.enqueue(request("d"))
    assert outcome(await ended(outbox, last.id)) == ("DONE", "CONFIRMED")


async def test_a_bad_hook_does_not_keep_expired_actions_alive(world: World) -> None:
    """The reaper ends what expired although its hook takes the transaction down; the hook stays owed."""

    async def hook(action: EndedAction, tx: Transaction) -> None:
        if action.idempotency_key == "bad":
            await tx.execute("INSERT INTO traps VALUES (1)")

    outbox = await world.outbox(HookedAdapter(hook))
    world.trap()
    soon = world.clock.milliseconds + 10_000
    bad = await outbox.propose(request("bad", expires_at=soon, lane_key="lane"))
    good = await outbox.propose(request("good", expires_at=soon))
    behind = await outbox.enqueue(request("behind", lane_key="lane"))
    await world.executor(outbox)
    await world.passes(11.0)
    assert outcome(await ended(outbox, bad.id)) == ("CANCELLED", "EXPIRED")
    assert outcome(await ended(outbox, good.id)) == ("CANCELLED", "EXPIRED")
    assert outcome(await ended(outbox, behind.id)) == ("DONE", "CONFIRMED")
    await until(lambda: [row[0] for row in owed(world)] == [bad.id])


async def test_a_hook_enqueues_a_correction_in_the_same_lane(world: World) -> None:
    """The follow-up of a failure waits its turn behind what is in the lane already, and is carried out."""

    async def hook(action: EndedAction, tx: Transaction) -> None:
        if action.stop_reason is StopReason.REJECTED:
            follow_up = ActionRequest(
                kind="scripted",
                idempotency_key=f"{action.idempotency_key}:correction",
                payload={},
                lane_key=action.lane_key,
            )
            await tx.enqueue(follow_up)

    adapter = HookedAdapter(hook)
    adapter.on("a", Failed(StopReason.REJECTED, "550"))
    outbox = await world.outbox(adapter)
    await outbox.enqueue(request("a", lane_key="lane"))
    await outbox.enqueue(request("b", lane_key="lane"))
    executor = await world.executor(outbox)
    await executor.until_idle()
    assert adapter.writes == ["a", "b", "a:correction"]
    assert await outbox.lane("lane") == []


async def test_a_hook_hears_every_end_whoever_ended_it(world: World) -> None:
    """Attempt, expiry, reaper, refusal, withdrawal, supersede and plain SQL: each end is heard exactly once."""
    ends: dict[str, str] = {}

    async def hook(action: EndedAction, _: Transaction) -> None:
        assert action.idempotency_key not in ends
        assert action.payload is None
        ends[action.idempotency_key] = str(action.stop_reason)

    adapter = HookedAdapter(hook)
    outbox = await world.outbox(adapter)
    soon = world.clock.milliseconds + 5000
    far = world.clock.milliseconds + 10**9
    await outbox.enqueue(request("done"))
    await outbox.enqueue(request("expired", due_at=far, expires_at=soon))
    refused = await outbox.propose(request("refused"))
    withdrawn = await outbox.enqueue(request("withdrawn", due_at=far))
    await outbox.enqueue(request("superseded", lane_key="lane", due_at=far))
    await outbox.enqueue(request("by sql", due_at=far))
    await outbox.refuse(refused.id, by="ops")
    await outbox.withdraw(withdrawn.id)
    await outbox.enqueue(request("newer", lane_key="lane"), supersede=True)
    world.sql(
        "UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL "
        "WHERE idempotency_key = 'by sql' AND state IN ('PROPOSED', 'ADMITTED')"
    )
    executor = await world.executor(outbox)
    await world.passes(5.1)
    await executor.until_idle()
    await until(lambda: len(ends) == 7)
    assert ends == {
        "done": "CONFIRMED",
        "expired": "EXPIRED",
        "refused": "REFUSED",
        "withdrawn": "WITHDRAWN",
        "superseded": "SUPERSEDED",
        "newer": "CONFIRMED",
        "by sql": "WITHDRAWN",
    }


async def test_a_hook_is_not_called_between_attempts(world: World) -> None:
    """A retry is no end."""

    async def hook(_: EndedAction, __: Transaction) -> None:
        return

    adapter = HookedAdapter(hook)
    adapter.on("a", Retry("421", wait=5.0))
    outbox, executor = await world.running(adapter)
    asked = await outbox.enqueue(request())
    await until(lambda: executor.metrics.total("action.attempts") == 1)
    assert adapter.heard == []
    await world.passes(5.1)
    await ended(outbox, asked.id)
    assert len(adapter.heard) == 1


async def test_forget_waits_for_an_owed_hook(world: World) -> None:
    """An action that is to be forgotten while its hook is owed goes once the hook ran; erasing does not wait."""
    failing = [True]

    async def hook(_: EndedAction, __: Transaction) -> None:
        if failing[0]:
            raise RuntimeError

    adapter = HookedAdapter(hook)
    outbox, _ = await world.running(adapter)
    asked = await outbox.enqueue(request())
    erased = await outbox.enqueue(request("erased", subject_account_id="p1"))
    await ended(outbox, asked.id)
    await ended(outbox, erased.id)
    assert await outbox.forget("a") is True
    assert (await the(outbox, asked.id)).ended
    assert await outbox.erase("p1") == 1
    heard = len(adapter.heard)
    failing[0] = False
    await world.passes(10.1)
    await until(lambda: world.sql("SELECT COUNT(*) FROM agent_action") == [(0,)])
    assert len(adapter.heard) == heard + 1


async def test_the_hook_of_another_build_is_left_owed(world: World) -> None:
    """An executor without the kind's adapter does not run its hook; one that has it does."""

    async def hook(_: EndedAction, __: Transaction) -> None:
        return

    hooked = HookedAdapter(hook)
    producer = await world.outbox(hooked)
    withdrawn = await producer.enqueue(request())
    await producer.withdraw(withdrawn.id)
    other, executor = await world.running(ScriptedAdapter("other"))
    await ended(other, (await other.enqueue(request("b", kind="other"))).id)
    await executor.until_idle()
    assert [row[0] for row in owed(world)] == [withdrawn.id]
    await world.executor(producer)
    await until(lambda: owed(world) == [])
    assert len(hooked.heard) == 1


def test_both_drivers_are_here(world: World) -> None:
    """A second statement in one execute is the trap of apsw alone, so both drivers must be among the worlds."""
    assert (world.driver is ApswDriver) == ("apsw" in world.url)


async def test_a_slow_gate_in_the_adapter_does_not_hold_hooks(world: World) -> None:
    """Hooks run while other attempts of the kind are still at the provider."""
    gate = asyncio.Event()

    async def hook(_: EndedAction, __: Transaction) -> None:
        return

    adapter = HookedAdapter(hook)
    adapter.on("slow", Step(gate=gate))
    outbox, _ = await world.running(adapter)
    slow = await outbox.enqueue(request("slow"))
    await adapter.wait_for_writes("slow")
    await ended(outbox, (await outbox.enqueue(request("fast"))).id)
    assert [action.idempotency_key for action in adapter.heard] == ["fast"]
    gate.set()
    await ended(outbox, slow.id)
