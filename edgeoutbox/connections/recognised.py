"""What a caller's connection is once it is recognised: everything that the runner of steps asks of it."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from edgeoutbox.errors import StorageError
from edgeoutbox.storage.protocol import ConnectionFacts
from edgeoutbox.storage.statements.lanes import Lanes
from edgeoutbox.storage.statements.steps import Row, Statement


class Execute(Protocol):
    """Runs one statement on the caller's connection, to its end and without its row factory, and returns its rows."""

    def __call__(self, sql: str, parameters: Sequence[Any], /) -> list[Row] | Awaitable[list[Row]]:
        """An asynchronous connection's rows are awaited."""


class Recognised(NamedTuple):
    """A caller's connection, as its database and its library want to be used.

    `facts` is asked before the first step, and `facts_of` reads its rows; it raises `NoSchema` when there are none.
    `spell` turns a shared statement into the database's own, in the Postgres schema of our tables where that is known.
    `error` turns the library's exception into one of ours, or `None` when it is not the library's. `commits_each` is
    whether a statement would commit by itself now, and `begin` what begins a transaction that changes. `locks` are the
    statements with which a database on which many write at once begins an enqueue, `recommended` those of `prepare`.
    `close` ends what an asynchronous `execute` opened for itself, never the connection.
    """

    execute: Execute
    facts: str
    facts_of: Callable[[list[Row]], ConnectionFacts]
    spell: Callable[[str, str | None], str]
    error: Callable[[Exception], StorageError | None]
    commits_each: Callable[[], bool]
    begin: str
    locks: Callable[[Lanes], Sequence[Statement]] = lambda _lanes: ()
    recommended: Sequence[str] = ()
    asynchronous: bool = False
    close: Callable[[], Awaitable[None]] | None = None


class Database(Protocol):
    """A room of one kind of database, as a module. It imports no library that its callers may do without."""

    KNOWN: str
    """The libraries whose connections it knows, for a message."""

    def recognise(self, connection: object) -> Recognised | None:
        """The connection as its library runs statements, or `None` when it is none of this database's."""


def is_of(connection: object, module: str, *names: str) -> bool:
    """Whether the connection is of one of a library's classes, without importing the library."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(connection, tuple(getattr(loaded, name) for name in names))
