"""Ended hooks: run inside the transaction that ends an action, and owed until they succeeded."""

import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from edgeoutbox import telemetry
from edgeoutbox.errors import HookError
from edgeoutbox.model import Action, ActionRequest, Enqueued
from edgeoutbox.storage.protocol import Hook, Hooks
from edgeoutbox.storage.sqlite.enqueueing import enqueue
from edgeoutbox.storage.sqlite.rows import COLUMNS, action_of
from edgeoutbox.storage.sqlite.steps import NOW, Connection, Row, run

SAVEPOINT = "SAVEPOINT edgeoutbox_hook"
UNDO = "ROLLBACK TO edgeoutbox_hook"
RELEASE = "RELEASE edgeoutbox_hook"

# Owed hooks that are due; served by ix_agent_action_ended_due.
OWED = f"""
SELECT {", ".join("action." + name.strip() for name in COLUMNS.split(","))}
FROM agent_action_ended AS owed JOIN agent_action AS action ON action.id = owed.action_id
WHERE owed.kind = ? AND owed.due_at <= {NOW}
ORDER BY owed.due_at LIMIT ?
"""

# The hook ran.
PAID = "DELETE FROM agent_action_ended WHERE action_id = ? RETURNING forget"

# The hook raised: again after 10 s, four times as long each time, at most an hour.
OWED_AGAIN = f"""
UPDATE agent_action_ended SET due_at = {NOW} + MIN(3600000, 10000 << (2 * MIN(tries, 5))), tries = tries + 1
WHERE action_id = ?
"""

# An action that was to be forgotten at its end, when no hook is owed any more.
FORGET_ENDED = """
DELETE FROM agent_action
WHERE id = ? AND ended_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id)
"""

_CONTROL = re.compile(r"\s*(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|PRAGMA|ATTACH|DETACH|VACUUM)\b", re.IGNORECASE)


class HookTransaction:
    """The transaction as a hook sees it. Its coroutines finish without ever yielding to a loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        if _CONTROL.match(sql):
            raise HookError("an ended hook runs inside a transaction of the outbox and must not control it")
        return self._connection.execute(sql, parameters)

    async def enqueue(self, request: ActionRequest) -> Enqueued:
        """Enqueue a follow-up in the same transaction."""
        return run(self._connection, enqueue(request))


def run_hook(connection: Connection, hook: Hook, action: Action) -> None:
    """Run the hook of an action that ended in this transaction; when it raises, only its own changes are undone."""
    connection.execute(SAVEPOINT)
    try:
        step_through(lambda: cast("Coroutine[Any, Any, None]", hook(action, HookTransaction(connection))))
    except Exception as error:
        if not connection.in_transaction:
            raise
        connection.execute(UNDO)
        connection.execute(RELEASE)
        connection.execute(OWED_AGAIN, (action.id,))
        # Only the type: a message or traceback could show values of the application's rows.
        telemetry.event(
            logging.ERROR,
            "action.hook.failed",
            action_id=action.id,
            action_kind=action.kind,
            error=type(error).__name__,
            what="its changes were undone and it will be called again",
        )
    else:
        connection.execute(RELEASE)
        [(forget,)] = connection.execute(PAID, (action.id,)) or [(0,)]
        if forget or action.forget_at_end:
            connection.execute(FORGET_ENDED, (action.id,))


def step_through(start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine that never waits. One that does is closed, and `HookError` raised."""
    coroutine = start()
    try:
        coroutine.send(None)
    except StopIteration:
        return
    finally:
        coroutine.close()
    raise HookError("an ended hook may await nothing but its transaction")


def run_owed(connection: Connection, hooks: Hooks, limit: int) -> int:
    """Run hooks that are owed and due, oldest first."""
    ran = 0
    for kind, hook in hooks.items():
        for row in connection.execute(OWED, (kind, limit - ran)):
            run_hook(connection, hook, action_of(row))
            ran += 1
    return ran
