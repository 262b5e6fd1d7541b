"""Claim and fence: who owns an action, and the mark that a write may exist."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from edgeoutbox.keys import digest_of_stored
from edgeoutbox.model import Action
from edgeoutbox.storage.protocol import Claim, Fence, Refusal, Served
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.spelling import COLUMNS, IN_IDS, NOW, fields
from edgeoutbox.storage.statements.rows import NAMES, action_of, action_of_texts
from edgeoutbox.storage.statements.steps import Steps
from edgeoutbox.variants import Condition

Attempting: TypeAlias = tuple[int, int, str, int]
"""An attempt that wants to write: the action's id, the claim's epoch and owner, the write window."""

Claiming: TypeAlias = tuple[Sequence[Served], int, str, bool]
"""What to claim: the kinds, how many, for whom, and whether lost leases too."""

# Whether claims of a kind are allowed now: nobody paused it and it is not cooling down.
OPEN_KIND = f"""
NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = ? AND (paused_by IS NOT NULL OR cooling_until > {NOW}))
"""

# The kind if it is open, else NULL, which no row has: an index is then not walked for what may not be claimed.
IF_OPEN = f"(SELECT ? WHERE {OPEN_KIND})"

# A kind that nobody declared counts as at most once.
AT_MOST_ONCE = "NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = ? AND delivery <> 'at_most_once')"

# Due heads of one kind, oldest due first; served by ix_agent_action_head.
HEADS = """
SELECT id, due_at FROM (
  SELECT id, due_at FROM agent_action INDEXED BY ix_agent_action_head
  WHERE kind = {if_open} AND state = 'ADMITTED' AND is_head = 1 AND due_at <= {now}
    AND (expires_at IS NULL OR expires_at > {now}) AND {condition}
  ORDER BY due_at, id LIMIT ?
)
"""

# Lost leases of one kind that may be claimed again; served by ix_agent_action_lease.
LOST = """
SELECT id, lease_expires_at AS due_at FROM (
  SELECT id, lease_expires_at FROM agent_action INDEXED BY ix_agent_action_lease
  WHERE kind = {if_open} AND state = 'EXECUTING' AND lease_expires_at <= {now} AND lease_owner IS NOT ?
    AND attempt < COALESCE(max_attempts, ?)
    AND (write_started_at IS NOT NULL OR expires_at IS NULL OR expires_at > {now})
    AND (write_started_at IS NULL OR NOT {at_most_once}) AND {condition}
  ORDER BY lease_expires_at, id LIMIT ?
)
"""

# Both, oldest first, within the kind's own bound.
HEADS_AND_LOST = f"SELECT * FROM ({HEADS} UNION ALL {LOST} ORDER BY due_at, id LIMIT ?)"

# What to claim, as one JSON array: each row that a statement returns costs a wait for the interpreter's lock.
CANDIDATES = "SELECT json_group_array(id) FROM (SELECT id FROM ({candidates}) ORDER BY due_at, id LIMIT ?)"

# ADMITTED, EXECUTING -> EXECUTING. The parameters: the owner, a lease per kind, the candidates.
CLAIM = """
UPDATE agent_action
SET state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, lease_owner = ?,
    lease_expires_at = {now} + CASE kind {leases} END
WHERE {in_ids}
"""

# What was claimed: as one JSON array, or, when a text in it is not UTF-8, row by row.
CLAIMED = f"""
SELECT CAST(json_group_array(json_array({", ".join(NAMES)})) AS BLOB) FROM agent_action
WHERE {IN_IDS}
"""
CLAIMED_EACH = f"SELECT {COLUMNS} FROM agent_action WHERE {IN_IDS}"

# ADMITTED -> EXECUTING for one head, whatever its due_at.
CLAIM_ONE = """
UPDATE agent_action
SET state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, lease_owner = ?, lease_expires_at = {now} + ?
WHERE id = ? AND kind = ? AND state = 'ADMITTED' AND is_head = 1 AND (expires_at IS NULL OR expires_at > {now})
  AND {open_kind} AND {condition}
RETURNING {columns}
"""

# The digest of a row that another program inserted by SQL.
FILL_DIGEST = "UPDATE agent_action SET payload_digest = ? WHERE id = ? AND payload_digest IS NULL RETURNING id"

# Which of many attempts hold their actions. Whatever is written for one is written in the transaction that asks this.
HOLDING = f"""
FROM {fields("id", "epoch", "owner")} AS held
JOIN agent_action ON agent_action.id = held.id AND agent_action.epoch = held.epoch AND lease_owner = held.owner
WHERE agent_action.state = 'EXECUTING'
"""

# For their fences: the time, and of each what is left of the lease and whether the action has expired.
HELD_LEASES = f"""
SELECT {NOW}, json_group_array(json_array(place, lease_expires_at - {NOW}, COALESCE(expires_at <= {NOW}, 0)))
{HOLDING}
"""

# The fence of held actions. The first unproven write keeps its time, so that a later attempt knows that it must read
# back first.
BEGIN_WRITE = f"""
UPDATE agent_action SET write_started_at = COALESCE(write_started_at, ?)
WHERE {IN_IDS}
"""


def claim(served: Sequence[Served], limit: int, owner: str, *, reclaim: bool) -> Steps[list[Claim]]:
    """Take due heads and lost leases of the served kinds."""
    wanted = [kind for kind in served if kind.limit > 0]
    if not wanted or limit <= 0:
        return []
    candidates, update = _claim_sql(tuple((kind.kind, kind.condition) for kind in wanted), reclaim)
    bounds: list[str | int] = []
    for kind in wanted:
        bounds += [kind.kind, kind.kind, kind.limit]
        if reclaim:
            bounds += [kind.kind, kind.kind, owner, kind.max_attempts, kind.kind, kind.limit, kind.limit]
    [(chosen,)] = yield candidates, [*bounds, limit]
    if chosen == "[]":
        return []
    leases = {kind.kind: kind.lease for kind in wanted}
    yield update, [owner, *(value for lease in leases.items() for value in lease), chosen]
    actions = yield from _actions(chosen)
    actions.sort(key=lambda action: (action.due_at, action.id))
    return (yield from _claims(actions, owner, leases))


def claim_many(claimings: Sequence[Claiming]) -> Steps[list[list[Claim]]]:
    """Claim for each, one after the other."""
    claims = []
    for served, limit, owner, reclaim in claimings:
        claims.append((yield from claim(served, limit, owner, reclaim=reclaim)))
    return claims


def _actions(chosen: str) -> Steps[list[Action]]:
    [(claimed,)] = yield CLAIMED, (chosen,)
    try:
        return [action_of_texts(values) for values in json.loads(claimed.decode())]
    except UnicodeDecodeError:
        rows = yield CLAIMED_EACH, (chosen,)
        return [action_of(row) for row in rows]


def claim_one(served: Served, action_id: int, owner: str) -> Steps[Claim | None]:
    """Take this head, when it can be taken."""
    sql = _claim_one_sql(served.condition)
    rows = yield sql, (owner, served.lease, action_id, served.kind, served.kind)
    claims = yield from _claims([action_of(row) for row in rows], owner, {served.kind: served.lease})
    return claims[0] if claims else None


def begin_writes(attempts: Sequence[Attempting]) -> Steps[list[Fence | Refusal]]:
    """Set the fences of many attempts, or say why not."""
    answers: list[Fence | Refusal] = [Refusal.NOT_HELD] * len(attempts)
    fenced = []
    [(now, held)] = yield HELD_LEASES, (json.dumps(attempts),)
    for place, lease_left, expired in json.loads(held):
        if expired:
            answers[place] = Refusal.EXPIRED
        elif lease_left < attempts[place][3]:
            answers[place] = Refusal.LEASE_SHORT
        else:
            answers[place] = Fence(now, lease_left)
            fenced.append(attempts[place][0])
    if fenced:
        yield BEGIN_WRITE, (now, json.dumps(fenced))
    return answers


def _claims(actions: list[Action], owner: str, leases: Mapping[str, int]) -> Steps[list[Claim]]:
    for place, action in enumerate(actions):
        if action.payload_digest is None and (filled := digest_of_stored(action.payload or "")) is not None:
            yield FILL_DIGEST, (filled, action.id)
            actions[place] = replace(action, payload_digest=filled)
    return [Claim(action, owner, (action.lease_expires_at or 0) - leases[action.kind]) for action in actions]


@lru_cache(maxsize=64)
def _claim_sql(kinds: tuple[tuple[str, Condition], ...], reclaim: bool) -> tuple[str, str]:
    candidates = " UNION ALL ".join(
        (HEADS_AND_LOST if reclaim else HEADS).format(
            now=NOW, if_open=IF_OPEN, at_most_once=AT_MOST_ONCE, condition=sql_of(condition)
        )
        for _, condition in kinds
    )
    update = CLAIM.format(now=NOW, leases="WHEN ? THEN ? " * len(kinds), in_ids=IN_IDS)
    return CANDIDATES.format(candidates=candidates), update


@lru_cache(maxsize=64)
def _claim_one_sql(condition: Condition) -> str:
    return CLAIM_ONE.format(now=NOW, open_kind=OPEN_KIND, condition=sql_of(condition), columns=COLUMNS)
