"""Enqueue: many requests in one statement, and what many writers at once make necessary."""

import json
from collections.abc import Sequence
from typing import TypeAlias

from edgeoutbox.errors import DatabaseBusy
from edgeoutbox.model import ActionRequest, Enqueued
from edgeoutbox.states import State
from edgeoutbox.storage.postgres.errors import BUSY
from edgeoutbox.storage.postgres.lanes import locks
from edgeoutbox.storage.postgres.running import Ahead
from edgeoutbox.storage.protocol import Supersede
from edgeoutbox.storage.statements import enqueueing
from edgeoutbox.storage.statements.lanes import Lanes
from edgeoutbox.storage.statements.rows import column
from edgeoutbox.storage.statements.steps import Row, Statement, Steps

Enqueueing: TypeAlias = tuple[Sequence[ActionRequest], bool]
"""Requests that are stored in this order, and whether they are proposals."""

ROWS = 500
"""How many rows one statement inserts at most."""

LOOKS = 10
"""How often a key is looked for that is taken when we insert, and free when we look whose it is."""

_TEXTS = (
    "kind", "workspace_id", "lane_key", "idempotency_key", "run_id", "payload_digest", "subject_account_id",
    "trace_parent",
)  # fmt: skip
_NUMBERS = ("max_attempts", "due_at", "expires_at")

# (new) -> PROPOSED or ADMITTED, unless the key is taken.
INSERT = f"""
INSERT INTO agent_action ({", ".join(_TEXTS)}, max_attempts, expires_at, due_at, payload, state, admitted_at)
SELECT {", ".join(_TEXTS)}, max_attempts, expires_at, COALESCE(due_at, edgeoutbox_now()), CAST(payload AS json), state,
       CASE WHEN state = 'ADMITTED' THEN edgeoutbox_now() END
FROM json_to_recordset(CAST(? AS json))
       AS said(place bigint, {", ".join(f"{name} text" for name in (*_TEXTS, "payload", "state"))},
               {", ".join(f"{name} bigint" for name in _NUMBERS)})
ORDER BY place
ON CONFLICT (idempotency_key) DO NOTHING
RETURNING idempotency_key, id
"""

# The actions that hold keys.
HOLDERS = f"""
SELECT id, kind, {column("lane_key")}, {column("payload_digest")}, {column("payload")}, state, idempotency_key
FROM agent_action
WHERE idempotency_key IN (SELECT value FROM json_array_elements_text(CAST(? AS json)))
"""


def enqueue_all(items: Sequence[Enqueueing]) -> Steps[list[list[Enqueued]]]:
    """Insert every request whose key is new, for many callers at once; each caller's in its order."""
    # No caller's order matters to another's: all go by lanes, as the heads of lanes are looked after at the commit.
    order = sorted(range(len(items)), key=lambda place: items[place][0][0].lane_key or "" if items[place][0] else "")
    flat = [(place, request, items[place][1]) for place in order for request in items[place][0]]
    yield from _ahead(locks(Lanes.of(request for _, request, _ in flat)))
    answers: list[list[Enqueued]] = [[] for _ in items]
    for start in range(0, len(flat), ROWS):
        part = flat[start : start + ROWS]
        stored = yield from _enqueue([(request, proposed) for _, request, proposed in part])
        for (place, _, _), answer in zip(part, stored, strict=True):
            answers[place].append(answer)
    return answers


def superseding(requests: Sequence[ActionRequest], *, proposed: bool, supersede: Supersede) -> Steps[list[Enqueued]]:
    """Enqueue each request, and end what waits in its lane: nobody inserts there or claims meanwhile."""
    yield from _ahead(locks(Lanes.of(requests, supersedes=True)))
    return (yield from enqueueing.enqueue_many(tuple(requests), proposed=proposed, supersede=supersede))


def _ahead(statements: Sequence[Statement]) -> Steps[None]:
    for statement in statements:
        yield Ahead(*statement)


def _enqueue(requests: Sequence[tuple[ActionRequest, bool]]) -> Steps[list[Enqueued]]:
    answers: dict[int, Enqueued] = {}
    for _ in range(LOOKS):
        left = [place for place in range(len(requests)) if place not in answers]
        if not left:
            break
        rows = yield INSERT, (json.dumps([_said(place, *requests[place]) for place in left]),)
        created: dict[str, int] = dict(rows)
        others = []
        for place in left:
            request, proposed = requests[place]
            action_id = created.pop(request.idempotency_key, None)
            if action_id is None:
                others.append(place)
                continue
            answers[place] = Enqueued(
                action_id,
                created=True,
                same_content=True,
                validated=False,
                state=State.PROPOSED if proposed else State.ADMITTED,
            )
        if others:
            held = yield HOLDERS, (json.dumps([requests[place][0].idempotency_key for place in others]),)
            holders: dict[str, Row] = {row[6]: row for row in held}
            # A key that nobody holds any more was erased between the two looks.
            for place in others:
                request, _ = requests[place]
                if request.idempotency_key in holders:
                    answers[place] = enqueueing.answer(request, holders[request.idempotency_key])
    else:
        raise DatabaseBusy(BUSY)
    return [answers[place] for place in range(len(requests))]


def _said(place: int, request: ActionRequest, proposed: bool) -> dict[str, str | int | None]:
    return {
        "place": place,
        **{name: getattr(request, name) for name in (*_TEXTS, *_NUMBERS)},
        "payload": request.payload_text,
        "state": (State.PROPOSED if proposed else State.ADMITTED).value,
    }
