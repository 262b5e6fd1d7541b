"""State changes as statements without a driver: a generator yields SQL and is sent the rows.

The same steps run in a backend's writer, on a connection of the caller's own (sync or async) and in a test.

A shared statement is SQL that SQLite (3.37.2 or later) and Postgres (14 or later) both read, plus four words. Whoever
runs it spells them for its database first:

* `?` is a parameter; one that is used twice is given twice.
* `edgeoutbox_now()` is the database's clock: milliseconds since 1970, constant within a statement.
* `edgeoutbox_open(agent_action)` is whether an action has not ended, as the index of open actions says it, which serves
  the query then. The word in it is the table, or what the statement calls it.
* `edgeoutbox_text(column)` is free text, or JSON, as text or bytes. Another program may have stored it in any encoding,
  and one row that a driver cannot decode must not cost us the others; `text` in `rows` decodes what comes. And a driver
  that parses JSON by itself would not give us what was stored.

A parameter that is JSON is `CAST(CAST(? AS TEXT) AS JSON)`: so a codec for JSON that somebody gave the driver never
sees it. SQLite has no such type, and is told TEXT.

What both read also means: flags are integers 0 and 1, so compare them (`? = 1`) where a truth is wanted; a parameter
whose place gives it no type has a CAST, to BIGINT or TEXT.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]
Statement: TypeAlias = tuple[str, Sequence[Any]]
Steps: TypeAlias = Generator[Statement, list[Row], T]


def take(steps: Steps[T], execute: Callable[[Statement], list[Row]]) -> T:
    """Take every step and return what the steps return."""
    rows: list[Row] | None = None
    try:
        while True:
            rows = execute(next(steps) if rows is None else steps.send(rows))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def take_async(steps: Steps[T], execute: Callable[[Statement], Awaitable[list[Row]]]) -> T:
    """The same where rows are awaited."""
    rows: list[Row] | None = None
    try:
        while True:
            rows = await execute(next(steps) if rows is None else steps.send(rows))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()
