"""The next due moment: how long nothing can be done; each part is the first entry of an index."""

from collections.abc import Sequence

from edgeoutbox.storage.postgres.claiming import IF_OPEN, IS_DUE, IS_LOST
from edgeoutbox.storage.postgres.conditions import sql_of
from edgeoutbox.storage.protocol import Served
from edgeoutbox.storage.statements import due
from edgeoutbox.storage.statements.steps import Statement, Steps

HELD_FOR = 20
"""Milliseconds after which to look again for what is due, and was left to a transaction that held it."""

NEXT_DUE = f"""
SELECT MIN(moment) FROM (
  SELECT cooling_until AS moment FROM agent_action_kind WHERE kind = ? AND cooling_until > edgeoutbox_now()
  UNION ALL
  (SELECT due_at FROM agent_action
    WHERE kind = {IF_OPEN} AND state = 'ADMITTED' AND is_head = 1 AND due_at > edgeoutbox_now() AND {{condition}}
    ORDER BY due_at LIMIT 1)
  UNION ALL
  (SELECT lease_expires_at FROM agent_action
    WHERE kind = ? AND state = 'EXECUTING' AND lease_expires_at > edgeoutbox_now()
      AND lease_owner IS DISTINCT FROM CAST(? AS text) AND {{condition}}
    ORDER BY lease_expires_at LIMIT 1)
  UNION ALL
  (SELECT due_at FROM agent_action_ended AS owed
    WHERE kind = ? AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = owed.kind AND has_ended_hook = 1)
    ORDER BY due_at LIMIT 1)
  UNION ALL
  -- What could be claimed already: the claim before this question passed it over, since another transaction held it.
  -- That transaction may leave it as it was, and tells nobody. In SQLite only one transaction writes.
  (SELECT edgeoutbox_now() + {HELD_FOR} FROM agent_action WHERE {IS_DUE} LIMIT 1)
  UNION ALL
  (SELECT edgeoutbox_now() + {HELD_FOR} FROM agent_action WHERE {IS_LOST} LIMIT 1)
) AS moments
"""


def next_due(served: Sequence[Served], owner: str) -> Steps[int | None]:
    """Milliseconds until something can be done."""

    def moment_of(kind: Served) -> Statement:
        name = kind.kind
        held = (name, name, name, name, owner, kind.max_attempts, name)
        return NEXT_DUE.format(condition=sql_of(kind.condition)), (name, name, name, name, owner, name, *held)

    return due.next_due(served, moment_of)
