"""Rows of `agent_action` and their mapping."""

from edgeoutbox.model import Action
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.sqlite.steps import Row

COLUMNS = (
    "id, kind, workspace_id, lane_key, idempotency_key, run_id, payload, payload_digest, subject_account_id, state, "
    "is_head, epoch, attempt, max_attempts, due_at, expires_at, lease_owner, lease_expires_at, write_started_at, "
    "readback_ref, stop_reason, last_error, decided_by, decided_at, decision_note, forget_at_end, trace_parent, "
    "created_at, admitted_at, ended_at"
)
"""The columns of an action, in the order of the fields of `Action`."""

_STATES = {state.value: state for state in State}
_REASONS: dict[str | None, StopReason | None] = {None: None, **{reason.value: reason for reason in StopReason}}


def action_of(row: Row) -> Action:
    """The action in a row of `COLUMNS`."""
    values = list(row)
    values[9], values[10] = _STATES[row[9]], bool(row[10])
    values[20], values[25] = _REASONS[row[20]], bool(row[25])
    return Action(*values)
