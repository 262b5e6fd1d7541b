"""Rows of `agent_action` and their mapping."""

from typing import Any

from edgeoutbox.model import Action
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.statements.steps import Row

NAMES = (
    "id", "kind", "workspace_id", "lane_key", "idempotency_key", "run_id", "payload", "payload_digest",
    "subject_account_id", "state", "is_head", "epoch", "attempt", "max_attempts", "due_at", "expires_at", "lease_owner",
    "lease_expires_at", "write_started_at", "readback_ref", "stop_reason", "last_error", "decided_by", "decided_at",
    "decision_note", "forget_at_end", "trace_parent", "created_at", "admitted_at", "ended_at",
)  # fmt: skip
"""The columns of an action, in the order of the fields of `Action`."""

FREE_TEXT = frozenset({
    "workspace_id", "lane_key", "idempotency_key", "run_id", "payload", "payload_digest", "subject_account_id",
    "readback_ref", "last_error", "decided_by", "decision_note", "trace_parent",
})  # fmt: skip
"""Text that another program may have written, in any encoding: SQLite stores what it is given."""


def column(name: str, table: str = "agent_action") -> str:
    """A column as it is read, in the words of shared statements."""
    return f"edgeoutbox_text({table}.{name})" if name in FREE_TEXT else f"{table}.{name}"


def columns(table: str = "agent_action") -> str:
    """Every column of an action."""
    return ", ".join(column(name, table) for name in NAMES)


COLUMNS = columns()

_STATES = {state.value: state for state in State}
_REASONS: dict[str | None, StopReason | None] = {None: None, **{reason.value: reason for reason in StopReason}}


def text(value: bytes | str | None) -> str | None:
    """Free text, which a database may read as bytes. What is not UTF-8 shows escapes, with which no JSON is read."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def action_of(row: Row) -> Action:
    """The action in a row of `COLUMNS`."""
    return action_of_texts([text(value) if isinstance(value, bytes) else value for value in row])


def action_of_texts(values: list[Any]) -> Action:
    """The action in the values of a row that holds no bytes; the list is used up."""
    values[9], values[10] = _STATES[values[9]], bool(values[10])
    values[20], values[25] = _REASONS[values[20]], bool(values[25])
    return Action(*values)
