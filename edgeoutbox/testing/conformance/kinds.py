"""Declaring, loosening, cooling and pausing kinds."""

import pytest

from edgeoutbox.errors import LooseningRefused
from edgeoutbox.kinds import Delivery
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Settlement, Storage
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import (
    DONE,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    Topic,
    claim_all,
    declare,
    enqueue,
    milliseconds,
    started,
)


class Kinds(Topic):
    """The policy of a kind and its weather."""

    async def test_a_declaration_is_stored(self, storage: Storage) -> None:
        """What was declared is what holds, and what `kinds` shows."""
        policy = await declare(
            storage, "email", Delivery.READS_BACK, hook=True, approval=True, instance_level=True, retention_days=7
        )
        assert (policy.name, policy.delivery) == ("email", Delivery.READS_BACK)
        assert (policy.has_ended_hook, policy.requires_approval, policy.instance_level) == (True, True, True)
        assert policy.retention_days == 7
        assert (policy.cooling_until, policy.cooling_reason, policy.paused_by) == (None, None, None)
        assert await storage.kinds() == {"email": policy}

    @pytest.mark.parametrize("first", list(Delivery))
    @pytest.mark.parametrize("second", list(Delivery))
    async def test_p8_two_programs_that_declare_a_kind_differently_get_the_stricter(
        self, storage: Storage, backend: Backend, first: Delivery, second: Delivery
    ) -> None:
        """In either order: a declaration only ever tightens."""
        other = await backend.open()
        await declare(storage, delivery=first)
        policy = await declare(other, delivery=second)
        assert policy.delivery is max(first, second, key=lambda delivery: delivery.strictness)

    async def test_approval_is_not_dropped_by_a_declaration(self, storage: Storage) -> None:
        """Once somebody requires it, it is required."""
        await declare(storage, approval=True)
        assert (await declare(storage, approval=False)).requires_approval is True

    async def test_of_the_rest_the_last_declaration_holds(self, storage: Storage) -> None:
        """Retention, level and hook follow the program that declared last."""
        await declare(storage, hook=True, retention_days=90, instance_level=True)
        policy = await declare(storage, hook=False, retention_days=3, instance_level=False)
        assert (policy.has_ended_hook, policy.retention_days, policy.instance_level) == (False, 3, False)

    async def test_a_person_loosens_a_kind(self, storage: Storage) -> None:
        """By command; what is not named stays."""
        await declare(storage, approval=True)
        policy = await storage.allow("email", Delivery.REPEATABLE, None)
        assert (policy.delivery, policy.requires_approval) == (Delivery.REPEATABLE, True)
        policy = await storage.allow("email", None, requires_approval=False)
        assert (policy.delivery, policy.requires_approval) == (Delivery.REPEATABLE, False)

    async def test_p8_a_kind_is_not_loosened_while_a_write_may_exist(self, storage: Storage) -> None:
        """Whose action is fenced keeps its promise until it ends; tightening is always possible."""
        await declare(storage, delivery=Delivery.READS_BACK, approval=False)
        held = await started(storage, fenced=True)
        with pytest.raises(LooseningRefused, match="kind email: 1 of its actions may exist at the provider"):
            await storage.allow("email", Delivery.REPEATABLE, None)
        assert (await storage.allow("email", Delivery.AT_MOST_ONCE, requires_approval=True)).requires_approval
        with pytest.raises(LooseningRefused):
            await storage.allow("email", None, requires_approval=False)
        await storage.settle(held, Settlement(State.UNCERTAIN, "Uncertain", StopReason.NO_CONFIRMATION))
        assert (await storage.allow("email", Delivery.REPEATABLE, None)).delivery is Delivery.REPEATABLE

    async def test_a_kind_cools_for_its_wait(self, storage: Storage, clock: MovableClock) -> None:
        """The answer is until when, and everybody sees why."""
        await declare(storage)
        until = await storage.cool_down("email", "rate limit", MINUTE)
        assert until == clock.milliseconds + MINUTE
        policy = (await storage.kinds())["email"]
        assert (policy.cooling_until, policy.cooling_reason) == (until, "rate limit")

    async def test_a_longer_cooling_stays(self, storage: Storage, clock: MovableClock) -> None:
        """A shorter one under way is prolonged, a longer one is not cut."""
        await declare(storage)
        long = await storage.cool_down("email", "outage", HOUR)
        assert await storage.cool_down("email", "rate limit", MINUTE) == long
        assert (await storage.kinds())["email"].cooling_reason == "outage"
        assert await storage.cool_down("email", "limit of the day", 2 * HOUR) == clock.milliseconds + 2 * HOUR

    async def test_a_long_wait_doubles_to_four_hours(self, storage: Storage, clock: MovableClock) -> None:
        """Each outage that follows soon on the last rests twice as long; after a quiet time it is 15 minutes again."""
        await declare(storage)
        waits = []
        for _ in range(7):
            until = await storage.cool_down("email", "cannot connect", None)
            waits.append(until - clock.milliseconds)
            milliseconds(clock, waits[-1] + SECOND)
        assert [wait // MINUTE for wait in waits] == [15, 30, 60, 120, 240, 240, 240]
        milliseconds(clock, 5 * HOUR)
        assert await storage.cool_down("email", "cannot connect", None) == clock.milliseconds + 15 * MINUTE

    async def test_many_attempts_that_fail_to_connect_together_cool_once(
        self, storage: Storage, clock: MovableClock
    ) -> None:
        """A long wait under way is not doubled by the others that ran into the same outage."""
        await declare(storage)
        first = await storage.cool_down("email", "cannot connect", None)
        milliseconds(clock, SECOND)
        assert await storage.cool_down("email", "cannot connect", None) == first

    async def test_other_settings_end_a_cooling(self, storage: Storage) -> None:
        """A program that starts with a corrected password is not kept waiting; one with the same is."""
        await declare(storage, settings="password: one")
        await storage.cool_down("email", "cannot log in", HOUR)
        assert (await declare(storage, settings="password: one")).cooling_until is not None
        policy = await declare(storage, settings="password: two")
        assert (policy.cooling_until, policy.cooling_reason) == (None, None)

    async def test_p12_settings_are_not_stored(self, storage: Storage, backend: Backend) -> None:
        """They may hold a secret: a cut and salted digest tells them apart, and nothing more."""
        await declare(storage, settings="password: hunter2")
        [row] = await backend.sql("SELECT * FROM agent_action_kind")
        assert "hunter2" not in repr(row)

    async def test_resume_ends_pause_and_cooling(self, storage: Storage) -> None:
        """And a pause shows who paused."""
        await declare(storage)
        await storage.cool_down("email", "rate limit", HOUR)
        assert await storage.pause("email", "ann") is True
        assert (await storage.kinds())["email"].paused_by == "ann"
        assert await storage.resume("email") is True
        policy = (await storage.kinds())["email"]
        assert (policy.paused_by, policy.cooling_until, policy.cooling_reason) == (None, None, None)

    async def test_a_pause_outlives_other_settings(self, storage: Storage) -> None:
        """Only people pause, and only people resume."""
        await declare(storage, settings="one")
        await storage.pause("email", "ann")
        assert (await declare(storage, settings="two")).paused_by == "ann"

    async def test_an_undeclared_kind_is_not_paused(self, storage: Storage) -> None:
        """The answer is false, and no kind is made up."""
        assert await storage.pause("email", "ann") is False
        assert await storage.resume("email") is False
        assert await storage.kinds() == {}

    async def test_a_pause_leaves_what_executes(self, storage: Storage, clock: MovableClock) -> None:
        """A running attempt settles as always."""
        await declare(storage)
        held = await started(storage)
        await enqueue(storage, "next")
        await storage.pause("email", "ann")
        assert await storage.settle(held, DONE) is True
        milliseconds(clock, LEASE)
        assert await claim_all(storage, "two") == []
