"""The locks of lanes that are taken before the first statement of an enqueue.

The trigger of `agent_action` takes a lane's lock with each INSERT and keeps it until the commit. An enqueue that writes
into several lanes takes all of their locks first, in one order, so that two of them never wait for each other. One that
supersedes takes its lane's lock before it looks at what waits there, so that nothing comes in behind its back, and
holds what waits, so that nothing of it starts meanwhile.
"""

from edgeoutbox.storage.statements.lanes import Lanes
from edgeoutbox.storage.statements.steps import Statement

# The same lock as the trigger guard_agent_action() takes: it is keyed by the oid of agent_action, which is found beside
# another table of ours, whatever search_path says. unnest() keeps the order of the array.
LOCK = """
SELECT pg_advisory_xact_lock(hashtextextended(lane, (
  SELECT ours.oid::bigint
  FROM pg_class AS ours JOIN pg_class AS beside ON beside.relnamespace = ours.relnamespace
  WHERE ours.relname = 'agent_action' AND beside.oid = (SELECT tableoid FROM agent_action_schema LIMIT 1)
)))
FROM unnest(CAST(? AS text[])) AS lane
"""

# What waits in each lane; served by ix_agent_action_open, in its order. Whoever claims skips it, or had it first and is
# waited for.
HOLD = """
SELECT waits.id FROM unnest(CAST(? AS text[])) AS lane
CROSS JOIN LATERAL (
  SELECT id FROM agent_action WHERE lane_key = lane AND state IN ('PROPOSED', 'ADMITTED')
  ORDER BY id FOR NO KEY UPDATE
) AS waits
"""


def locks(lanes: Lanes) -> list[Statement]:
    """The statements that begin an enqueue into these lanes; one lane alone is locked by its INSERT."""
    keys = list(lanes.keys)
    if lanes.supersedes and keys:
        return [(LOCK, (keys,)), (HOLD, (keys,))]
    return [(LOCK, (keys,))] if len(keys) > 1 else []
