"""Sweep, forget and erase: what is deleted, and when."""

import pytest

from edgeoutbox.adapter import EndedAction, Transaction
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Decision, Query, Storage, Supersede
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DAY,
    DONE,
    HOUR,
    MINUTE,
    WITHDRAW,
    Topic,
    a_request,
    claim,
    claim_all,
    declare,
    enqueue,
    milliseconds,
    propose,
    read,
    served,
    started,
)
from edgeoutbox.variants import ALWAYS


async def quiet(_action: EndedAction, _tx: Transaction) -> None:
    """A hook that has nothing to do."""


async def ids(storage: Storage) -> list[int]:
    """What is left."""
    return sorted(action.id for action in await storage.list(Query(limit=1000)))


async def ended(storage: Storage, kind: str, key: str | None = None) -> int:
    """An action of a kind that ended."""
    action_id = await enqueue(storage, key or kind, kind=kind)
    await storage.settle(await claim(storage, kind=kind), DONE)
    return action_id


class Sweeping(Topic):
    """Deletes that the schema's retention, a person or the law asks for."""

    async def test_an_ended_action_is_kept_for_the_retention_of_its_kind(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """To the millisecond, and with it goes its dispatch log; its key is free again."""
        await declare(storage, retention_days=2)
        held = await started(storage, "k")
        await storage.settle(held, DONE)
        milliseconds(clock, 2 * DAY - 1)
        assert await storage.sweep(["email"]) == 0
        milliseconds(clock, 1)
        assert await storage.sweep(["email"]) == 1
        assert (await ids(storage), await storage.attempts(held.id)) == ([], [])
        assert await enqueue(storage, "k") > held.id

    async def test_what_has_not_ended_is_never_swept(self, storage: Storage, clock: MovableClock) -> None:
        """However old it is."""
        await declare(storage, retention_days=1)
        await started(storage, "executing")
        await enqueue(storage, "admitted")
        await propose(storage, "proposed")
        milliseconds(clock, 1000 * DAY)
        assert await storage.sweep(["email"]) == 0

    async def test_only_the_given_kinds_are_swept(self, storage: Storage, clock: MovableClock) -> None:
        """Each by its own retention; what nobody declared stays."""
        await declare(storage, "email", retention_days=1)
        await declare(storage, "post", retention_days=5)
        await ended(storage, "email")
        kept = [await ended(storage, kind) for kind in ("post", "undeclared")]
        milliseconds(clock, 2 * DAY)
        assert await storage.sweep(["post", "undeclared"]) == 0
        assert await storage.sweep(["email", "post", "undeclared"]) == 1
        assert await ids(storage) == kept

    async def test_a_sweep_has_a_limit(self, storage: Storage, clock: MovableClock) -> None:
        """A little at a time, across kinds."""
        await declare(storage, "email", retention_days=1)
        await declare(storage, "post", retention_days=1)
        for n in range(3):
            await ended(storage, "email", f"e{n}")
            await ended(storage, "post", f"p{n}")
        milliseconds(clock, DAY)
        assert [await storage.sweep(["email", "post"], 4) for _ in range(3)] == [4, 2, 0]

    async def test_p9_the_sweep_waits_for_an_owed_hook(self, storage: Storage, clock: MovableClock) -> None:
        """The application hears of every end before its action goes."""
        await declare(storage, hook=True, retention_days=1)
        held = await started(storage)
        await storage.settle(held, DONE)
        milliseconds(clock, 100 * DAY)
        assert await storage.sweep(["email"]) == 0
        assert await storage.owed_hooks({"email": quiet}) == 1
        assert await storage.sweep(["email"]) == 1

    async def test_p13_an_ended_action_is_forgotten_now(self, storage: Storage) -> None:
        """With its dispatch log, before its retention; a key that nobody has answers false."""
        held = await started(storage, "k")
        await storage.settle(held, DONE)
        assert await storage.forget("k") is True
        assert (await ids(storage), await storage.attempts(held.id)) == ([], [])
        assert await storage.forget("k") is False

    @pytest.mark.parametrize("end", ["settle", "reap", "expire", "withdraw", "refuse", "supersede", "sql"])
    async def test_p13_a_live_action_is_forgotten_when_it_ends(
        self, storage: Storage, backend: Backend, clock: MovableClock, end: str
    ) -> None:
        """Whoever ends it; what ended without knowing of it goes with the next sweep."""
        expires_at = clock.milliseconds + MINUTE if end == "expire" else None
        if end == "refuse":
            action_id = (await propose(storage, "k", "lane")).id
        else:
            action_id = await enqueue(storage, "k", "lane", expires_at=expires_at)
        assert await storage.forget("k") is True
        assert await ids(storage) == [action_id]
        kept: list[int] = []
        match end:
            case "settle":
                await storage.settle(await claim(storage), DONE)
            case "reap":
                await claim(storage)
                milliseconds(clock, HOUR)
                await storage.reap([served(max_attempts=1)], "two", {})
            case "expire":
                milliseconds(clock, MINUTE)
                await storage.reap([served()], "two", {})
            case "withdraw" | "refuse":
                decided = await storage.decide(action_id, Decision("refuse" if end == "refuse" else "withdraw"))
                assert decided.state is State.CANCELLED
            case "supersede":
                [answer] = await storage.enqueue(
                    [a_request("new", "lane")], supersede=Supersede(decodable={"email": ALWAYS})
                )
                kept.append(answer.id)
            case _:
                await backend.sql(WITHDRAW, action_id)
        if end in {"supersede", "sql"}:
            assert await storage.sweep(["email"]) == 1
        assert await ids(storage) == kept

    @pytest.mark.parametrize("executing", [True, False])
    async def test_p13_forgetting_waits_for_an_owed_hook(self, storage: Storage, executing: bool) -> None:
        """Asked for before or after the end, the hook runs first, and then the action is gone."""
        await declare(storage, hook=True)
        held = await started(storage, "k")
        if executing:
            await storage.forget("k")
        await storage.settle(held, DONE)
        if not executing:
            await storage.forget("k")
        assert await ids(storage) == [held.id]
        assert await storage.sweep(["email"]) == 0
        heard: list[int] = []

        async def hear(action: EndedAction, _tx: Transaction) -> None:
            heard.append(action.id)

        assert await storage.owed_hooks({"email": hear}) == 1
        assert (heard, await ids(storage)) == ([held.id], [])

    async def test_p13_erasing_a_subject_deletes_its_actions_in_every_state(self, storage: Storage) -> None:
        """With their dispatch logs and owed hooks; other subjects and lone actions stay."""
        await declare(storage, hook=True)
        about = {"subject_account_id": "acc-7"}
        for key in ("done", "executing"):
            await enqueue(storage, key, **about)
        held = {one.action.idempotency_key: one for one in await claim_all(storage)}
        await storage.settle(held["done"], DONE)
        await enqueue(storage, "admitted", **about)
        await propose(storage, "proposed", **about)
        kept = [await enqueue(storage, "other", subject_account_id="acc-8"), await enqueue(storage, "nobody's")]
        assert await storage.erase("acc-7") == 4
        assert await ids(storage) == kept
        for one in held.values():
            assert await storage.attempts(one.id) == []
        assert await storage.owed_hooks({"email": quiet}) == 0
        assert await storage.erase("acc-7") == 0

    async def test_p13_erasing_a_lane_head_lets_the_lane_go_on(self, storage: Storage) -> None:
        """Also when several of the lane, the executing one among them, are erased at once."""
        about = {"subject_account_id": "acc-7"}
        for key in ("a", "b", "d"):
            await enqueue(storage, key, "lane", **about)
        kept = await enqueue(storage, "c", "lane")
        await claim(storage)
        await storage.erase("acc-7")
        assert (await read(storage, kept)).is_head
        assert (await claim(storage)).id == kept
