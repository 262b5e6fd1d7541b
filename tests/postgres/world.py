"""An outbox on Postgres and an application's connection beside it."""

from collections.abc import AsyncIterator
from typing import Literal
from urllib.parse import quote, urlencode

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel

from edgeoutbox import Outbox, one
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.testing import ScriptedAdapter
from edgeoutbox.testing.postgres import PostgresServer
from tests.postgres.callers import Caller
from tests.postgres.database import POSTGRES_SCHEMA, PostgresDatabase

ORDER = "INSERT INTO orders (id) VALUES (42)"
"""What the application writes beside its enqueue."""


class Email(BaseModel):
    """What the tests enqueue."""

    notice: Literal["receipt", "reminder"]


@pytest.fixture
def shop(postgres_server: PostgresServer) -> str:
    """How the application connects: to a schema of its own, in which another program has an outbox of its own."""
    return postgres_server.fresh_schema(POSTGRES_SCHEMA + "CREATE TABLE orders (id bigint);")


def url_of(conninfo: str, schema: str) -> str:
    """The URL of an outbox in this schema, for a server that is reached in this way."""
    given = {name: value for name, value in conninfo_to_dict(conninfo).items() if name != "options"}
    return f"postgresql:///?{urlencode({**given, 'schema': schema}, quote_via=quote)}"


@pytest.fixture
async def outbox(db: PostgresDatabase) -> AsyncIterator[Outbox]:
    """An open outbox in a schema that is not on the application's search_path."""
    storage = PostgresStorage(url_of(db.conninfo, db.schema))
    async with Outbox(storage, [ScriptedAdapter("email", variants=one(Email))]) as opened:
        yield opened


class World:
    """An outbox, the application's connection, and what another connection sees of both."""

    def __init__(self, outbox: Outbox, caller: Caller, db: PostgresDatabase, shop: str, name: str = "") -> None:
        self.outbox = outbox
        self.caller = caller
        self.connection = caller.connection
        self.db = db
        self.name = name
        self._shop = shop

    def committed(self) -> set[str]:
        """The keys in the outbox."""
        return {row[0] for row in self.db("SELECT idempotency_key FROM agent_action")}

    def orders(self) -> int:
        """The application's rows."""
        with PostgresDatabase(self._shop) as session:
            assert session("SELECT id FROM agent_action") == [], "an action went into another program's outbox"
            return int(session.one("SELECT COUNT(*) FROM orders"))
