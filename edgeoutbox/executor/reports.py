"""Reports: what an executor counts and logs about attempts, ends and its database."""

import logging

from edgeoutbox import telemetry
from edgeoutbox.errors import StorageError
from edgeoutbox.executor.attempt import RunningAttempt
from edgeoutbox.states import MEANINGS, State, StopReason
from edgeoutbox.storage.protocol import Settlement
from edgeoutbox.telemetry import Metrics


class Reports:
    """One executor's counters, and its view of the database: an outage is said once, and its end."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.storage_works = True

    def storage(self, error: Exception | None) -> None:
        """Note how an operation went: `None` when the database carried it out."""
        works = error is None
        if works is self.storage_works:
            return
        self.storage_works = works
        if error is None:
            telemetry.event(logging.WARNING, "storage.available")
        else:
            what = str(error) if isinstance(error, StorageError) else "an error that nobody foresaw"
            telemetry.event(logging.ERROR, "storage.unavailable", error=type(error).__name__, what=what)

    def attempt(self, attempt: RunningAttempt, settlement: Settlement, *, recorded: bool) -> None:
        """Count an attempt, and its action's end."""
        kind = attempt.action.kind
        self.metrics.count("action.attempts", kind, settlement.result, "true" if recorded else "false")
        if recorded and settlement.state.ended:
            self.end(attempt.action.id, kind, settlement.state, str(settlement.stop_reason), settlement.reason)
        if settlement.cools != "no":
            telemetry.event(logging.WARNING, "kind.cooling", action_kind=kind, reason=settlement.reason)

    def abandoned(self, attempt: RunningAttempt) -> None:
        """Count an attempt whose action another holder owns."""
        self.metrics.count("action.attempts", attempt.action.kind, "Abandoned", "false")

    def end(self, action_id: int, kind: str, state: State, stop_reason: str, reason: str | None) -> None:
        """Count an end, and log one line for an UNCERTAIN one."""
        self.metrics.count("action.ended", kind, state.value, stop_reason)
        if state is State.UNCERTAIN:
            telemetry.uncertain(action_id, kind, stop_reason, reason or MEANINGS[StopReason(stop_reason)])

    def trouble(self, name: str, attempt: RunningAttempt, **fields: str) -> None:
        """Log an error about one attempt."""
        telemetry.event(logging.ERROR, name, action_id=attempt.action.id, action_kind=attempt.action.kind, **fields)
