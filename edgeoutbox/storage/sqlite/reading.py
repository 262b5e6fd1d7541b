"""Reads: nothing here changes a row."""

import json
from collections.abc import Mapping, Sequence

from edgeoutbox.model import Action, AttemptRecord, Backlog
from edgeoutbox.storage.protocol import Query, Served, Situation
from edgeoutbox.storage.sqlite.claiming import IF_OPEN
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.executors import there
from edgeoutbox.storage.sqlite.kinds import policies
from edgeoutbox.storage.sqlite.rows import COLUMNS, action_of
from edgeoutbox.storage.sqlite.steps import NOW, Row, Steps
from edgeoutbox.variants import Condition

BY_ID = f"SELECT {COLUMNS} FROM agent_action WHERE id = ?"
BY_KEY = f"SELECT {COLUMNS} FROM agent_action WHERE idempotency_key = ?"

# Served by ix_agent_action_open.
LANE = f"""
SELECT {COLUMNS} FROM agent_action
WHERE lane_key = ? AND state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')
ORDER BY id
"""

ATTEMPTS = """
SELECT action_id, epoch, attempt, owner, started_at, write_started_at, settled_at, result, reason, evidence,
       readback_ref, recorded
FROM agent_action_attempt WHERE action_id = ? ORDER BY epoch
"""

# What is open, by kind and state; served by ix_agent_action_open.
OPEN_BY_KIND = f"""
SELECT kind, state, COUNT(*), MIN(CASE WHEN state = 'ADMITTED' AND due_at <= {NOW} THEN due_at END)
FROM agent_action
WHERE state IN ('PROPOSED', 'ADMITTED', 'EXECUTING') AND (CASE kind {{conditions}} ELSE 1 END)
GROUP BY kind, state
"""

# What went wrong, by kind; served by ix_agent_action_trouble.
TROUBLE_BY_KIND = """
SELECT kind, state, COUNT(*) FROM agent_action WHERE state IN ('UNCERTAIN', 'FAILED') GROUP BY kind, state
"""

# The next moment at which one kind can be claimed or a hook is owed; each part is the first entry of an index.
NEXT_DUE = """
SELECT MIN(moment) FROM (
  SELECT cooling_until AS moment FROM agent_action_kind WHERE kind = ? AND cooling_until > {now}
  UNION ALL
  SELECT * FROM (SELECT due_at FROM agent_action INDEXED BY ix_agent_action_head
    WHERE kind = {if_open} AND state = 'ADMITTED' AND is_head = 1 AND due_at > {now} AND {condition}
    ORDER BY due_at LIMIT 1)
  UNION ALL
  SELECT * FROM (SELECT lease_expires_at FROM agent_action INDEXED BY ix_agent_action_lease
    WHERE kind = ? AND state = 'EXECUTING' AND lease_expires_at > {now} AND lease_owner IS NOT ? AND {condition}
    ORDER BY lease_expires_at LIMIT 1)
  UNION ALL
  SELECT * FROM (SELECT due_at FROM agent_action_ended AS owed
    WHERE kind = ? AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = owed.kind AND has_ended_hook = 1)
    ORDER BY due_at LIMIT 1)
)
"""

CLOCK = f"SELECT {NOW}"


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
    where = "".join(f" AND {column} = ?" for column in given)
    before = "" if query.after is None else " AND id < ?"
    after = () if query.after is None else (query.after,)
    sql = f"SELECT {COLUMNS} FROM agent_action WHERE 1{where}{before} ORDER BY id DESC LIMIT ?"
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
    head = ahead[0] if ahead and ahead[0].id != action.id else None
    return Situation(now, action, head, kinds.get(action.kind), executors)


def backlog(served: Mapping[str, Condition]) -> Steps[list[Backlog]]:
    """What waits, by kind."""
    kinds = yield from policies()
    executors = yield from there()
    carried_out = {kind for executor in executors for kind in executor.kinds}
    conditions = " ".join(f"WHEN ? THEN {sql_of(condition)}" for condition in served.values()) or "WHEN '' THEN 1"
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


def next_due(served: Sequence[Served], owner: str) -> Steps[int | None]:
    """Milliseconds until something can be done."""
    first: int | None = None
    for kind in served:
        sql = NEXT_DUE.format(now=NOW, if_open=IF_OPEN, condition=sql_of(kind.condition))
        name = kind.kind
        [(moment,)] = yield sql, (name, name, name, name, owner, name)
        if moment is not None and (first is None or moment < first):
            first = moment
    if first is None:
        return None
    [(now,)] = yield CLOCK, ()
    return max(0, first - int(now))


def clock() -> Steps[int]:
    """The database's clock."""
    [(now,)] = yield CLOCK, ()
    return int(now)
