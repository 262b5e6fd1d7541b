"""Connections to the server: a few, opened when they are needed and kept for the next who asks.

Nothing may be expected of a connection but that it is one: through a pooler such as pgbouncer two transactions of one
connection run in two sessions of the server. What is left behind in one is everybody's: a statement that was prepared
under a name of ours runs in the place of another's of that name, without an error.

psycopg_pool connects in the background and waits between its tries; here whoever needs a connection makes it, so that
the first call after an outage works, and one during it says at once that the server is away.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from edgeoutbox.errors import DatabaseUnavailable, StorageError
from edgeoutbox.storage.postgres.address import Address
from edgeoutbox.storage.postgres.errors import READ_ONLY, storage_error
from edgeoutbox.storage.postgres.spelling import AsGiven, positional, spell
from edgeoutbox.storage.statements.steps import Row, Statement

MOST = 8
"""How many connections a storage has at most, beside the one that listens."""

CONNECT_WITHIN = 5
"""Seconds for a connection to be made, unless the URL says otherwise."""

ANSWER_WITHIN = 40.0
"""Seconds for a round trip; the server itself ends a statement before that."""

PREPARE_AFTER = 5
"""How often a statement runs on a connection before it is prepared there."""

# A crash of the server throws its statistics away, and nothing else gives them a new beginning but a person.
LIFE = "SELECT CAST(stats_reset AS text) FROM pg_stat_bgwriter"

# The process that serves us: a pooler names another when we connect, or we could cancel what runs for somebody else.
_SERVED_BY = f"SELECT ({LIFE}), pg_backend_pid()"

# What libpq takes to mean that the other side is gone, where it would wait for hours.
_DEFAULTS = {
    "connect_timeout": CONNECT_WITHIN,
    "application_name": "edgeoutbox",
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}

Raw: TypeAlias = AsyncConnection[tuple[Any, ...]]


class Session:
    """A connection in autocommit mode: transactions are statements.

    `life` tells two lives of the server apart: a server that crashed gives the ids of transactions that it lost again.
    `pooled` is whether a pooler stands between.
    """

    def __init__(self, raw: Raw, schema: str | None, *, prepares: bool = False, life: str | None = None) -> None:
        self.raw = raw
        self.schema = schema
        self.prepares = prepares
        self.life = life
        self.pooled = False

    @property
    def lost(self) -> bool:
        """Whether the connection is gone."""
        return self.raw.closed

    @property
    def idle(self) -> bool:
        """Whether the connection can be given to somebody else."""
        spoiled = self.prepares and self.raw.prepare_threshold is None
        return not (self.lost or spoiled) and self.raw.info.transaction_status == TransactionStatus.IDLE

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        return (await self.together([(sql, parameters)]))[0]

    async def together(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run statements in one round trip. When one fails its error rises, and none after it has run."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                cursors = await self._pipeline(statements)
                return [await cursor.fetchall() if cursor.description is not None else [] for cursor in cursors]
        except TimeoutError:
            await self.close()
            raise DatabaseUnavailable("the server does not answer; check that it runs and can be reached") from None

    async def _pipeline(self, statements: Sequence[Statement]) -> list[AsyncCursor[Row]]:
        """Run statements; also one alone, since outside of a pipeline one without parameters could hold several."""
        cursors = []
        failed: BaseException | None = None
        try:
            async with self.raw.pipeline():
                try:
                    for statement in statements:
                        cursors.append(await self.raw.execute(*self._spelled(*statement)))  # noqa: PERF401 - awaited
                except psycopg.Error as error:
                    failed = error  # told early; what rises at the end says only that nothing followed
        except BaseException as error:  # noqa: BLE001 - it is raised below, unless an earlier one is
            if failed is None or not isinstance(error, Exception):  # a cancellation is never lost
                failed = error
        if failed is not None:
            # psycopg believes that what followed the failure is prepared, and would ask for it by name ever after: this
            # connection prepares no more, and is not lent again.
            self.raw.prepare_threshold = None
            if _is_of_standby(failed, statements[0][0]) and self.raw.info.transaction_status == TransactionStatus.IDLE:
                raise DatabaseUnavailable(f"{READ_ONLY} (SQLSTATE 0A000)") from None
            raise failed
        return cursors

    def _spelled(self, sql: str, parameters: Sequence[Any]) -> tuple[bytes, Sequence[Any] | None]:
        if not isinstance(sql, AsGiven):
            return spell(sql, self.schema).encode(), parameters
        return (positional(sql).encode(), parameters) if parameters else (sql.encode(), None)

    async def close(self) -> None:
        """Close the connection."""
        await self.raw.close()


def _is_of_standby(error: BaseException, first: str) -> bool:
    """Whether the server may have refused to begin a transaction that writes, which a standby says in these words."""
    return getattr(error, "sqlstate", None) == "0A000" and first.startswith("BEGIN")


class Sessions:
    """The connections of one storage. `most` bounds them."""

    def __init__(self, address: Address, most: int = MOST) -> None:
        self._address = address
        self._free = asyncio.Semaphore(most)
        self._idle: list[Session] = []
        self._opened = False
        self.schema: str | None = address.schema

    def open(self) -> None:
        """Allow connections."""
        self._opened = True

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        self._opened = False
        await self._drop_idle()

    async def connect(self) -> Session:
        """Make a new connection, which whoever asked closes. Raises `DatabaseUnavailable`."""
        try:
            conninfo = make_conninfo(self._address.conninfo, **self._defaults())
            raw = await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise storage_error(error) or error from None  # its text may hold the address
        session = Session(raw, self.schema)
        try:
            [(session.life, process)] = await session.execute(_SERVED_BY)
        except BaseException as error:
            await session.close()
            if isinstance(error, psycopg.Error):
                raise storage_error(error) or error from None
            raise
        session.pooled = process != raw.info.backend_pid
        session.prepares = not session.pooled if self._address.prepare is None else self._address.prepare
        raw.prepare_threshold = PREPARE_AFTER if session.prepares else None
        return session

    def _defaults(self) -> dict[str, Any]:
        given = conninfo_to_dict(self._address.conninfo)
        return {name: value for name, value in _DEFAULTS.items() if name not in given}

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A connection for one transaction, or for reads."""
        async with self._free:
            if not self._opened:
                raise StorageError("the outbox is closed; open it with 'async with Outbox(...)'")
            session = self._idle.pop() if self._idle else await self.connect()
            try:
                yield session
            finally:
                await self._give_back(session)

    async def _give_back(self, session: Session) -> None:
        if session.lost:
            await self._drop_idle()  # what ended this one has ended them too, more often than not
        if session.idle and self._opened:
            self._idle.append(session)
        else:
            await session.close()

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for session in idle:
            await session.close()
