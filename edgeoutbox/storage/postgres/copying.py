"""A Postgres database as the source or the destination of a copy."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import psycopg

from edgeoutbox.errors import NoSchema, NotPossible, StorageError
from edgeoutbox.storage.postgres import schema
from edgeoutbox.storage.postgres.address import address_of
from edgeoutbox.storage.postgres.committer import AT_LEAST_ON
from edgeoutbox.storage.postgres.deciding import LOCK_KINDS
from edgeoutbox.storage.postgres.errors import storage_error
from edgeoutbox.storage.postgres.running import run
from edgeoutbox.storage.postgres.sessions import Session, Sessions
from edgeoutbox.storage.postgres.spelling import quoted
from edgeoutbox.storage.protocol import KindPolicy, Migrated
from edgeoutbox.storage.statements import copying
from edgeoutbox.storage.statements.copying import Carried, Outcome, Text, Unfit
from edgeoutbox.storage.statements.steps import Statement, Steps

T = TypeVar("T")

LOCK_WITHIN = 3000
"""Milliseconds to wait for a lock of a table; everybody who comes after us waits behind us meanwhile."""

# A hold that is lost with the power would let the source send what is at the destination already.
DURABLE = f"""
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') NOT IN ({AT_LEAST_ON})
"""

BEGIN: tuple[Statement, ...] = (
    ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", ()),
    (f"SET LOCAL lock_timeout = {LOCK_WITHIN}", ()),
    (DURABLE, ()),
)

# Whoever began to write has committed before we have it, and whoever comes later sees what we commit. Reads go on.
ALONE = "LOCK TABLE agent_action IN EXCLUSIVE MODE"

SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

OWNED = """
SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = CAST(edgeoutbox_table() AS oid)
"""

READABLE = "SELECT jsonb_typeof(CAST(CAST(? AS TEXT) AS JSONB))"

# What the guard asks of new rows, and what it looks at once more at the end; what wakes executors stays, and so does a
# trigger of the application's own. The lock that this takes keeps all other writers out until the commit.
_GUARD = ("guard_agent_action", "agent_action_lane_head_inserted")
ASIDE: tuple[Statement, ...] = tuple((f'ALTER TABLE agent_action DISABLE TRIGGER "{name}"', ()) for name in _GUARD)
BACK: tuple[Statement, ...] = (
    ("SET CONSTRAINTS ALL IMMEDIATE", ()),  # a table is not altered while a deferred trigger has yet to look at it
    *((f'ALTER TABLE agent_action ENABLE TRIGGER "{name}"', ()) for name in _GUARD),
)

_OF_DATA = {"22", "23", "P0"}
"""The classes of SQLSTATE of a value or row that is not taken, by a constraint or a trigger."""


class PostgresPlace:
    """One schema of a Postgres database, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._address = address_of(url)
        self._session: Session | None = None
        self._identity: Hashable = None

    @property
    def shown(self) -> str:
        """Where it is, without the password."""
        return self._address.shown

    @property
    def identity(self) -> Hashable:
        """The database and the schema, whatever the URL; known once it was opened."""
        return self._identity

    def sql(self) -> str:
        """The schema, as `migrate` would make it where there is none."""
        return schema.script(self._address.schema)

    async def migrate(self) -> Migrated:
        """Bring the schema to this build's version, and make the Postgres schema of the tables if it is not there."""
        async with self._connected() as session:
            before, facts = await schema.bring(session)
        return Migrated(before, facts.version, schema.grants(facts.schema, "ROLE"))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect, and disconnect in the end."""
        async with self._connected() as session:
            facts = await schema.facts(session)
            if facts is None:
                raise NoSchema(
                    f"the database has no edgeoutbox tables in the schema {session.schema}; make them with "
                    "'edgeoutbox migrate', or name the schema that they are in with ?schema= in the url"
                )
            self._identity = "postgres", facts.database, facts.schema
            self._session = session
            try:
                yield
            finally:
                self._session = None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Session]:
        session = await Sessions(self._address).connect()
        try:
            schema.require_server(session.raw.info)
            session.schema = await schema.resolve(session)
            yield session
        except psycopg.Error as error:
            raise storage_error(error) or error from None
        finally:
            await session.close()

    async def make_ready(self) -> None:
        """Make the table of what was copied, if the tables are this role's to alter."""

        async def make(session: Session) -> None:
            [(owned,)] = await session.execute(OWNED)
            if not owned:
                raise NotPossible(
                    f"the tables in the schema {session.schema} belong to another role, and only their owner may put "
                    "the guard aside, as a copy does: connect as the role that ran 'edgeoutbox migrate'"
                )
            await session.execute(schema.LOCK)
            await run(session, copying.make_ready())

        await self._write((), make)

    async def hold(self, by: str) -> tuple[Mapping[str, KindPolicy], int]:
        """Pause every kind, in a transaction that is the only one that writes."""
        return await self._write(((ALONE, ()),), lambda session: run(session, copying.hold(by)))

    async def hold_more(self, by: str) -> Mapping[str, KindPolicy]:
        """Pause also the kinds that came up since."""
        return await self._write(((ALONE, ()),), lambda session: run(session, copying.hold_more(by)))

    async def count(self, *, everything: bool) -> int:
        """How many actions there are to carry."""
        return await self._read(copying.count(everything=everything))

    async def read(self, after: int, limit: int, *, everything: bool) -> Sequence[Carried]:
        """The next actions by id."""
        return await self._read(copying.read(after, limit, everything=everything))

    async def declare(self, policies: Iterable[KindPolicy]) -> None:
        """Let the source's kinds hold here."""
        await self._write(((LOCK_KINDS, ()),), lambda session: run(session, copying.declare(policies)))

    async def put(self, actions: Sequence[Carried], blocked: Collection[Text]) -> Sequence[Outcome]:
        """Insert what is new, while the guard of new rows is put aside; nobody else can write until it is back."""
        if any(isinstance(value, bytes) for action in actions for value in action.everything):
            raise Unfit("Postgres stores text as UTF-8 only")

        async def insert(session: Session) -> Sequence[Outcome]:
            sequence = f"{quoted(session.schema or '')}.agent_action_id_seq".replace("'", "''")
            steps = copying.plan(actions, blocked, new_id=f"nextval('{sequence}')")
            outcomes, statements = await run(session, steps)
            copied = copying.copied(actions, outcomes)
            # Reading one field of a payload that jsonb does not take would fail, and with it every claim of its kind.
            payloads = [action.values["payload"] for action in copied if action.values["payload"] is not None]
            await session.together([*((READABLE, (payload,)) for payload in payloads), *statements, *BACK])
            await run(session, copying.require_heads(copied))
            return outcomes

        try:
            return await self._write(ASIDE, insert)
        except StorageError as error:
            cause = error.__context__
            if isinstance(cause, psycopg.DataError) or (getattr(cause, "sqlstate", None) or "")[:2] in _OF_DATA:
                raise Unfit("Postgres does not take one of these actions") from None
            raise

    async def _read(self, steps: Steps[T]) -> T:
        return await self._transaction(((SNAPSHOT, ()),), lambda session: run(session, steps))

    async def _write(self, first: Sequence[Statement], body: Callable[[Session], Awaitable[T]]) -> T:
        return await self._transaction((*BEGIN, *first), body)

    async def _transaction(self, first: Sequence[Statement], body: Callable[[Session], Awaitable[T]]) -> T:
        session = self._session
        if session is None:
            raise StorageError("this place is closed; open it first")
        try:
            await session.together(first)
            result = await body(session)
            await session.execute("COMMIT")
        except BaseException as error:
            if not session.lost:
                await session.execute("ROLLBACK")
            if isinstance(error, psycopg.Error):
                raise storage_error(error) or error from None
            raise
        return result
