"""The conformance suite over Postgres."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.storage.postgres.spelling import positional
from edgeoutbox.storage.protocol import Storage
from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.conformance import Backend, StorageConformance
from edgeoutbox.testing.conformance.story import INSERT, claim, enqueue
from edgeoutbox.testing.postgres import PostgresServer
from edgeoutbox.testing.postgres_clock import PostgresClock


class PostgresBackend(Backend):
    """A schema of a server, and a plain connection beside it."""

    def __init__(self, conninfo: str) -> None:
        self.clock = MovableClock()
        self._moved = PostgresClock(conninfo, self.clock)
        self._url = f"postgresql:///?{urlencode(conninfo_to_dict(conninfo))}"
        self._opened: list[PostgresStorage] = []
        self._plain = psycopg.connect(conninfo, autocommit=True)

    async def open(self) -> Storage:
        """Open one more storage on the schema."""
        storage = PostgresStorage(self._url)
        await storage.open()
        self._opened.append(storage)
        return storage

    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement through a connection that edgeoutbox did not open."""
        cursor = self._plain.execute(positional(statement).encode(), parameters)
        return cursor.fetchall() if cursor.description is not None else []

    async def close(self) -> None:
        """Close everything."""
        for storage in self._opened:
            await storage.close()
        self._plain.close()
        self._moved.close()


class TestPostgres(StorageConformance):
    """Every promise of the storage protocol, on Postgres."""

    @pytest.fixture
    async def backend(self, postgres_server: PostgresServer) -> AsyncIterator[Backend]:
        """A new schema for each test."""
        async with PostgresBackend(postgres_server.fresh_schema(schema_sql())) as backend:
            yield backend

    @pytest.mark.parametrize(
        "payload",
        ['{"a":1,"a":2}', '{"a":' + "9" * 5000 + "}", '{"a":' + "[" * 150 + "]" * 150 + "}", '{"a":1e999}'],
        ids=["a key twice", "a huge number", "nested deeply", "infinity"],
    )
    async def test_a_payload_that_cannot_be_read_stalls_nobody(
        self, storage: Storage, backend: Backend, payload: str
    ) -> None:
        """As on SQLite, but for two payloads that this schema does not take."""
        await super().test_a_payload_that_cannot_be_read_stalls_nobody(storage, backend, payload)

    @pytest.mark.parametrize("payload", ['{"a":"\\ud800"}', '{"a":"\\u0000"}'], ids=["a lone surrogate", "NUL"])
    async def test_a_payload_whose_text_postgres_cannot_hold_is_refused(
        self, storage: Storage, backend: Backend, payload: str
    ) -> None:
        """Reading any field of it would fail here, and with it the claims of its kind."""
        await enqueue(storage, "good")
        with pytest.raises(psycopg.DataError):
            await backend.sql(INSERT, "email", "bad", payload)
        assert (await claim(storage)).action.idempotency_key == "good"
