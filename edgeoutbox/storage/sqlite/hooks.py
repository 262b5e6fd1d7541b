"""Ended hooks: run inside the transaction that ends an action, and owed until they succeeded."""

import re
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from edgeoutbox import telemetry
from edgeoutbox.adapter import Transaction
from edgeoutbox.errors import DatabaseUnavailable, HookError
from edgeoutbox.model import Action, ActionRequest, Enqueued
from edgeoutbox.storage.protocol import Hook, Hooks
from edgeoutbox.storage.sqlite.drivers import storage_error
from edgeoutbox.storage.sqlite.spelling import Connection, run, spell
from edgeoutbox.storage.statements import owed
from edgeoutbox.storage.statements.enqueueing import enqueue
from edgeoutbox.storage.statements.owed import FORGET_ENDED, PAID, STILL_OWED
from edgeoutbox.storage.statements.rows import action_of
from edgeoutbox.storage.statements.steps import Row

SAVEPOINT = "SAVEPOINT edgeoutbox_hook"
UNDO = "ROLLBACK TO edgeoutbox_hook"
RELEASE = "RELEASE edgeoutbox_hook"

OWED = spell(owed.OWED)
OWED_AGAIN = spell(owed.OWED_AGAIN)

# What SQLite passes over before a statement: also a byte-order mark.
_NOTHING = r"(?:[\s\ufeff]|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*"

_CONTROL = re.compile(
    _NOTHING + r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|PRAGMA|ATTACH|DETACH|VACUUM)\b", re.IGNORECASE | re.DOTALL
)


class TransactionLost(HookError):
    """A hook's statement rolled everything back (OR ROLLBACK, RAISE(ROLLBACK)), the end of its action too."""

    def __init__(self, action_id: int) -> None:
        super().__init__(f"the ended hook of action {action_id} rolled back the transaction that it runs in")
        self.action_id = action_id


class HookTransaction:
    """The transaction as a hook sees it. Its coroutines finish without ever yielding to a loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        self._require_transaction()
        if _CONTROL.match(sql):
            raise HookError("an ended hook runs inside a transaction of the outbox and must not control it")
        if _is_several(sql):  # apsw would run all of them, a COMMIT among them
            raise HookError("an ended hook executes one statement at a time")
        return self._connection.execute(sql, parameters)

    async def enqueue(self, request: ActionRequest) -> Enqueued:
        """Enqueue a follow-up in the same transaction."""
        self._require_transaction()
        return run(self._connection, enqueue(request))

    def _require_transaction(self) -> None:
        if not self._connection.in_transaction:
            raise HookError("this ended hook has rolled back the transaction that it runs in; nothing can follow")


def _is_several(sql: str) -> bool:
    for semicolon in re.finditer(";", sql):
        if sqlite3.complete_statement(sql[: semicolon.end()]):
            return re.fullmatch(_NOTHING, sql[semicolon.end() :], re.DOTALL) is None
    return False


def run_hook(connection: Connection, hook: Hook, action: Action) -> None:
    """Run the hook of an action that ended in this transaction; when it raises, only its own changes are undone."""
    connection.execute(SAVEPOINT)
    try:
        step_through(lambda: cast("Coroutine[Any, Any, None]", hook(action, HookTransaction(connection))))
    except BaseException as error:
        if not connection.in_transaction:
            if isinstance(error, Exception) and isinstance(storage_error(error), DatabaseUnavailable):
                raise
            raise TransactionLost(action.id) from None
        connection.execute(UNDO)
        connection.execute(RELEASE)
        connection.execute(OWED_AGAIN, (action.kind, action.id))
        telemetry.hook_failed(action.id, action.kind, error)
    else:
        if not connection.in_transaction:
            raise TransactionLost(action.id)
        connection.execute(RELEASE)
        [(forget,)] = connection.execute(PAID, (action.id,)) or [(0,)]
        if forget or action.forget_at_end:
            connection.execute(FORGET_ENDED, (action.id,))


def sparing(hooks: Hooks, lost: Mapping[int, TransactionLost]) -> Hooks:
    """The hooks, but those of lost actions only raise: their ends are stored, and the hooks stay owed."""

    def spare(hook: Hook) -> Hook:
        async def call(action: Action, tx: Transaction) -> None:
            if action.id in lost:
                raise lost[action.id]
            await hook(action, tx)

        return call

    return {kind: spare(hook) for kind, hook in hooks.items()} if lost else hooks


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
            if connection.execute(STILL_OWED, (row[0],)):  # else the hook before it deleted this action
                run_hook(connection, hook, action_of(row))
            ran += 1
    return ran
