"""Settle, reap and sweep: what ends an attempt, and what becomes of ended actions."""

import json
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from edgeoutbox.model import Action
from edgeoutbox.storage.postgres.claiming import AT_MOST_ONCE, LET_GO, LOCK, THE_ACTION
from edgeoutbox.storage.postgres.conditions import sql_of
from edgeoutbox.storage.postgres.hooks import run_hook
from edgeoutbox.storage.postgres.running import Ahead
from edgeoutbox.storage.protocol import Claim, Hook, Hooks, Served, Settlement
from edgeoutbox.storage.statements.kinds import cool_down
from edgeoutbox.storage.statements.owed import FORGET_ENDED
from edgeoutbox.storage.statements.rows import COLUMNS, action_of, columns
from edgeoutbox.storage.statements.steps import Steps
from edgeoutbox.storage.turns import Settling, in_turns
from edgeoutbox.variants import Condition

# The action as its end left it, for its hook.
ENDED = f"SELECT {COLUMNS} FROM agent_action WHERE id = ?"

# The next of each lane whose head ended becomes its head now and not at the commit, for who claims in this transaction.
HEADS_NOW = "SET CONSTRAINTS agent_action_lane_head IMMEDIATE"

# Many settlements at once: which of them still hold their actions, what becomes of those, and the row of the dispatch
# log for all. A late result of an attempt that was overtaken is logged too. The rows are locked before, so the snapshot
# of this statement shows them as they are.
SETTLE = f"""
WITH said AS MATERIALIZED (
  SELECT * FROM json_to_recordset(CAST(? AS json)) AS said(
    place bigint, id bigint, epoch bigint, owner text, state text, stop_reason text, wait bigint, uncounted bigint,
    clears_fence bigint, readback_ref text, result text, reason text, evidence text)
), held AS MATERIALIZED (
  SELECT said.*, action.ctid AS at, lane_key
  FROM said CROSS JOIN LATERAL ({THE_ACTION.format(id="said.id")}) AS action
  WHERE action.epoch = said.epoch AND lease_owner = said.owner AND action.state = 'EXECUTING'
  ORDER BY lane_key, said.id
), ended AS (
  -- EXECUTING -> DONE, UNCERTAIN, FAILED, CANCELLED.
  UPDATE agent_action
  SET state = held.state, stop_reason = held.stop_reason, payload = NULL, is_head = 0, ended_at = edgeoutbox_now(),
      lease_owner = NULL, lease_expires_at = NULL, last_error = held.reason,
      write_started_at = CASE WHEN held.clears_fence = 1 THEN NULL ELSE write_started_at END,
      readback_ref = COALESCE(held.readback_ref, agent_action.readback_ref)
  FROM held WHERE agent_action.ctid = held.at AND held.state NOT IN ('ADMITTED', 'EXECUTING')
  RETURNING agent_action.id, forget_at_end
), given_back AS (
  -- EXECUTING -> ADMITTED: nothing of the action exists at the provider.
  UPDATE agent_action
  SET state = 'ADMITTED', due_at = edgeoutbox_now() + held.wait, attempt = attempt - held.uncounted,
      lease_owner = NULL, lease_expires_at = NULL, write_started_at = NULL, last_error = held.reason
  FROM held WHERE agent_action.ctid = held.at AND held.state = 'ADMITTED'
), reread AS (
  -- Still EXECUTING, with its fence: the owner is cleared and the lease ends after the wait.
  UPDATE agent_action
  SET lease_owner = NULL, lease_expires_at = edgeoutbox_now() + held.wait, attempt = attempt - held.uncounted,
      last_error = held.reason
  FROM held WHERE agent_action.ctid = held.at AND held.state = 'EXECUTING'
), logged AS (
  UPDATE agent_action_attempt
  SET settled_at = edgeoutbox_now(), result = said.result, reason = said.reason,
      evidence = CAST(said.evidence AS json), readback_ref = said.readback_ref,
      recorded = CASE WHEN EXISTS (SELECT 1 FROM held WHERE held.place = said.place) THEN 1 ELSE 0 END
  FROM said CROSS JOIN LATERAL (
    SELECT ctid FROM agent_action_attempt
    WHERE action_id = said.id AND epoch = said.epoch AND agent_action_attempt.owner = said.owner OFFSET 0
  ) AS its
  WHERE agent_action_attempt.ctid = its.ctid AND settled_at IS NULL
)
SELECT held.place, COALESCE(ended.forget_at_end, 0)
FROM held LEFT JOIN ended ON ended.id = held.id
"""

# Whether it was this very settlement that ended the attempt: who asks did not hear the answer.
RECORDED = """
SELECT 1 FROM agent_action_attempt
WHERE action_id = ? AND epoch = ? AND owner = ? AND result = ? AND recorded = 1
"""

LOG_UNRECORDED = """
UPDATE agent_action_attempt
SET settled_at = edgeoutbox_now(), result = ?, reason = ?, evidence = CAST(CAST(? AS text) AS json), readback_ref = ?,
    recorded = 0
WHERE action_id = ? AND epoch = ? AND owner = ? AND settled_at IS NULL
"""

# PROPOSED, ADMITTED -> CANCELLED; served by ix_agent_action_expiry. What another transaction holds is left for the next
# reap.
EXPIRE = f"""
UPDATE agent_action
SET state = 'CANCELLED', stop_reason = 'EXPIRED', payload = NULL, is_head = 0, ended_at = edgeoutbox_now()
WHERE id IN (
  SELECT id FROM agent_action
  WHERE kind = ? AND state IN ('PROPOSED', 'ADMITTED') AND expires_at IS NOT NULL AND expires_at <= edgeoutbox_now()
    AND {{condition}}
  LIMIT ?
  FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING {columns()}
"""

# EXECUTING -> UNCERTAIN, CANCELLED, FAILED for lost leases that nobody may claim again.
# Served by ix_agent_action_lease.
REAP_LOST = f"""
UPDATE agent_action
SET state = CASE
      WHEN write_started_at IS NOT NULL THEN 'UNCERTAIN'
      WHEN expires_at <= edgeoutbox_now() THEN 'CANCELLED'
      ELSE 'FAILED'
    END,
    stop_reason = CASE
      WHEN write_started_at IS NOT NULL AND {{at_most_once}} THEN 'LEASE_LOST_AFTER_WRITE'
      WHEN write_started_at IS NOT NULL THEN 'READBACK_EXHAUSTED'
      WHEN expires_at <= edgeoutbox_now() THEN 'EXPIRED'
      ELSE 'ATTEMPTS_EXHAUSTED'
    END,
    payload = NULL, is_head = 0, ended_at = edgeoutbox_now(), lease_owner = NULL, lease_expires_at = NULL
WHERE id IN (
  SELECT id FROM agent_action
  WHERE kind = ? AND state = 'EXECUTING' AND lease_expires_at <= edgeoutbox_now()
    AND lease_owner IS DISTINCT FROM CAST(? AS text)
    AND (   (write_started_at IS NOT NULL AND {{at_most_once}})
         OR (write_started_at IS NULL AND expires_at <= edgeoutbox_now())
         OR attempt >= COALESCE(max_attempts, ?))
    AND {{condition}}
  LIMIT ?
  FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING {columns()}
"""

# A lease claimed in the future (the clock stepped back since) keeps its own length, from now on.
SHORTEN = """
UPDATE agent_action SET lease_expires_at = shorter.lease_expires_at
FROM (
  SELECT id, edgeoutbox_now() + (claim.lease_expires_at - claim.started_at) AS lease_expires_at
  FROM agent_action AS action JOIN agent_action_attempt AS claim
    ON claim.action_id = action.id AND claim.epoch = action.epoch
  WHERE kind = ? AND state = 'EXECUTING' AND {condition} AND claim.started_at > edgeoutbox_now() + 1000
    AND action.lease_expires_at > edgeoutbox_now() + (claim.lease_expires_at - claim.started_at)
  FOR NO KEY UPDATE OF action SKIP LOCKED
) AS shorter
WHERE agent_action.id = shorter.id
"""

# Ended longer ago than the kind's retention, and nobody is owed a hook; served by ix_agent_action_retention.
SWEEP = """
DELETE FROM agent_action WHERE id IN (
  SELECT id FROM agent_action
  WHERE kind = ? AND ended_at IS NOT NULL
    AND ended_at <= edgeoutbox_now() - 86400000 * (SELECT retention_days FROM agent_action_kind WHERE kind = ?)
    AND NOT EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id)
  LIMIT ?
  FOR UPDATE SKIP LOCKED
)
RETURNING id
"""

# Ended by somebody who did not know that they were to be forgotten; served by ix_agent_action_forget.
SWEEP_FORGOTTEN = """
DELETE FROM agent_action WHERE id IN (
  SELECT id FROM agent_action
  WHERE forget_at_end = 1 AND ended_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id)
  LIMIT ?
  FOR UPDATE SKIP LOCKED
)
RETURNING id
"""


def settle(claim: Claim, settlement: Settlement, hook: Hook) -> Steps[bool]:
    """Write a settlement that ends the action, and run its hook."""
    [recorded] = yield from _settle_each([(claim, settlement)], forget=False)
    if recorded:
        [row] = yield ENDED, (claim.id,)
        yield from run_hook(hook, action_of(row))
    return recorded


def settle_many(settlements: Sequence[Settling]) -> Steps[list[bool]]:
    """Write each settlement whose claim still holds its action, and fill the log for all; whether each was written."""
    return (yield from in_turns(settlements, partial(_settle_each, forget=True)))


def was_recorded(claim: Claim, settlement: Settlement) -> Steps[bool]:
    """Whether this settlement is what the log has of the attempt."""
    rows = yield RECORDED, (claim.id, claim.epoch, claim.owner, settlement.result)
    return bool(rows)


def _settle_each(settlements: Sequence[Settling], *, forget: bool) -> Steps[list[bool]]:
    yield Ahead(LOCK, (json.dumps([claim.id for claim, _ in settlements]),))
    rows = yield SETTLE, (json.dumps([_said(place, *each) for place, each in enumerate(settlements)]),)
    to_forget: dict[int, int] = dict(rows)
    done = [settlements[place] for place in sorted(to_forget)]
    if any(settlement.state.ended and claim.action.lane_key is not None for claim, settlement in done):
        yield Ahead(HEADS_NOW)
    if forget:
        for place, wanted in to_forget.items():
            if wanted:
                yield Ahead(FORGET_ENDED, (settlements[place][0].id,))
    for claim, settlement in done:
        if settlement.cools != "no":
            wait = settlement.wait if settlement.cools == "wait" else None
            yield from cool_down(claim.action.kind, settlement.reason, wait)
    return [place in to_forget for place in range(len(settlements))]


def let_go(claim: Claim, settlement: Settlement) -> Steps[None]:
    """Log a settlement that the database refused, and leave the action to whoever may take it when its lease ends."""
    yield Ahead(LET_GO, (claim.id, claim.epoch, claim.owner))
    said = (settlement.result, settlement.reason or None, settlement.evidence, settlement.readback_ref)
    yield LOG_UNRECORDED, (*said, claim.id, claim.epoch, claim.owner)


def _said(place: int, claim: Claim, settlement: Settlement) -> dict[str, Any]:
    return {
        "place": place,
        "id": claim.id,
        "epoch": claim.epoch,
        "owner": claim.owner,
        "state": settlement.state.value,
        "stop_reason": settlement.stop_reason,
        "wait": settlement.wait,
        "uncounted": int(not settlement.counts),
        "clears_fence": int(settlement.clears_fence),
        "readback_ref": settlement.readback_ref,
        "result": settlement.result,
        "reason": settlement.reason or None,
        "evidence": settlement.evidence,
    }


def reap(served: Sequence[Served], owner: str, hooks: Hooks, limit: int) -> Steps[list[Action]]:
    """End what expired and what was lost, with its hooks."""
    ended: list[Action] = []
    for kind in served:
        expire, lost, shorten = _reap_sql(kind.condition)
        yield Ahead(shorten, (kind.kind,))
        rows = yield expire, (kind.kind, limit)
        rows += yield lost, (kind.kind, kind.kind, owner, kind.kind, kind.max_attempts, limit)
        ended += [action_of(row) for row in rows]
    if any(action.lane_key is not None for action in ended):
        yield Ahead(HEADS_NOW)
    for action in ended:
        if action.kind in hooks:
            yield from run_hook(hooks[action.kind], action)
        elif action.forget_at_end:
            yield Ahead(FORGET_ENDED, (action.id,))
    return ended


@lru_cache(maxsize=64)
def _reap_sql(condition: Condition) -> tuple[str, str, str]:
    where = sql_of(condition)
    return (
        EXPIRE.format(condition=where),
        REAP_LOST.format(condition=where, at_most_once=AT_MOST_ONCE),
        SHORTEN.format(condition=where),
    )


def sweep(kinds: Sequence[str], limit: int) -> Steps[int]:
    """Delete what has been kept long enough, and what was to be forgotten."""
    rows = yield SWEEP_FORGOTTEN, (limit,)
    gone = len(rows)
    for kind in kinds:
        if gone < limit:
            rows = yield SWEEP, (kind, kind, limit - gone)
            gone += len(rows)
    return gone
