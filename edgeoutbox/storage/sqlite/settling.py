"""Settle, reap and sweep: what ends an attempt, and what becomes of ended actions."""

from collections.abc import Sequence
from functools import lru_cache

from edgeoutbox.model import Action
from edgeoutbox.states import State
from edgeoutbox.storage.protocol import Claim, Hook, Hooks, Served, Settlement
from edgeoutbox.storage.sqlite.claiming import AT_MOST_ONCE
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.hooks import FORGET_ENDED, run_hook
from edgeoutbox.storage.sqlite.kinds import cool_down
from edgeoutbox.storage.sqlite.rows import COLUMNS, action_of
from edgeoutbox.storage.sqlite.steps import NOW, Connection, Row, Steps, run
from edgeoutbox.variants import Condition

HELD = "WHERE id = ? AND epoch = ? AND lease_owner = ? AND state = 'EXECUTING'"

# EXECUTING -> DONE, UNCERTAIN, FAILED, CANCELLED.
END = f"""
UPDATE agent_action
SET state = ?, stop_reason = ?, payload = NULL, is_head = 0, ended_at = {NOW}, lease_owner = NULL,
    lease_expires_at = NULL, write_started_at = CASE WHEN ? THEN NULL ELSE write_started_at END,
    readback_ref = COALESCE(?, readback_ref), last_error = ?
{HELD}
RETURNING forget_at_end
"""

# The same, with the whole row for the ended hook.
END_FOR_HOOK = END.replace("RETURNING forget_at_end", f"RETURNING {COLUMNS}")

# EXECUTING -> ADMITTED: nothing of the action exists at the provider.
GIVE_BACK = f"""
UPDATE agent_action
SET state = 'ADMITTED', due_at = {NOW} + ?, attempt = attempt - ?, lease_owner = NULL, lease_expires_at = NULL,
    write_started_at = NULL, last_error = ?
{HELD}
RETURNING id
"""

# Still EXECUTING, with its fence: the owner is cleared and the lease ends after the wait.
REREAD = f"""
UPDATE agent_action
SET lease_owner = NULL, lease_expires_at = {NOW} + ?, attempt = attempt - ?, last_error = ?
{HELD}
RETURNING id
"""

# The row of the dispatch log, once; a late result of an attempt that was overtaken is kept too.
LOG = f"""
UPDATE agent_action_attempt
SET settled_at = {NOW}, result = ?, reason = ?, evidence = ?, readback_ref = ?, recorded = ?
WHERE action_id = ? AND epoch = ? AND settled_at IS NULL
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

# A lease claimed in the future (the clock stepped back since) keeps its length from now on.
SHORTEN = """
UPDATE agent_action
SET lease_expires_at = {now} + (agent_action.lease_expires_at - claim.started_at)
FROM agent_action_attempt AS claim
WHERE agent_action.kind = ? AND agent_action.state = 'EXECUTING' AND agent_action.lease_expires_at > {now}
  AND claim.action_id = agent_action.id AND claim.epoch = agent_action.epoch AND claim.started_at > {now} + 1000
  AND {condition}
"""

# Ended longer ago than the kind's retention, and nobody is owed a hook; served by ix_agent_action_retention.
SWEEP = f"""
DELETE FROM agent_action WHERE id IN (
  SELECT id FROM agent_action
  WHERE kind = ? AND ended_at IS NOT NULL
    AND ended_at <= {NOW} - 86400000 * (SELECT retention_days FROM agent_action_kind WHERE kind = agent_action.kind)
    AND NOT EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id)
  LIMIT ?
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
)
RETURNING id
"""


def settle(connection: Connection, claim: Claim, settlement: Settlement, hook: Hook | None) -> bool:
    """Write the settlement if the claim still holds the action; fill the log in either case."""
    held = (claim.id, claim.epoch, claim.owner)
    match settlement.state:
        case State.ADMITTED:
            rows = connection.execute(
                GIVE_BACK, (settlement.wait, int(not settlement.counts), settlement.last_error, *held)
            )
        case State.EXECUTING:
            rows = connection.execute(
                REREAD, (settlement.wait, int(not settlement.counts), settlement.last_error, *held)
            )
        case _:
            end = END if hook is None else END_FOR_HOOK
            rows = connection.execute(
                end,
                (
                    settlement.state.value,
                    settlement.stop_reason.value if settlement.stop_reason else None,
                    int(settlement.clears_fence),
                    settlement.readback_ref,
                    settlement.last_error,
                    *held,
                ),
            )
            if rows:
                _after_end(connection, claim.id, rows[0], hook)
    recorded = bool(rows)
    connection.execute(
        LOG,
        (
            settlement.result,
            settlement.reason or None,
            settlement.evidence,
            settlement.readback_ref,
            int(recorded),
            claim.id,
            claim.epoch,
        ),
    )
    if settlement.cools != "no":
        wait = settlement.wait if settlement.cools == "wait" else None
        run(connection, cool_down(claim.action.kind, settlement.reason, wait))
    return recorded


def _after_end(connection: Connection, action_id: int, row: Row, hook: Hook | None) -> None:
    if hook is not None:
        run_hook(connection, hook, action_of(row))
    elif row[0]:
        connection.execute(FORGET_ENDED, (action_id,))


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
