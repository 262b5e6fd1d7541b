"""Settle, reap and sweep: what ends an attempt, and what becomes of ended actions."""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import compress

from edgeoutbox.model import Action
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Claim, Hook, Hooks, Served, Settlement
from edgeoutbox.storage.sqlite.claiming import AT_MOST_ONCE, HOLDING
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.hooks import run_hook
from edgeoutbox.storage.sqlite.spelling import COLUMNS, IN_IDS, NOW, Connection, fields, run
from edgeoutbox.storage.statements.kinds import cool_down
from edgeoutbox.storage.statements.owed import FORGET_ENDED
from edgeoutbox.storage.statements.rows import action_of
from edgeoutbox.storage.statements.steps import Statement, Steps
from edgeoutbox.storage.turns import Settling, in_turns
from edgeoutbox.variants import Condition

# The action as its end left it, for its hook.
ENDED = f"SELECT {COLUMNS} FROM agent_action WHERE id = ?"

# Which of many attempts hold their actions, as one JSON array.
HELD = f"SELECT json_group_array(place) {HOLDING}"

# The rows of the dispatch log, once; a late result of an attempt that was overtaken is kept too, and not `recorded`.
# It comes before the ends, which take from it what they say.
LOG = f"""
UPDATE agent_action_attempt
SET settled_at = {NOW}, result = said.result, reason = said.reason, evidence = said.evidence,
    readback_ref = said.readback_ref, recorded = said.recorded
FROM {fields("id", "epoch", "owner", "result", "reason", "evidence", "readback_ref", "recorded")} AS said
WHERE agent_action_attempt.action_id = said.id AND agent_action_attempt.epoch = said.epoch
  AND agent_action_attempt.owner = said.owner AND settled_at IS NULL
"""

# EXECUTING -> DONE, UNCERTAIN, FAILED, CANCELLED, of held actions that have been logged.
END = f"""
UPDATE agent_action
SET state = ?, stop_reason = ?, payload = NULL, is_head = 0, ended_at = {NOW},
    lease_owner = NULL, lease_expires_at = NULL,
    write_started_at = CASE WHEN ? THEN NULL ELSE write_started_at END,
    (last_error, readback_ref) = (
      SELECT reason, COALESCE(attempt.readback_ref, agent_action.readback_ref) FROM agent_action_attempt AS attempt
      WHERE attempt.action_id = agent_action.id AND attempt.epoch = agent_action.epoch
    )
WHERE {IN_IDS}
"""

# Of many that have just ended, those to be forgotten; served by ix_agent_action_forget, which is nearly always empty.
ENDED_TO_FORGET = f"""
SELECT id FROM agent_action INDEXED BY ix_agent_action_forget
WHERE forget_at_end = 1 AND ended_at IS NOT NULL AND {IN_IDS}
"""

# EXECUTING -> ADMITTED, of a held action: nothing of it exists at the provider.
GIVE_BACK = f"""
UPDATE agent_action
SET state = 'ADMITTED', due_at = {NOW} + ?, attempt = attempt - ?, lease_owner = NULL, lease_expires_at = NULL,
    write_started_at = NULL, last_error = ?
WHERE id = ?
"""

# A held action, still EXECUTING, with its fence: the owner is cleared and the lease ends after the wait.
REREAD = f"""
UPDATE agent_action
SET lease_owner = NULL, lease_expires_at = {NOW} + ?, attempt = attempt - ?, last_error = ?
WHERE id = ?
"""

# Still EXECUTING until its lease ends, but nobody's.
LET_GO = """
UPDATE agent_action SET lease_owner = NULL WHERE id = ? AND epoch = ? AND lease_owner = ? AND state = 'EXECUTING'
"""

# PROPOSED, ADMITTED -> CANCELLED; served by ix_agent_action_expiry.
EXPIRE = """
UPDATE agent_action
SET state = 'CANCELLED', stop_reason = 'EXPIRED', payload = NULL, is_head = 0, ended_at = {now}
WHERE id IN (
  SELECT id FROM agent_action INDEXED BY ix_agent_action_expiry
  WHERE kind = ? AND state IN ('PROPOSED', 'ADMITTED') AND expires_at IS NOT NULL AND expires_at <= {now}
    AND {condition}
  LIMIT ?
)
RETURNING {columns}
"""

# EXECUTING -> UNCERTAIN, CANCELLED, FAILED for lost leases that nobody may claim again.
# Served by ix_agent_action_lease.
REAP_LOST = """
UPDATE agent_action
SET state = CASE
      WHEN write_started_at IS NOT NULL THEN 'UNCERTAIN'
      WHEN expires_at <= {now} THEN 'CANCELLED'
      ELSE 'FAILED'
    END,
    stop_reason = CASE
      WHEN write_started_at IS NOT NULL AND {at_most_once} THEN 'LEASE_LOST_AFTER_WRITE'
      WHEN write_started_at IS NOT NULL THEN 'READBACK_EXHAUSTED'
      WHEN expires_at <= {now} THEN 'EXPIRED'
      ELSE 'ATTEMPTS_EXHAUSTED'
    END,
    payload = NULL, is_head = 0, ended_at = {now}, lease_owner = NULL, lease_expires_at = NULL
WHERE id IN (
  SELECT id FROM agent_action INDEXED BY ix_agent_action_lease
  WHERE kind = ? AND state = 'EXECUTING' AND lease_expires_at <= {now} AND lease_owner IS NOT ?
    AND (   (write_started_at IS NOT NULL AND {at_most_once})
         OR (write_started_at IS NULL AND expires_at <= {now})
         OR attempt >= COALESCE(max_attempts, ?))
    AND {condition}
  LIMIT ?
)
RETURNING {columns}
"""

# A lease claimed in the future (the clock stepped back since) keeps its own length, from now on.
SHORTEN = """
UPDATE agent_action
SET lease_expires_at = {now} + (claim.lease_expires_at - claim.started_at)
FROM agent_action_attempt AS claim
WHERE agent_action.kind = ? AND agent_action.state = 'EXECUTING' AND {condition}
  AND claim.action_id = agent_action.id AND claim.epoch = agent_action.epoch AND claim.started_at > {now} + 1000
  AND agent_action.lease_expires_at > {now} + (claim.lease_expires_at - claim.started_at)
"""

# Ended longer ago than the kind's retention, and nobody is owed a hook; served by ix_agent_action_retention.
SWEEP = f"""
DELETE FROM agent_action WHERE id IN (
  SELECT id FROM agent_action INDEXED BY ix_agent_action_retention
  WHERE kind = ?1 AND ended_at IS NOT NULL
    AND ended_at <= {NOW} - 86400000 * (SELECT retention_days FROM agent_action_kind WHERE kind = ?1)
    AND NOT EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id)
  LIMIT ?2
)
RETURNING id
"""

# Ended by somebody who did not know that they were to be forgotten; served by ix_agent_action_forget.
SWEEP_FORGOTTEN = """
DELETE FROM agent_action WHERE id IN (
  SELECT id FROM agent_action INDEXED BY ix_agent_action_forget
  WHERE forget_at_end = 1 AND ended_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id)
  LIMIT ?
)
RETURNING id
"""


def settle(connection: Connection, claim: Claim, settlement: Settlement, hook: Hook) -> bool:
    """Write a settlement that ends the action, and run its hook."""
    [recorded] = run(connection, _settle_each([(claim, settlement)], forget=False))
    if recorded:
        [row] = connection.execute(ENDED, (claim.id,))
        run_hook(connection, hook, action_of(row))
    return recorded


def settle_many(settlements: Sequence[Settling]) -> Steps[list[bool]]:
    """Write each settlement whose claim still holds its action, and fill the log for all; whether each was written."""
    return (yield from in_turns(settlements, partial(_settle_each, forget=True)))


def _settle_each(settlements: Sequence[Settling], *, forget: bool) -> Steps[list[bool]]:
    recorded = [False] * len(settlements)
    [(held,)] = yield HELD, (json.dumps([(claim.id, claim.epoch, claim.owner) for claim, _ in settlements]),)
    for place in json.loads(held):
        recorded[place] = True
    yield LOG, (_said(settlements, recorded),)
    ended: defaultdict[tuple[State, StopReason | None, bool], list[int]] = defaultdict(list)
    for claim, settlement in compress(settlements, recorded):
        if settlement.state.ended:
            ended[settlement.state, settlement.stop_reason, settlement.clears_fence].append(claim.id)
        else:
            yield _give_back(claim.id, settlement)
        if settlement.cools != "no":
            wait = settlement.wait if settlement.cools == "wait" else None
            yield from cool_down(claim.action.kind, settlement.reason, wait)
    for (state, stop_reason, clears_fence), ids in ended.items():
        listed = json.dumps(ids)
        yield END, (state, stop_reason, int(clears_fence), listed)
        rows = (yield ENDED_TO_FORGET, (listed,)) if forget else []
        for row in rows:
            yield FORGET_ENDED, row
    return recorded


def let_go(claim: Claim, settlement: Settlement) -> Steps[None]:
    """Log a settlement that the database refused, and leave the action to whoever may take it when its lease ends."""
    yield LET_GO, (claim.id, claim.epoch, claim.owner)
    yield LOG, (_said([(claim, settlement)], [False]),)


def _said(settlements: Sequence[Settling], recorded: Sequence[bool]) -> str:
    return json.dumps(
        [
            (
                claim.id,
                claim.epoch,
                claim.owner,
                settlement.result,
                settlement.reason or None,
                settlement.evidence,
                settlement.readback_ref,
                int(held),
            )
            for (claim, settlement), held in zip(settlements, recorded, strict=True)
        ]
    )


def _give_back(action_id: int, settlement: Settlement) -> Statement:
    statement = GIVE_BACK if settlement.state is State.ADMITTED else REREAD
    return statement, (settlement.wait, int(not settlement.counts), settlement.reason or None, action_id)


def reap(connection: Connection, served: Sequence[Served], owner: str, hooks: Hooks, limit: int) -> list[Action]:
    """End what expired and what was lost, with its hooks."""
    ended = []
    for kind in served:
        expire, lost, shorten = _reap_sql(kind.condition)
        connection.execute(shorten, (kind.kind,))
        rows = connection.execute(expire, (kind.kind, limit))
        rows += connection.execute(lost, (kind.kind, kind.kind, owner, kind.kind, kind.max_attempts, limit))
        for row in rows:
            action = action_of(row)
            ended.append(action)
            if kind.kind in hooks:
                run_hook(connection, hooks[kind.kind], action)
            elif action.forget_at_end:
                connection.execute(FORGET_ENDED, (action.id,))
    return ended


@lru_cache(maxsize=64)
def _reap_sql(condition: Condition) -> tuple[str, str, str]:
    where = sql_of(condition)
    return (
        EXPIRE.format(now=NOW, condition=where, columns=COLUMNS),
        REAP_LOST.format(now=NOW, condition=where, columns=COLUMNS, at_most_once=AT_MOST_ONCE),
        SHORTEN.format(now=NOW, condition=where),
    )


def sweep(kinds: Sequence[str], limit: int) -> Steps[int]:
    """Delete what has been kept long enough, and what was to be forgotten."""
    rows = yield SWEEP_FORGOTTEN, (limit,)
    gone = len(rows)
    for kind in kinds:
        if gone < limit:
            rows = yield SWEEP, (kind, limit - gone)
            gone += len(rows)
    return gone
