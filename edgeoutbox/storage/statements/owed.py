"""Owed hooks: an ended action whose hook has not run yet, and when it is to be called again."""

from edgeoutbox.storage.statements.rows import columns

# Owed hooks that are due; served by ix_agent_action_ended_due.
OWED = f"""
SELECT {columns("action")}
FROM agent_action_ended AS owed JOIN agent_action AS action ON action.id = owed.action_id
WHERE owed.kind = ? AND owed.due_at <= edgeoutbox_now()
ORDER BY owed.due_at LIMIT ?
"""

STILL_OWED = "SELECT 1 FROM agent_action_ended WHERE action_id = ?"

# The hook ran.
PAID = "DELETE FROM agent_action_ended WHERE action_id = ? RETURNING forget"

# The hook raised: again after 10 s, four times as long each time, at most an hour; also when the kind was last declared
# by a program that has no hook. The parameters: the kind, the action's id.
OWED_AGAIN = """
INSERT INTO agent_action_ended (action_id, kind, due_at, tries)
SELECT id, CAST(? AS TEXT), edgeoutbox_now() + 10000, 1 FROM agent_action WHERE id = ?
ON CONFLICT (action_id) DO UPDATE
SET tries = agent_action_ended.tries + 1,
    due_at = edgeoutbox_now() + CASE agent_action_ended.tries
      WHEN 0 THEN 10000 WHEN 1 THEN 40000 WHEN 2 THEN 160000 WHEN 3 THEN 640000 WHEN 4 THEN 2560000 ELSE 3600000
    END
"""

# An action that was to be forgotten at its end, when no hook is owed any more.
FORGET_ENDED = """
DELETE FROM agent_action
WHERE id = ? AND ended_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id)
"""
