"""The next due moment: how long nothing can be done. It names the indexes that it is the first entry of."""

from collections.abc import Sequence

from edgeoutbox.storage.protocol import Served
from edgeoutbox.storage.sqlite.claiming import IF_OPEN
from edgeoutbox.storage.sqlite.conditions import sql_of
from edgeoutbox.storage.sqlite.spelling import NOW
from edgeoutbox.storage.statements import due
from edgeoutbox.storage.statements.steps import Statement, Steps

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


def next_due(served: Sequence[Served], owner: str) -> Steps[int | None]:
    """Milliseconds until something can be done."""

    def moment_of(kind: Served) -> Statement:
        name = kind.kind
        sql = NEXT_DUE.format(now=NOW, if_open=IF_OPEN, condition=sql_of(kind.condition))
        return sql, (name, name, name, name, owner, name)

    return due.next_due(served, moment_of)
