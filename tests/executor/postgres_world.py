"""The tests' world on Postgres: a schema of the test server in the place of a file."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from edgeoutbox import Adapter, Outbox
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.storage.postgres.spelling import positional
from edgeoutbox.storage.sqlite.drivers import StdlibDriver
from edgeoutbox.testing.postgres import PostgresServer, as_url
from edgeoutbox.testing.postgres_clock import PostgresClock
from tests.executor.world import Foreign, World


class PostgresWorld(World):
    """Outboxes and executors over one schema. Its time is the clock's."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(Path(), StdlibDriver)
        self._conninfo = server.fresh_schema(schema_sql())
        self.stack.enter_context(PostgresClock(self._conninfo, self.clock))
        self._plain = self.stack.enter_context(closing(self.connect()))

    @property
    def url(self) -> str:
        """The database, on the test's clock."""
        return as_url(self._conninfo)

    async def outbox(self, *adapters: Adapter[Any], busy_timeout: int = 5000) -> Outbox:
        """An open outbox; moving the clock wakes its executors. Postgres waits for rows, not for a busy timeout."""
        del busy_timeout
        outbox = await self.stack.enter_async_context(Outbox(PostgresStorage(self.url), adapters))
        self.clock.on_move(outbox.wake)
        return outbox

    def connect(self) -> Foreign:
        """Another program's connection."""
        return Foreign(_Plain(psycopg.connect(self._conninfo, autocommit=True)))

    def stores(self, payload: str) -> bool:
        """Postgres takes no half of a surrogate pair."""
        return "\\ud800" not in payload

    def trap(self) -> None:
        """A trigger of Postgres undoes its statement, and with it all up to the last savepoint."""
        self.sql("CREATE TABLE traps (one INTEGER)")
        self.sql(
            "CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'sprung' USING ERRCODE = 'invalid_transaction_state'; END $$"
        )
        self.sql("CREATE TRIGGER sprung AFTER INSERT ON traps FOR EACH ROW EXECUTE FUNCTION spring()")

    def refuses_done(self) -> None:
        """The same, as an application of Postgres writes it."""
        self.sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = 'check_violation'; END $$"
        )
        self.sql(
            "CREATE TRIGGER no_done BEFORE UPDATE OF state ON agent_action FOR EACH ROW "
            "WHEN (NEW.state = 'DONE') EXECUTE FUNCTION refuse()"
        )

    async def allows_done(self) -> None:
        """Drop that trigger, which waits for transactions that need the event loop to end."""
        await asyncio.to_thread(self.sql, "DROP TRIGGER no_done ON agent_action")

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement by another program; it stays connected, since to connect takes longer than most tests."""
        return self._plain.execute(statement, *parameters)


class _Plain:
    def __init__(self, raw: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._raw = raw

    def execute(self, statement: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        cursor = self._raw.execute(positional(statement).encode(), parameters)
        return cursor.fetchall() if cursor.description is not None else []

    def close(self) -> None:
        self._raw.close()
