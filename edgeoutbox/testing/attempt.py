"""An attempt without an executor: for the unit tests of an adapter."""

from typing import Any, Generic, TypeVar

from edgeoutbox.adapter import WriteWindow
from edgeoutbox.errors import SecondWrite
from edgeoutbox.model import Action
from edgeoutbox.states import State

P_co = TypeVar("P_co", covariant=True)

CREATED_AT = 1_767_225_600_000
"""When the actions of `an_action` were created: 2026-01-01 00:00:00 UTC, in milliseconds."""


def an_action(**fields: Any) -> Action:
    """An action in its first attempt; `fields` replace what it would be."""
    usual: dict[str, Any] = {
        "id": 1,
        "kind": "email",
        "workspace_id": "default",
        "lane_key": None,
        "idempotency_key": "test:1",
        "run_id": None,
        "payload": None,
        "payload_digest": None,
        "subject_account_id": None,
        "state": State.EXECUTING,
        "is_head": True,
        "epoch": 1,
        "attempt": 1,
        "max_attempts": None,
        "due_at": CREATED_AT,
        "expires_at": None,
        "lease_owner": "test",
        "lease_expires_at": CREATED_AT + 120_000,
        "write_started_at": None,
        "readback_ref": None,
        "stop_reason": None,
        "last_error": None,
        "decided_by": None,
        "decided_at": None,
        "decision_note": None,
        "forget_at_end": False,
        "trace_parent": None,
        "created_at": CREATED_AT,
        "admitted_at": CREATED_AT,
        "ended_at": None,
    }
    return Action(**{**usual, **fields})


class ScriptedAttempt(Generic[P_co]):
    """An attempt that counts its fences and can be told to refuse them.

    `refuse` is raised by `begin_write` instead of an answer, such as `FenceRefused()`. `writes` counts the fences
    that were given. Like an executor it refuses a second one, with `SecondWrite`, unless `writes_allowed` is higher.
    """

    def __init__(
        self,
        payload: P_co,
        action: Action | None = None,
        *,
        window: float = 60.0,
        refuse: Exception | None = None,
        inherited_write_at: int | None = None,
        last: bool = False,
        writes_allowed: int = 1,
    ) -> None:
        self._payload = payload
        self._window = window
        self._refuse = refuse
        self._writes_allowed = writes_allowed
        self.action = an_action() if action is None else action
        self.inherited_write_at = inherited_write_at
        self.last = last
        self.writes = 0

    @property
    def payload(self) -> P_co:
        """The typed payload."""
        return self._payload

    @property
    def write_started_at(self) -> int | None:
        """When the first fence was given: as good as at once."""
        return self.action.created_at if self.writes else None

    async def begin_write(self) -> WriteWindow:
        """Count a fence and give the window, or raise what the test asked for."""
        if self._refuse is not None:
            raise self._refuse
        if self.writes >= self._writes_allowed:
            raise SecondWrite
        self.writes += 1
        return WriteWindow(self._window)
