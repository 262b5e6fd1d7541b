"""One run of an adapter under one claim: its fence, its time limit, and what became of it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from edgeoutbox import telemetry
from edgeoutbox.adapter import Adapter, WriteWindow
from edgeoutbox.clock import Clock
from edgeoutbox.errors import (
    ConfigurationError,
    FenceRefused,
    InvalidPayload,
    SecondWrite,
    StorageError,
    UnknownVariant,
)
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action
from edgeoutbox.results import Abandoned, Defer, Failed, Uncertain
from edgeoutbox.settlements import Facts, Interrupted, Interruption, Outcome
from edgeoutbox.states import StopReason
from edgeoutbox.storage.protocol import Claim, Refusal, Storage

MOST_SLEEP = 1.0
"""Seconds that the boot clock and the clock of the waking machine may move apart between fence and call."""


class RunningAttempt:
    """What an adapter is given, and what the executor knows about it. Implements `edgeoutbox.adapter.Attempt`.

    Every deadline is on the boot clock, which also runs while the machine is suspended. `alarm` is told the next one;
    when it has passed, `enforce` is to be called.
    """

    def __init__(
        self,
        claim: Claim,
        adapter: Adapter[Any],
        delivery: Delivery,
        storage: Storage,
        clock: Clock,
        claimed: float,
        alarm: Callable[[float], None],
    ) -> None:
        self.claim = claim
        self.settled = False
        self.shutting_down = False
        self._adapter = adapter
        self._delivery = delivery
        self._storage = storage
        self._clock = clock
        self._alarm = alarm
        self._kind = adapter.kind
        self._payload: Any = None
        self._refusal: Refusal | None = None
        self._write_started_at: int | None = None
        self._asleep = False
        self._executing: asyncio.Task[Any] | None = None
        self._expired = False
        writes = delivery is not Delivery.WRITES_NOTHING
        # What is left of the lease comes first: a lease of one window leaves exactly nothing, in floats too.
        self.deadline = claimed + (self._kind.lease - (self._kind.write_window if writes else 0.0))

    @property
    def payload(self) -> Any:
        """The typed payload."""
        return self._payload

    @property
    def action(self) -> Action:
        """The action as it was claimed."""
        return self.claim.action

    @property
    def last(self) -> bool:
        """Whether this is the action's last attempt."""
        return self.facts().last

    @property
    def inherited_write_at(self) -> int | None:
        """When an earlier attempt started a write that is not proven empty."""
        return self.claim.action.write_started_at

    @property
    def write_started_at(self) -> int | None:
        """When this attempt started its first write."""
        return self._write_started_at

    def facts(self) -> Facts:
        """What is known of the attempt now."""
        action = self.claim.action
        return Facts(
            self._delivery,
            action.attempt,
            action.max_attempts or self._kind.max_attempts,
            inherited=action.write_started_at is not None,
            fenced=self._write_started_at is not None,
            refusal=self._refusal,
        )

    async def begin_write(self) -> WriteWindow:
        """Store the fence; only after this returns may the provider be called."""
        if self._delivery is Delivery.WRITES_NOTHING:
            raise ConfigurationError(f"kind {self._kind.name} is declared writes_nothing, so it has no fence")
        if self._delivery is Delivery.AT_MOST_ONCE and self._write_started_at is not None:
            raise SecondWrite(f"action {self.claim.id} of kind {self._kind.name}: this attempt has had its one fence")
        self._refuse_when_settled()
        if self._refusal is not None:  # a refusal is final, also for an adapter that asks again
            raise FenceRefused(f"action {self.claim.id} of kind {self._kind.name}: {self._refusal.value}")
        window = self._kind.write_window
        before, awake = self._clock.boot(), self._clock.awake()
        answer = await self._storage.begin_write(
            self.claim.id, self.claim.epoch, self.claim.owner, round(window * 1000)
        )
        if isinstance(answer, Refusal):
            self._refusal = answer
            raise FenceRefused(f"action {self.claim.id} of kind {self._kind.name}: {answer.value}")
        self._refuse_when_settled()
        after = self._clock.boot()
        slept = (after - before) - (self._clock.awake() - awake)
        if slept > MOST_SLEEP or before + answer.lease_left / 1000 - after < window:
            # The machine slept, or so much time passed that the write could outlive the lease: the call must not start.
            self._refusal = Refusal.LEASE_SHORT
            self._asleep = self._write_started_at is None
            raise FenceRefused(f"action {self.claim.id} of kind {self._kind.name}: {Interruption.ASLEEP.value}")
        self._write_started_at = answer.written_at
        self.deadline = after + window
        self.enforce()
        return WriteWindow(window)

    def _refuse_when_settled(self) -> None:
        # An adapter may shield its call from the cancellation: what was settled without this fence must not be called.
        if self.settled:
            raise FenceRefused(f"action {self.claim.id} of kind {self._kind.name}: {Refusal.NOT_HELD.value}")

    def enforce(self) -> None:
        """End the running adapter when its deadline has passed, else ask for an alarm at that moment."""
        if self._executing is None or self._expired:
            return
        if self._clock.boot() >= self.deadline:
            self._expired = True
            self._executing.cancel()
        else:
            self._alarm(self.deadline)

    def overrun(self) -> float:
        """Seconds since the deadline; an adapter that does not heed its cancellation overruns it."""
        return self._clock.boot() - self.deadline

    async def run(self) -> Outcome:
        """Run the adapter within its time and say what became of it; never raises."""
        try:
            action = self.claim.action
            self._payload = self._kind.variants.decode(action.payload or "", action.idempotency_key)
        except InvalidPayload as error:
            return self._invalid(error)
        except UnknownVariant:
            return Defer("this build does not decode the action's variant", wait=60.0)
        except Exception as error:  # noqa: BLE001 - the application's own validators run in there
            return self._raised(error)
        try:
            self._executing = asyncio.current_task()
            self.enforce()
            outcome: Outcome = await self._adapter.execute(self)
        except FenceRefused:
            outcome = Abandoned()
        except StorageError as error:
            outcome = Interrupted(Interruption.STORAGE, type(error).__name__)
        except asyncio.CancelledError:
            outcome = Interrupted(self._cancelled())
        except Exception as error:  # noqa: BLE001 - whatever an adapter raises ends its attempt, and nothing else
            outcome = self._raised(error)
        finally:
            self._executing = None
        # What an adapter says that swallowed the refusal counts: it may have called the provider all the same.
        asleep = self._asleep and isinstance(outcome, Abandoned | Interrupted)
        return Interrupted(Interruption.ASLEEP) if asleep else outcome

    def _cancelled(self) -> Interruption:
        if self._expired:
            return Interruption.TIMEOUT
        return Interruption.SHUTDOWN if self.shutting_down else Interruption.ABORTED

    def _invalid(self, error: InvalidPayload) -> Outcome:
        telemetry.event(
            logging.ERROR,
            "action.payload.invalid",
            action_id=self.claim.id,
            action_kind=self._kind.name,
            why=str(error),
        )
        if self.inherited_write_at is not None:
            return Uncertain("the payload can no longer be read, and an earlier write may exist")
        return Failed(StopReason.INVALID_PAYLOAD, str(error))

    def _raised(self, error: Exception) -> Interrupted:
        telemetry.raised(self.claim.id, self._kind.name, error)
        return Interrupted(Interruption.ERROR, type(error).__name__)
