"""Executors: who is there, and which rows they carry out."""

from collections.abc import Mapping

from pydantic import TypeAdapter

from edgeoutbox.model import Action
from edgeoutbox.storage.protocol import ExecutorRecord
from edgeoutbox.storage.statements.steps import Steps
from edgeoutbox.variants import Condition

SEEN_WITHIN = 60_000
"""How long ago, in milliseconds, an executor that is there was seen at most; it says so every 10 seconds."""

FORGOTTEN_AFTER = 86_400_000

HEARTBEAT = """
INSERT INTO agent_action_executor (owner, version, kinds, started_at, seen_at)
VALUES (?, ?, ?, edgeoutbox_now(), edgeoutbox_now())
ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at, kinds = excluded.kinds
"""

DROP_OLD = f"DELETE FROM agent_action_executor WHERE seen_at < edgeoutbox_now() - {FORGOTTEN_AFTER}"

LEAVE = "DELETE FROM agent_action_executor WHERE owner = ?"

THERE = f"""
SELECT owner, version, edgeoutbox_text(kinds), started_at, seen_at FROM agent_action_executor
WHERE seen_at >= edgeoutbox_now() - {SEEN_WITHIN}
ORDER BY owner
"""

SEEN = "SELECT seen_at FROM agent_action_executor WHERE owner = ?"

_KINDS: TypeAdapter[dict[str, Condition]] = TypeAdapter(dict[str, Condition])


def heartbeat(owner: str, version: str, kinds: Mapping[str, Condition]) -> Steps[None]:
    """Say that the executor is there."""
    yield HEARTBEAT, (owner, version, _KINDS.dump_json(dict(kinds)).decode())
    yield DROP_OLD, ()


def leave(owner: str) -> Steps[None]:
    """Say that the executor is gone."""
    yield LEAVE, (owner,)


def there() -> Steps[list[ExecutorRecord]]:
    """The executors that were seen within the last minute."""
    rows = yield THERE, ()
    return [ExecutorRecord(row[0], row[1], _KINDS.validate_json(row[2]), row[3], row[4]) for row in rows]


def seen(owner: str) -> Steps[int | None]:
    """When an executor was last seen, however long ago; `None` for one that left or never said that it is there."""
    rows = yield SEEN, (owner,)
    return int(rows[0][0]) if rows else None


def serving(action: Action) -> Steps[list[ExecutorRecord]]:
    """The executors that carry this action out."""
    executors = yield from there()
    return [executor for executor in executors if executor.carries_out(action)]
