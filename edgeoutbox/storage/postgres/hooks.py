"""Ended hooks: run inside the transaction that ends an action, and owed until they succeeded.

A hook awaits nothing but its transaction. Its coroutine is driven by hand: what it asks of the transaction comes out as
a `_Wish`, becomes a step, and the rows go back in; whatever else it awaits comes out as something else.
"""

import re
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, cast

from edgeoutbox import telemetry
from edgeoutbox.errors import HookError
from edgeoutbox.model import Action, ActionRequest, Enqueued
from edgeoutbox.storage.postgres.committer import BY_INDEX
from edgeoutbox.storage.postgres.enqueueing import enqueue_all
from edgeoutbox.storage.postgres.running import Ahead
from edgeoutbox.storage.postgres.spelling import AsGiven, end_of_remark, is_several
from edgeoutbox.storage.protocol import Hook
from edgeoutbox.storage.statements import owed
from edgeoutbox.storage.statements.owed import FORGET_ENDED, OWED_AGAIN, PAID
from edgeoutbox.storage.statements.rows import action_of
from edgeoutbox.storage.statements.steps import Row, Steps

SAVEPOINT = "SAVEPOINT edgeoutbox_hook"
UNDO = "ROLLBACK TO SAVEPOINT edgeoutbox_hook"
RELEASE = "RELEASE SAVEPOINT edgeoutbox_hook"

PLANNED_AS_EVER = tuple(f"SET LOCAL {name} TO DEFAULT" for name in BY_INDEX)
"""What a transaction of ours asks of the planner is not meant for the application's statements."""

# In Postgres a statement that fails takes the transaction with it; in SQLite it undoes itself alone.
WISH = "SAVEPOINT edgeoutbox_wish"
UNWISH = "ROLLBACK TO SAVEPOINT edgeoutbox_wish"
WISHED = "RELEASE SAVEPOINT edgeoutbox_wish"

# Hooks that another executor runs at this moment are left to it.
OWED = f"{owed.OWED} FOR UPDATE OF owed SKIP LOCKED"

# What begins or ends a transaction, or changes the session, which is lent to others afterwards.
_CONTROL = frozenset({
    "ABORT", "BEGIN", "CLOSE", "COMMIT", "COPY", "DEALLOCATE", "DISCARD", "END", "EXECUTE", "LISTEN", "LOAD", "PREPARE",
    "RELEASE", "RESET", "ROLLBACK", "SAVEPOINT", "SET", "START", "UNLISTEN", "VACUUM",
})  # fmt: skip

_NOTHING = re.compile(r"[\s;]+|--[^\n]*|(?P<remark>/\*)")
_WORD = re.compile(r"[A-Za-z_]+")

SYNTAX = "42601"
"""The SQLSTATE of what is no statement."""


class _Wish:
    """Steps that a hook wants its transaction to take."""

    def __init__(self, steps: Steps[Any]) -> None:
        self.steps = steps


@types.coroutine
def _of_transaction(wish: _Wish) -> Generator[_Wish, Any, Any]:
    return (yield wish)


class HookTransaction:
    """The transaction as a hook sees it."""

    def __init__(self) -> None:
        self._foreign = False

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows. `?` is a parameter, as on SQLite."""
        if _first_word(sql) in _CONTROL:
            raise HookError("an ended hook runs inside a transaction of the outbox and must not control it")
        if is_several(sql):
            raise HookError("an ended hook executes one statement at a time")
        try:
            rows: list[Row] = await _of_transaction(_Wish(_one(AsGiven(sql), tuple(parameters))))
        except Exception as error:
            if getattr(error, "sqlstate", None) == SYNTAX:
                self._foreign = True
            raise
        return rows

    async def enqueue(self, request: ActionRequest) -> Enqueued:
        """Enqueue a follow-up in the same transaction."""
        [[answer]] = await _of_transaction(_Wish(enqueue_all([([request], False)])))
        enqueued: Enqueued = answer
        return enqueued

    def require_believable(self) -> None:
        """Refuse a hook that swallowed that its SQL is none of Postgres.

        Such as INSERT OR ROLLBACK, which on SQLite ends the transaction: it is owed until it is written for Postgres.
        """
        if self._foreign:
            raise HookError("an ended hook's statement is none of Postgres")


def _one(sql: str, parameters: Sequence[Any]) -> Steps[list[Row]]:
    return (yield sql, parameters)


def _first_word(sql: str) -> str:
    at = 0
    while (found := _NOTHING.match(sql, at)) is not None:
        at = end_of_remark(sql, at) if found["remark"] else found.end()
    word = _WORD.match(sql, at)
    if word is None:
        return ""
    rest = sql[word.end() :].split(maxsplit=1)
    first = word[0].upper()
    return "" if first == "SET" and rest and rest[0].upper() == "LOCAL" else first


def run_hook(hook: Hook, action: Action) -> Steps[None]:
    """Run the hook of an action that ended in this transaction; when it raises, only its own changes are undone."""
    yield Ahead(SAVEPOINT)
    for statement in PLANNED_AS_EVER:
        yield Ahead(statement)
    transaction = HookTransaction()
    try:
        yield from _step_through(cast("Coroutine[Any, Any, None]", hook(action, transaction)))
        transaction.require_believable()
    except GeneratorExit:  # the connection is lost, and the transaction with it
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a hook raises, it stays owed
        yield Ahead(UNDO)
        yield Ahead(RELEASE)
        yield OWED_AGAIN, (action.kind, action.id)
        telemetry.hook_failed(action.id, action.kind, error)
    else:
        yield Ahead(RELEASE)
        [(forget,)] = (yield PAID, (action.id,)) or [(0,)]
        if forget or action.forget_at_end:
            yield FORGET_ENDED, (action.id,)


def _step_through(coroutine: Coroutine[Any, Any, None]) -> Steps[None]:
    """Run a coroutine that awaits nothing but its transaction. One that does is closed, and `HookError` raised."""
    try:
        asked: Any = coroutine.send(None)
        while isinstance(asked, _Wish):
            try:
                granted = yield from _granted(asked)
            except Exception as error:  # noqa: BLE001 - the hook's statement failed: the hook is told
                asked = coroutine.throw(error)
            else:
                asked = coroutine.send(granted)
    except StopIteration:
        return
    finally:
        coroutine.close()
    raise HookError("an ended hook may await nothing but its transaction")


def _granted(wish: _Wish) -> Steps[Any]:
    yield Ahead(WISH)
    try:
        value = yield from wish.steps
    except Exception:
        yield Ahead(UNWISH)
        yield WISHED, ()
        raise
    yield Ahead(WISHED)
    return value


def run_owed(kind: str, hook: Hook) -> Steps[bool]:
    """Run the hook that has been owed and due for longest; false when there is none."""
    rows = yield OWED, (kind, 1)
    for row in rows:
        yield from run_hook(hook, action_of(row))
    return bool(rows)
