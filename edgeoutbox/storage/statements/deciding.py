"""Decide: admit, refuse, withdraw, forget and erase."""

from edgeoutbox.errors import ActionRunning, DigestMismatch, InvalidRequest, NoSuchAction, NotPossible
from edgeoutbox.keys import digest_of_json
from edgeoutbox.model import Action
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Decision
from edgeoutbox.storage.statements.executors import serving
from edgeoutbox.storage.statements.owed import FORGET_ENDED
from edgeoutbox.storage.statements.rows import COLUMNS, action_of
from edgeoutbox.storage.statements.steps import Steps

FIND = f"SELECT {COLUMNS} FROM agent_action WHERE id = ?"

# PROPOSED -> ADMITTED, with the digest of what was approved.
ADMIT = f"""
UPDATE agent_action
SET state = 'ADMITTED', decided_by = ?, decided_at = edgeoutbox_now(), decision_note = ?,
    admitted_at = edgeoutbox_now(), payload_digest = COALESCE(payload_digest, ?)
WHERE id = ? AND state = 'PROPOSED' AND (expires_at IS NULL OR expires_at > edgeoutbox_now())
RETURNING {COLUMNS}
"""

# PROPOSED -> CANCELLED (refused); PROPOSED, ADMITTED -> CANCELLED (withdrawn).
CANCEL = f"""
UPDATE agent_action
SET state = 'CANCELLED', stop_reason = ?, payload = NULL, is_head = 0, ended_at = edgeoutbox_now(),
    decided_by = COALESCE(?, decided_by), decided_at = edgeoutbox_now(), decision_note = COALESCE(?, decision_note)
WHERE id = ? AND state IN ('PROPOSED', 'ADMITTED')
RETURNING {COLUMNS}
"""

# EXECUTING -> UNCERTAIN when a write may exist, else CANCELLED, for a lost lease.
WITHDRAW_LOST = f"""
UPDATE agent_action
SET state = CASE WHEN write_started_at IS NULL THEN 'CANCELLED' ELSE 'UNCERTAIN' END,
    stop_reason = CASE WHEN write_started_at IS NULL THEN 'WITHDRAWN' ELSE 'LEASE_LOST_AFTER_WRITE' END,
    payload = NULL, is_head = 0, ended_at = edgeoutbox_now(), lease_owner = NULL, lease_expires_at = NULL,
    decided_by = COALESCE(?, decided_by), decided_at = edgeoutbox_now(), decision_note = COALESCE(?, decision_note)
WHERE id = ? AND state = 'EXECUTING' AND lease_expires_at <= edgeoutbox_now()
RETURNING {COLUMNS}
"""

# Whatever its state; served by ix_agent_action_subject. Triggers delete the dispatch log and pass the lanes on.
ERASE = "DELETE FROM agent_action WHERE subject_account_id = ? RETURNING id"

# What of a run has not started, latest first: no action becomes head on the way. Served by ix_agent_action_run.
OF_RUN = "SELECT id FROM agent_action WHERE run_id = ? AND state IN ('PROPOSED', 'ADMITTED') ORDER BY id DESC"

FORGET_LATER = f"UPDATE agent_action SET forget_at_end = 1 WHERE id = ? AND ended_at IS NULL RETURNING {COLUMNS}"

FORGET_AFTER_HOOK = "UPDATE agent_action_ended SET forget = 1 WHERE action_id = ?"

BY_KEY = "SELECT id FROM agent_action WHERE idempotency_key = ?"


def decide(action_id: int, decision: Decision) -> Steps[Action]:
    """Take the decision, or raise why it cannot be taken."""
    rows = yield FIND, (action_id,)
    if not rows:
        raise NoSuchAction(f"no action has the id {action_id}; it never existed, was erased, or its retention passed")
    action = action_of(rows[0])
    what = f"action {action.id} of kind {action.kind}"
    match decision.verdict:
        case "admit":
            rows = yield from _admit(action, decision, what)
        case "refuse":
            _require_refusable(action, what)
            rows = yield CANCEL, ("REFUSED", decision.by, decision.note, action_id)
        case "withdraw":
            _require_withdrawable(action, what)
            rows = yield CANCEL, ("WITHDRAWN", decision.by, decision.note, action_id)
        case "withdraw_lost":
            rows = yield from _withdraw_lost(action, decision, what)
    if not rows:  # on a connection of the caller's to Postgres: somebody was faster
        raise NotPossible(f"{what} changed in the meantime; look at it again")
    ended = action_of(rows[0])
    if ended.ended and ended.forget_at_end:
        yield FORGET_ENDED, (action_id,)
    return ended


def withdraw_run(run_id: str, decision: Decision) -> Steps[list[Action]]:
    """Withdraw what of a run has not started."""
    rows = yield OF_RUN, (run_id,)
    withdrawn = []
    for (action_id,) in rows:
        withdrawn.append((yield from decide(action_id, decision)))
    return withdrawn


def _require_refusable(action: Action, what: str) -> None:
    if action.state is not State.PROPOSED:
        raise NotPossible(f"{what} is {action.state}, not PROPOSED; only a proposal can be refused")


def _require_withdrawable(action: Action, what: str) -> None:
    if action.state is State.EXECUTING:
        raise ActionRunning(f"{what} is executing and may be in the provider's hands; wait for it to end")
    if action.ended:
        raise NotPossible(f"{what} has ended {action.state} ({action.stop_reason}); nothing is left of it")


def _admit(action: Action, decision: Decision, what: str) -> Steps[list[tuple[object, ...]]]:
    if action.state is not State.PROPOSED:
        raise NotPossible(f"{what} is {action.state}, not PROPOSED; only a proposal can be admitted")
    try:
        stored = digest_of_json(action.payload or "")
    except InvalidRequest as error:
        raise NotPossible(f"{what} cannot be admitted: {error}") from None
    if stored != decision.payload_digest or action.payload_digest not in {None, stored}:
        raise DigestMismatch(f"{what}: the digest is not that of the stored payload; read it again and decide anew")
    rows = yield ADMIT, (decision.by, decision.note, stored, action.id)
    if not rows:
        raise NotPossible(f"{what} has expired; propose it again if it is still wanted")
    return rows


def _withdraw_lost(action: Action, decision: Decision, what: str) -> Steps[list[tuple[object, ...]]]:
    if action.state is not State.EXECUTING:
        raise NotPossible(f"{what} is {action.state}, not EXECUTING; withdraw it without lost=True")
    served_by = yield from serving(action)
    if served_by:
        raise ActionRunning(f"{what} is served by a running executor, which will end it itself")
    rows = yield WITHDRAW_LOST, (decision.by, decision.note, action.id)
    if not rows:
        raise ActionRunning(f"{what} still has its lease; wait until that has ended")
    return rows


def erase(subject_account_id: str) -> Steps[int]:
    """Delete the subject's actions, with what was logged of them."""
    rows = yield ERASE, (subject_account_id,)
    return len(rows)


def forget(idempotency_key: str) -> Steps[bool]:
    """Delete an ended action, or mark a live one."""
    rows = yield BY_KEY, (idempotency_key,)
    if not rows:
        return False
    action_id = rows[0][0]
    marked = yield FORGET_LATER, (action_id,)
    if not marked:
        yield FORGET_AFTER_HOOK, (action_id,)
        yield FORGET_ENDED, (action_id,)
    return True
