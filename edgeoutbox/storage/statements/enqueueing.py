"""Enqueue: insert an action whose key is new, or answer with the one that holds the key."""

import logging

from edgeoutbox import telemetry
from edgeoutbox.errors import DatabaseBusy, InvalidRequest, KeyOfAnotherKind, LaneBusy, UndecodableInLane
from edgeoutbox.keys import digest_of_stored
from edgeoutbox.model import ActionRequest, Enqueued
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Supersede
from edgeoutbox.storage.statements.rows import column, text
from edgeoutbox.storage.statements.steps import Row, Steps
from edgeoutbox.variants import selects

# (new) -> PROPOSED or ADMITTED, unless the key is taken; served by the unique index on idempotency_key.
# The last two parameters are both the state.
INSERT = """
INSERT INTO agent_action (
  kind, workspace_id, lane_key, idempotency_key, run_id, payload, payload_digest, subject_account_id, max_attempts,
  due_at, expires_at, trace_parent, state, admitted_at
)
VALUES (
  ?, ?, ?, ?, ?, CAST(CAST(? AS TEXT) AS JSON), ?, ?, ?, COALESCE(?, edgeoutbox_now()), ?, ?, ?,
  CASE WHEN CAST(? AS TEXT) = 'ADMITTED' THEN edgeoutbox_now() END
)
ON CONFLICT (idempotency_key) DO NOTHING
RETURNING id
"""

# The action that holds a key.
HOLDER = f"""
SELECT id, kind, {column("lane_key")}, {column("payload_digest")}, {column("payload")}, state
FROM agent_action WHERE idempotency_key = ?
"""

# Everything open in a lane; served by ix_agent_action_open.
IN_LANE = f"""
SELECT id, kind, state, {column("payload")}, {column("idempotency_key")} FROM agent_action
WHERE lane_key = ? AND edgeoutbox_open(agent_action)
ORDER BY id
"""

# PROPOSED, ADMITTED -> CANCELLED, for all that waits in a lane. Last first: no action becomes head on the way.
SUPERSEDE = """
UPDATE agent_action
SET state = 'CANCELLED', stop_reason = 'SUPERSEDED', payload = NULL, is_head = 0, ended_at = edgeoutbox_now()
WHERE id = ? AND state IN ('PROPOSED', 'ADMITTED')
RETURNING id
"""

TRIES = 5
"""How often an enqueue finds its key taken, and freed again before it can see by whom, until it gives up."""


def enqueue(request: ActionRequest, *, proposed: bool = False, supersede: Supersede | None = None) -> Steps[Enqueued]:
    """Insert the request, or answer with the action that holds its key."""
    superseded: tuple[int, ...] = ()
    if supersede is not None:
        holder = yield HOLDER, (request.idempotency_key,)
        if not holder:
            superseded = yield from _supersede(request, supersede)
    state = State.PROPOSED if proposed else State.ADMITTED
    for _ in range(TRIES):
        rows = yield INSERT, _values(request, state)
        if rows:
            return Enqueued(
                rows[0][0], created=True, same_content=True, validated=False, state=state, superseded=superseded
            )
        holders = yield HOLDER, (request.idempotency_key,)
        if holders:
            return answer(request, holders[0])
    raise DatabaseBusy(
        f"kind {request.kind}: actions with this idempotency key were made and deleted {TRIES} times while it was "
        "enqueued; enqueue it again, and look who deletes them"
    )


def enqueue_many(
    requests: tuple[ActionRequest, ...], *, proposed: bool = False, supersede: Supersede | None = None
) -> Steps[list[Enqueued]]:
    """Enqueue each request, in order."""
    answers = []
    for request in requests:
        stored = yield from enqueue(request, proposed=proposed, supersede=supersede)
        answers.append(stored)
    return answers


def _values(request: ActionRequest, state: State) -> tuple[str | int | None, ...]:
    return (
        request.kind,
        request.workspace_id,
        request.lane_key,
        request.idempotency_key,
        request.run_id,
        request.payload_text,
        request.payload_digest,
        request.subject_account_id,
        request.max_attempts,
        request.due_at,
        request.expires_at,
        request.trace_parent,
        state.value,
        state.value,
    )


def answer(request: ActionRequest, holder: Row) -> Enqueued:
    """The answer with the action in a row of `HOLDER`. Raises `KeyOfAnotherKind`."""
    action_id, kind, state = holder[0], holder[1], holder[5]
    lane_key, stored_digest, payload = (text(value) for value in holder[2:5])
    if kind != request.kind:
        raise KeyOfAnotherKind(
            f"action {action_id} of kind {kind} holds this idempotency key; choose a key that names its kind"
        )
    same = lane_key == request.lane_key and _digest_of(stored_digest, payload) == request.payload_digest
    if not same:
        telemetry.event(
            logging.WARNING,
            "action.key.reused",
            action_id=action_id,
            action_kind=kind,
            what="the idempotency key is held by an action with another lane or payload; nothing was changed",
        )
    return Enqueued(action_id, created=False, same_content=same, validated=False, state=State(state))


def _digest_of(stored: str | None, payload: str | None) -> str | None:
    return digest_of_stored(payload) if stored is None and payload is not None else stored


def _supersede(request: ActionRequest, supersede: Supersede) -> Steps[tuple[int, ...]]:
    if request.lane_key is None:
        raise InvalidRequest("lane_key: superseding needs the lane whose actions it ends")
    rows = yield IN_LANE, (request.lane_key,)
    for action_id, kind, state, payload, key in rows:
        condition = supersede.decodable.get(kind)
        if condition is None or not selects(condition, text(payload) or "", text(key) or ""):
            raise UndecodableInLane(
                f"action {action_id} of kind {kind} in this lane cannot be decoded here, so it is not superseded; "
                "open the Outbox with an adapter that knows it"
            )
        if state == State.EXECUTING and supersede.if_running == "refuse":
            raise LaneBusy(f"action {action_id} of kind {kind} is executing in this lane; enqueue when it has ended")
    waiting = [row[0] for row in rows if row[2] != State.EXECUTING]
    superseded = set()
    for action_id in reversed(waiting):
        ended = yield SUPERSEDE, (action_id,)
        if ended:
            superseded.add(action_id)
        elif supersede.if_running == "refuse":  # only outside of a transaction, on a connection of the caller's
            raise LaneBusy(f"action {action_id} in this lane was claimed or ended just now; look again")
    return tuple(action_id for action_id in waiting if action_id in superseded)
