"""Reads: nothing here changes a row."""

import json
from collections.abc import Callable, Mapping

from edgeoutbox.model import Action, AttemptRecord, Backlog
from edgeoutbox.storage.protocol import Query, Situation
from edgeoutbox.storage.statements.executors import seen, there
from edgeoutbox.storage.statements.kinds import policies
from edgeoutbox.storage.statements.rows import COLUMNS, action_of
from edgeoutbox.storage.statements.steps import Row, Steps
from edgeoutbox.variants import Condition

BY_ID = f"SELECT {COLUMNS} FROM agent_action WHERE id = ?"
BY_KEY = f"SELECT {COLUMNS} FROM agent_action WHERE idempotency_key = ?"

# Served by ix_agent_action_open.
LANE = f"""
SELECT {COLUMNS} FROM agent_action
WHERE lane_key = ? AND edgeoutbox_open(agent_action)
ORDER BY id
"""

ATTEMPTS = """
SELECT action_id, epoch, attempt, owner, started_at, write_started_at, settled_at, result, reason,
       edgeoutbox_text(evidence), readback_ref, recorded
FROM agent_action_attempt WHERE action_id = ? ORDER BY epoch
"""

# What is open, by kind and state; served by ix_agent_action_open.
OPEN_BY_KIND = """
SELECT kind, state, COUNT(*), MIN(CASE WHEN state = 'ADMITTED' AND due_at <= edgeoutbox_now() THEN due_at END)
FROM agent_action
WHERE edgeoutbox_open(agent_action) AND (CASE kind {conditions} ELSE TRUE END)
GROUP BY kind, state
"""

# What went wrong, by kind; served by ix_agent_action_trouble.
TROUBLE_BY_KIND = """
SELECT kind, state, COUNT(*) FROM agent_action WHERE state IN ('UNCERTAIN', 'FAILED') GROUP BY kind, state
"""

CLOCK = "SELECT edgeoutbox_now()"


def get(action_id: int | None, key: str | None) -> Steps[Action | None]:
    """One action by id or key."""
    rows = yield (BY_ID, (action_id,)) if action_id is not None else (BY_KEY, (key,))
    return action_of(rows[0]) if rows else None


def lane(lane_key: str) -> Steps[list[Action]]:
    """The open actions of a lane."""
    rows = yield LANE, (lane_key,)
    return [action_of(row) for row in rows]


def attempts(action_id: int) -> Steps[list[AttemptRecord]]:
    """The dispatch log of an action."""
    rows = yield ATTEMPTS, (action_id,)
    return [attempt_of(row) for row in rows]


def attempt_of(row: Row) -> AttemptRecord:
    """The attempt in a row of `ATTEMPTS`."""
    values = list(row)
    values[9], values[11] = json.loads(row[9] or "{}"), None if row[11] is None else bool(row[11])
    return AttemptRecord(*values)


def listing(query: Query) -> Steps[list[Action]]:
    """Actions that fit, newest first."""
    wanted = {
        "state": query.state and query.state.value,
        "kind": query.kind,
        "lane_key": query.lane_key,
        "run_id": query.run_id,
        "subject_account_id": query.subject_account_id,
    }
    given = {column: value for column, value in wanted.items() if value is not None}
    conditions = [f"{column} = ?" for column in given]
    after: tuple[int, ...] = ()
    if query.after is not None:
        conditions.append("id < ?")
        after = (query.after,)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    sql = f"SELECT {COLUMNS} FROM agent_action {where} ORDER BY id DESC LIMIT ?"
    rows = yield sql, (*given.values(), *after, query.limit)
    return [action_of(row) for row in rows]


def situation(action_id: int) -> Steps[Situation | None]:
    """What decides what an action waits for."""
    action = yield from get(action_id, None)
    if action is None:
        return None
    ahead = (yield from lane(action.lane_key)) if action.lane_key else []
    kinds = yield from policies()
    executors = yield from there()
    [(now,)] = yield CLOCK, ()
    behind = bool(ahead) and ahead[0].id != action.id
    found = None
    for each in [ahead[0], action] if behind else [action]:
        owner_seen_at = (yield from seen(each.lease_owner)) if each.lease_owner else None
        found = Situation(now, each, kinds.get(each.kind), executors, owner_seen_at, lane_head=found)
    return found


def backlog(served: Mapping[str, Condition], sql_of: Callable[[Condition], str]) -> Steps[list[Backlog]]:
    """What waits, by kind. `sql_of` renders a condition for the database that is asked."""
    kinds = yield from policies()
    executors = yield from there()
    carried_out = {kind for executor in executors for kind in executor.kinds}
    conditions = " ".join(f"WHEN ? THEN {sql_of(condition)}" for condition in served.values()) or "WHEN '' THEN TRUE"
    counts: dict[tuple[str, str], int] = {}
    oldest: dict[str, int] = {}
    rows = yield OPEN_BY_KIND.format(conditions=conditions), tuple(served)
    for kind, state, count, due_at in rows:
        counts[kind, state] = count
        if due_at is not None:
            oldest[kind] = due_at
    rows = yield TROUBLE_BY_KIND, ()
    for kind, state, count in rows:
        counts[kind, state] = count
    names = sorted({kind for kind, _ in counts} | set(kinds))
    return [
        Backlog(
            kind=name,
            served=name in carried_out,
            proposed=counts.get((name, "PROPOSED"), 0),
            admitted=counts.get((name, "ADMITTED"), 0),
            executing=counts.get((name, "EXECUTING"), 0),
            uncertain=counts.get((name, "UNCERTAIN"), 0),
            failed=counts.get((name, "FAILED"), 0),
            oldest_due_at=oldest.get(name),
            cooling_until=kinds[name].cooling_until if name in kinds else None,
            cooling_reason=kinds[name].cooling_reason if name in kinds else None,
            paused_by=kinds[name].paused_by if name in kinds else None,
        )
        for name in names
    ]


def clock() -> Steps[int]:
    """The database's clock."""
    [(now,)] = yield CLOCK, ()
    return int(now)
