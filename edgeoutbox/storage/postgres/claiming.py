"""Claim and fence: who owns an action, and the mark that a write may exist."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from edgeoutbox.keys import digest_of_stored
from edgeoutbox.storage.postgres.conditions import sql_of
from edgeoutbox.storage.postgres.running import Ahead
from edgeoutbox.storage.protocol import Claim, Fence, Refusal, Served
from edgeoutbox.storage.statements.rows import action_of, columns
from edgeoutbox.storage.statements.steps import Row, Steps
from edgeoutbox.variants import Condition

Attempting: TypeAlias = tuple[int, int, str, int]
"""An attempt that wants to write: the action's id, the claim's epoch and owner, the write window."""

# Whether claims of a kind are allowed now: nobody paused it and it is not cooling down.
OPEN_KIND = """
NOT EXISTS (
  SELECT 1 FROM agent_action_kind
  WHERE kind = CAST(? AS text) AND (paused_by IS NOT NULL OR cooling_until > edgeoutbox_now())
)
"""

# The kind if it is open, else NULL, which no row has: an index is then not walked for what may not be claimed.
IF_OPEN = f"(SELECT CAST(? AS text) WHERE {OPEN_KIND})"

# A kind that nobody declared counts as at most once.
AT_MOST_ONCE = (
    "NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = CAST(? AS text) AND delivery <> 'at_most_once')"
)

# Due heads of one kind; served by ix_agent_action_head.
IS_DUE = f"""
kind = {IF_OPEN} AND state = 'ADMITTED' AND is_head = 1 AND due_at <= edgeoutbox_now()
AND (expires_at IS NULL OR expires_at > edgeoutbox_now()) AND {{condition}}
"""

# Lost leases of one kind that may be claimed again; served by ix_agent_action_lease.
IS_LOST = f"""
kind = {IF_OPEN} AND state = 'EXECUTING' AND lease_expires_at <= edgeoutbox_now()
AND lease_owner IS DISTINCT FROM CAST(? AS text) AND attempt < COALESCE(max_attempts, CAST(? AS bigint))
AND (write_started_at IS NOT NULL OR expires_at IS NULL OR expires_at > edgeoutbox_now())
AND (write_started_at IS NULL OR NOT {AT_MOST_ONCE}) AND {{condition}}
"""

# Oldest due first. What another transaction holds is left to it.
HEADS = f"""
SELECT id, due_at FROM agent_action WHERE {IS_DUE} ORDER BY due_at, id LIMIT ? FOR NO KEY UPDATE SKIP LOCKED
"""
LOST = f"""
SELECT id, lease_expires_at AS due_at FROM agent_action WHERE {IS_LOST}
ORDER BY lease_expires_at, id LIMIT ? FOR NO KEY UPDATE SKIP LOCKED
"""

# Both, oldest first, within the kind's own bound.
HEADS_AND_LOST = """
SELECT * FROM (
  SELECT * FROM ({heads}) AS heads UNION ALL SELECT * FROM ({lost}) AS lost ORDER BY due_at, id LIMIT ?
) AS both_
"""

# ADMITTED, EXECUTING -> EXECUTING. The parameters: those of the candidates, the limit, the owner, a lease per kind.
CLAIM = f"""
WITH chosen AS MATERIALIZED (
  SELECT id FROM ({{candidates}}) AS candidates ORDER BY due_at, id LIMIT ?
)
UPDATE agent_action
SET state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, lease_owner = ?,
    lease_expires_at = edgeoutbox_now() + CASE kind {{leases}} END
FROM chosen WHERE agent_action.id = chosen.id
RETURNING {columns()}
"""

# ADMITTED -> EXECUTING for one head, whatever its due_at.
CLAIM_ONE = f"""
UPDATE agent_action
SET state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, lease_owner = ?,
    lease_expires_at = edgeoutbox_now() + CAST(? AS bigint)
WHERE id = ? AND kind = ? AND state = 'ADMITTED' AND is_head = 1
  AND (expires_at IS NULL OR expires_at > edgeoutbox_now()) AND {OPEN_KIND} AND {{condition}}
RETURNING {columns()}
"""

# The digest of a row that another program inserted by SQL.
FILL_DIGEST = "UPDATE agent_action SET payload_digest = ? WHERE id = ? AND payload_digest IS NULL"

# Wait for these rows, in the order in which everybody waits for rows. Whoever has waited judges in a new statement: it
# sees what was committed meanwhile, and its clock is not the one of before the wait.
LOCK = """
SELECT action.id
FROM (SELECT CAST(value AS bigint) AS id FROM json_array_elements_text(CAST(? AS json)) ORDER BY 1) AS wanted
CROSS JOIN LATERAL (SELECT id FROM agent_action WHERE id = wanted.id FOR NO KEY UPDATE) AS action
"""

# Still EXECUTING until its lease ends, but nobody's.
LET_GO = """
UPDATE agent_action SET lease_owner = NULL WHERE id = ? AND epoch = ? AND lease_owner = ? AND state = 'EXECUTING'
"""

# A row by its id, to be joined LATERAL, and then to be changed by its ctid: it is locked before, so it gets no other
# version. OFFSET keeps the planner from joining in another order, which would read all rows when it believes that they
# are few.
THE_ACTION = """
SELECT ctid, epoch, state, lane_key, lease_owner, lease_expires_at, expires_at
FROM agent_action WHERE id = {id} OFFSET 0
"""

# The fences of many attempts that hold their actions and have time to write. The first unproven write keeps its time,
# so that a later attempt knows that it must read back first.
BEGIN_WRITE = f"""
WITH held AS MATERIALIZED (
  SELECT place, write_window, asked.id, action.ctid AS at, lease_expires_at - edgeoutbox_now() AS lease_left,
         COALESCE(expires_at <= edgeoutbox_now(), false) AS expired
  FROM json_to_recordset(CAST(? AS json))
         AS asked(place bigint, id bigint, epoch bigint, owner text, write_window bigint)
  CROSS JOIN LATERAL ({THE_ACTION.format(id="asked.id")}) AS action
  WHERE action.epoch = asked.epoch AND lease_owner = asked.owner AND state = 'EXECUTING'
), written AS (
  UPDATE agent_action SET write_started_at = COALESCE(write_started_at, edgeoutbox_now())
  FROM held WHERE agent_action.ctid = held.at AND NOT expired AND lease_left >= write_window
  RETURNING agent_action.id
)
SELECT place, edgeoutbox_now(), lease_left, expired, written.id IS NOT NULL
FROM held LEFT JOIN written ON written.id = held.id
"""


def claim(served: Sequence[Served], limit: int, owner: str, *, reclaim: bool) -> Steps[list[Claim]]:
    """Take due heads and lost leases of the served kinds."""
    wanted = [kind for kind in served if kind.limit > 0]
    if not wanted or limit <= 0:
        return []
    bounds: list[str | int] = []
    for kind in wanted:
        bound = min(kind.limit, limit)
        bounds += [kind.kind, kind.kind, bound]
        if reclaim:
            bounds += [kind.kind, kind.kind, owner, kind.max_attempts, kind.kind, bound, bound]
    leases = {kind.kind: kind.lease for kind in wanted}
    sql = _claim_sql(tuple((kind.kind, kind.condition) for kind in wanted), reclaim)
    rows = yield sql, [*bounds, limit, owner, *(value for lease in leases.items() for value in lease)]
    rows.sort(key=lambda row: (row[14], row[0]))
    claims = []
    for row in rows:
        claim = yield from _claimed(row, owner, leases[row[1]])
        claims.append(claim)
    return claims


def claim_one(served: Served, action_id: int, owner: str) -> Steps[list[Claim]]:
    """Take this head, when it can be taken."""
    yield Ahead(LOCK, (json.dumps([action_id]),))
    sql = CLAIM_ONE.format(condition=sql_of(served.condition))
    rows = yield sql, (owner, served.lease, action_id, served.kind, served.kind)
    claims = []
    for row in rows:
        claim = yield from _claimed(row, owner, served.lease)
        claims.append(claim)
    return claims


def let_go_all(claims: Sequence[Claim]) -> Steps[None]:
    """Let these claims be nobody's, so that whoever comes when their leases end may claim again."""
    if claims:
        yield Ahead(LOCK, (json.dumps([claim.id for claim in claims]),))
    for claim in claims:
        yield Ahead(LET_GO, (claim.id, claim.epoch, claim.owner))


def begin_writes(attempts: Sequence[Attempting]) -> Steps[list[Fence | Refusal]]:
    """Set the fences of many attempts, or say why not."""
    names = ("id", "epoch", "owner", "write_window")
    asked = [{"place": place, **dict(zip(names, attempt, strict=True))} for place, attempt in enumerate(attempts)]
    yield Ahead(LOCK, (json.dumps([attempt[0] for attempt in attempts]),))
    rows = yield BEGIN_WRITE, (json.dumps(asked),)
    answers: list[Fence | Refusal] = [Refusal.NOT_HELD] * len(attempts)
    for place, now, lease_left, expired, written in rows:
        if expired:
            answers[place] = Refusal.EXPIRED
        elif lease_left < attempts[place][3]:
            answers[place] = Refusal.LEASE_SHORT
        elif written:
            answers[place] = Fence(now, lease_left)
    return answers


def _claimed(row: Row, owner: str, lease: int) -> Steps[Claim]:
    action = action_of(row)
    if action.payload_digest is None and (filled := digest_of_stored(action.payload or "")) is not None:
        yield Ahead(FILL_DIGEST, (filled, action.id))
        action = replace(action, payload_digest=filled)
    return Claim(action, owner, (action.lease_expires_at or 0) - lease)


@lru_cache(maxsize=64)
def _claim_sql(kinds: tuple[tuple[str, Condition], ...], reclaim: bool) -> str:
    parts = []
    for _, condition in kinds:
        where = sql_of(condition)
        heads = HEADS.format(condition=where)
        if reclaim:
            lost = LOST.format(condition=where)
            parts.append(HEADS_AND_LOST.format(heads=heads, lost=lost))
        else:
            parts.append(f"SELECT * FROM ({heads}) AS heads")
    return CLAIM.format(candidates=" UNION ALL ".join(parts), leases="WHEN ? THEN CAST(? AS bigint) " * len(kinds))
