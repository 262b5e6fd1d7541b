"""Ended hooks: inside the transaction that ends an action, and owed until they ran."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import pytest

from edgeoutbox.adapter import EndedAction, Transaction
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Decision, Storage, Supersede
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    WITHDRAW,
    Topic,
    a_request,
    both,
    claim,
    declare,
    enqueue,
    milliseconds,
    read,
    retry,
    served,
    started,
)
from edgeoutbox.variants import ALWAYS

Hook = Callable[[EndedAction, Transaction], Awaitable[None]]


class Heard:
    """A hook that remembers what it heard, and raises as often as it is told to."""

    def __init__(self, fails: int = 0) -> None:
        self.actions: list[EndedAction] = []
        self._fails = fails

    async def __call__(self, action: EndedAction, tx: Transaction) -> None:
        """Remember, enqueue a follow-up, and raise if it is time to."""
        self.actions.append(action)
        await tx.enqueue(a_request(f"follow-up:{action.id}:{len(self.actions)}", kind="post"))
        if len(self.actions) <= self._fails:
            raise RuntimeError("the application's row, with alice@example.com in it")


async def follow_ups(backend: Backend) -> int:
    """How many follow-ups were enqueued for good."""
    [(count,)] = await backend.sql("SELECT COUNT(*) FROM agent_action WHERE kind = 'post'")
    return int(count)


class Hooked(Topic):
    """What the application hears, when, and how often."""

    async def test_a_hook_runs_in_the_transaction_that_ends_the_action(
        self, storage: Storage, backend: Backend
    ) -> None:
        """It gets the ended action, writes beside it, and is not owed afterwards."""
        await declare(storage, hook=True)
        held = await started(storage)
        heard = Heard()
        assert await storage.settle(held, DONE, heard) is True
        [action] = heard.actions
        assert action == await read(storage, held.id)
        assert (action.state, action.stop_reason, action.payload) == (State.DONE, StopReason.CONFIRMED, None)
        assert await follow_ups(backend) == 1
        assert await storage.owed_hooks({"email": heard}) == 0

    async def test_a_hook_moves_rows_of_the_application_on(self, storage: Storage, backend: Backend) -> None:
        """It reads and writes any table of the database, and gets rows back."""
        await backend.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
        await backend.sql("INSERT INTO orders (id, state) VALUES (42, 'paid')")
        await declare(storage, hook=True)
        held = await started(storage)
        seen: list[object] = []

        async def move_on(action: EndedAction, tx: Transaction) -> None:
            seen.extend(await tx.execute("SELECT state FROM orders WHERE id = ?", (42,)))
            await tx.execute("UPDATE orders SET state = ? WHERE id = 42", (action.state.value,))

        await storage.settle(held, DONE, move_on)
        assert seen == [("paid",)]
        assert await backend.sql("SELECT state FROM orders") == [("DONE",)]

    async def test_p9_a_hook_that_raises_does_not_undo_the_end(
        self, storage: Storage, backend: Backend, clock: MovableClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its own changes are undone, it stays owed with backoff, and what it raised is not logged."""
        await declare(storage, hook=True)
        held = await started(storage)
        heard = Heard(fails=2)
        with caplog.at_level(logging.ERROR):
            assert await storage.settle(held, DONE, heard) is True
        assert (await read(storage, held.id)).state is State.DONE
        assert await follow_ups(backend) == 0
        assert "RuntimeError" in caplog.text
        assert "alice" not in caplog.text
        assert await storage.owed_hooks({"email": heard}) == 0
        milliseconds(clock, 10 * SECOND)
        assert await storage.owed_hooks({"email": heard}) == 1
        assert (await follow_ups(backend), len(heard.actions)) == (0, 2)
        milliseconds(clock, 10 * SECOND)
        assert await storage.owed_hooks({"email": heard}) == 0
        milliseconds(clock, 30 * SECOND)
        assert await storage.owed_hooks({"email": heard}) == 1
        assert await follow_ups(backend) == 1
        assert await storage.owed_hooks({"email": heard}) == 0

    async def test_a_hook_that_keeps_raising_is_tried_every_hour(self, storage: Storage, clock: MovableClock) -> None:
        """The backoff has a ceiling: a hook is never given up."""
        await declare(storage, hook=True)
        heard = Heard(fails=1000)
        await storage.settle(await started(storage), DONE, heard)
        for _ in range(40):
            milliseconds(clock, HOUR)
            assert await storage.owed_hooks({"email": heard}) == 1

    async def test_a_hook_that_awaits_something_else_is_owed(self, storage: Storage, backend: Backend) -> None:
        """It cannot hold the transaction open: its changes are undone, and the action ends."""
        await declare(storage, hook=True)
        held = await started(storage)

        async def wait(_action: EndedAction, tx: Transaction) -> None:
            await tx.enqueue(a_request("follow-up", kind="post"))
            await asyncio.sleep(0)

        assert await storage.settle(held, DONE, wait) is True
        assert (await read(storage, held.id)).state is State.DONE
        assert await follow_ups(backend) == 0

    @pytest.mark.parametrize(
        "statement",
        [
            "COMMIT",
            "  rollback",
            "END",
            "BEGIN",
            "SAVEPOINT mine",
            "RELEASE edgeoutbox_hook",
            "ROLLBACK TO edgeoutbox_hook",
            "-- a remark\nCOMMIT",
            "/* a remark */ COMMIT",
            "SELECT 1; COMMIT",
            "; COMMIT",
        ],
    )
    async def test_a_hook_does_not_control_the_transaction(
        self, storage: Storage, backend: Backend, statement: str
    ) -> None:
        """However it is written: the hook is owed, its changes are undone, and the action ends."""
        await declare(storage, hook=True)
        held = await started(storage)

        async def commit(_action: EndedAction, tx: Transaction) -> None:
            await tx.enqueue(a_request("follow-up", kind="post"))
            await tx.execute(statement)

        assert await storage.settle(held, DONE, commit) is True
        assert (await read(storage, held.id)).state is State.DONE
        assert await follow_ups(backend) == 0
        heard = Heard()
        await backend.sql("UPDATE agent_action_ended SET due_at = 0")
        assert await storage.owed_hooks({"email": heard}) == 1

    @pytest.mark.parametrize("swallows", [False, True])
    @pytest.mark.parametrize("end", ["settle", "reap", "owed"])
    async def test_p9_a_hook_that_rolls_everything_back_does_not_undo_the_end(
        self, storage: Storage, backend: Backend, clock: MovableClock, end: str, swallows: bool
    ) -> None:
        """A statement that ends the whole transaction, such as INSERT OR ROLLBACK, costs its hook and nothing else."""
        await backend.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        await backend.sql("INSERT INTO orders (id) VALUES (42)")
        await declare(storage, hook=True)
        bad, good = await started(storage, "bad"), await started(storage, "good")
        heard = Heard()

        async def roll_back(action: EndedAction, tx: Transaction) -> None:
            if action.id == bad.id:
                with contextlib.suppress(Exception) if swallows else contextlib.nullcontext():
                    await tx.execute("INSERT OR ROLLBACK INTO orders (id) VALUES (42)")
            else:
                await heard(action, tx)

        match end:
            case "settle":
                assert await both(storage.settle(bad, DONE, roll_back), storage.settle(good, DONE, roll_back)) == [
                    True,
                    True,
                ]
            case "reap":
                milliseconds(clock, LEASE)
                assert len(await storage.reap([served(max_attempts=1)], "two", {"email": roll_back})) == 2
            case _:
                await both(storage.settle(bad, DONE), storage.settle(good, DONE))
                assert await storage.owed_hooks({"email": roll_back}) == 2
        assert (await read(storage, bad.id)).ended
        assert [action.id for action in heard.actions][-1:] == [good.id]
        assert await follow_ups(backend) == 1
        assert await storage.owed_hooks({"email": heard}) == 0
        milliseconds(clock, 10 * SECOND)
        assert await storage.owed_hooks({"email": heard}) == 1

    async def test_p9_a_hook_is_owed_although_another_program_declared_the_kind_without_one(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """During an upgrade the program that has the hook must still get to run it."""
        await declare(storage, hook=True)
        held = await started(storage)
        await declare(storage, hook=False)
        heard = Heard(fails=1)
        await storage.settle(held, DONE, heard)
        milliseconds(clock, 10 * SECOND)
        assert await storage.owed_hooks({"email": heard}) == 1
        assert len(heard.actions) == 2

    async def test_a_hook_that_swallows_its_statements_error_has_what_succeeded(
        self, storage: Storage, backend: Backend
    ) -> None:
        """A refused statement inside a hook undoes itself alone."""
        await declare(storage, hook=True)
        held = await started(storage)

        async def careful(_action: EndedAction, tx: Transaction) -> None:
            await tx.enqueue(a_request("follow-up", kind="post"))
            with pytest.raises(Exception, match="ended action never changes"):
                await tx.execute("UPDATE agent_action SET last_error = 'x' WHERE id = ?", (held.id,))

        await storage.settle(held, DONE, careful)
        assert await follow_ups(backend) == 1

    async def test_a_hook_may_enqueue_a_correction_in_the_same_lane(self, storage: Storage) -> None:
        """Behind what waits there already, and it is claimed in its turn."""
        await declare(storage, hook=True)
        held = await started(storage, "first", "lane")
        second = await enqueue(storage, "second", "lane")

        async def correct(_action: EndedAction, tx: Transaction) -> None:
            await tx.enqueue(a_request("correction", "lane"))

        await storage.settle(held, DONE, correct)
        lane = await storage.lane("lane")
        assert [action.idempotency_key for action in lane] == ["second", "correction"]
        assert [action.is_head for action in lane] == [True, False]
        assert (await claim(storage)).id == second

    async def test_a_correction_in_an_empty_lane_is_its_head(self, storage: Storage) -> None:
        """The ended action is out of the way before its hook runs."""
        await declare(storage, hook=True)
        held = await started(storage, "first", "lane")

        async def correct(_action: EndedAction, tx: Transaction) -> None:
            await tx.enqueue(a_request("correction", "lane"))

        await storage.settle(held, DONE, correct)
        assert (await claim(storage)).action.idempotency_key == "correction"

    @pytest.mark.parametrize("end", ["expiry", "lost lease"])
    async def test_a_reap_runs_the_hooks_of_what_it_ends(
        self, storage: Storage, backend: Backend, clock: MovableClock, end: str
    ) -> None:
        """In its own transaction, like a settle."""
        await declare(storage, hook=True)
        await enqueue(storage, expires_at=clock.milliseconds + MINUTE if end == "expiry" else None)
        if end == "lost lease":
            await claim(storage)
        milliseconds(clock, LEASE)
        heard = Heard()
        [action] = await storage.reap([served(max_attempts=1)], "two", {"email": heard})
        assert heard.actions == [action]
        assert await follow_ups(backend) == 1

    @pytest.mark.parametrize(
        "end", ["withdraw", "supersede", "sql", "settle of another build", "reap of another build"]
    )
    async def test_p9_a_hook_is_owed_for_every_end_that_did_not_run_it(
        self, storage: Storage, backend: Backend, clock: MovableClock, end: str
    ) -> None:
        """Whoever ended the action, an executor of its kind makes up for it, once."""
        await declare(storage, hook=True)
        action_id = await enqueue(storage, "k", "lane")
        match end:
            case "withdraw":
                await storage.decide(action_id, Decision("withdraw"))
            case "supersede":
                await storage.enqueue([a_request("new", "lane")], supersede=Supersede(decodable={"email": ALWAYS}))
            case "sql":
                await backend.sql(WITHDRAW, action_id)
            case "settle of another build":
                await storage.settle(await claim(storage), DONE)
            case _:
                await claim(storage)
                milliseconds(clock, LEASE)
                await storage.reap([served(max_attempts=1)], "two", {})
        heard = Heard()
        assert await storage.owed_hooks({"post": heard}) == 0
        assert await storage.owed_hooks({"email": heard}) == 1
        assert [action.id for action in heard.actions] == [action_id]
        assert await storage.owed_hooks({"email": heard}) == 0

    async def test_a_kind_without_a_hook_owes_nothing(self, storage: Storage) -> None:
        """Its ends are nobody's news."""
        await declare(storage, hook=False)
        await storage.settle(await started(storage), DONE)
        assert await storage.owed_hooks({"email": Heard()}) == 0

    async def test_what_goes_back_has_no_end_to_hear_of(self, storage: Storage) -> None:
        """A retry is not an end."""
        await declare(storage, hook=True)
        await retry(storage, await started(storage))
        assert await storage.owed_hooks({"email": Heard()}) == 0

    async def test_a_stale_settle_runs_no_hook(self, storage: Storage, clock: MovableClock) -> None:
        """Who does not hold the action does not announce its end."""
        await declare(storage, hook=True)
        old = await started(storage)
        milliseconds(clock, LEASE)
        await claim(storage, "two")
        heard = Heard()
        assert await storage.settle(old, DONE, heard) is False
        assert heard.actions == []

    async def test_p13_an_erasure_calls_no_hook(self, storage: Storage) -> None:
        """The hook of an erased action is not owed any more: there is nothing left to tell."""
        await declare(storage, hook=True)
        await enqueue(storage, subject_account_id="acc-7")
        await storage.settle(await claim(storage), DONE)
        await storage.erase("acc-7")
        heard = Heard()
        assert await storage.owed_hooks({"email": heard}) == 0
        assert heard.actions == []

    async def test_owed_hooks_are_worked_off_in_turns(self, storage: Storage) -> None:
        """Oldest first, up to the limit."""
        await declare(storage, hook=True)
        ids = []
        for n in range(3):
            held = await started(storage, f"k{n}")
            await storage.settle(held, DONE)
            ids.append(held.id)
        heard = Heard()
        assert [await storage.owed_hooks({"email": heard}, 2) for _ in range(3)] == [2, 1, 0]
        assert sorted(action.id for action in heard.actions) == ids
