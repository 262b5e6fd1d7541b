"""Connections of an application's own to Postgres, of every library that is known, as the application uses them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg  # type: ignore[import-untyped]
import psycopg
import sqlalchemy
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.string import TextBinaryLoader
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session


@dataclass
class Caller:
    """A connection, and how the application begins, commits, rolls back and runs a statement on it."""

    connection: Any
    begin: Callable[[], Awaitable[None]]
    execute: Callable[[str], Awaitable[None]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


Open: TypeAlias = Callable[[str], AbstractAsyncContextManager[Caller]]
"""Opens a caller's connection by libpq's connection string."""


class Shouting(asyncpg.Record):  # type: ignore[misc]  # it has no types
    """A record class of the application's own, whose iteration is not that of its values."""

    def __iter__(self) -> Any:
        return iter(["not", "the", "values"])


async def of_itself() -> None:
    """The library begins a transaction with the first statement."""


def _later(function: Callable[..., Any], *before: Any) -> Callable[..., Awaitable[None]]:
    async def call(*given: Any) -> None:
        function(*before, *given)

    return call


def _awaited(function: Callable[..., Any], *before: Any) -> Callable[..., Awaitable[None]]:
    async def call(*given: Any) -> None:
        await function(*before, *given)

    return call


async def asyncpg_connection(conninfo: str, **more: Any) -> Any:
    """A connection of asyncpg's to where libpq's connection string leads."""
    return await asyncpg.connect(**_asyncpg_arguments(conninfo), **more)


def _asyncpg_arguments(conninfo: str) -> dict[str, Any]:
    given = conninfo_to_dict(conninfo)
    search_path = str(given.get("options", "")).removeprefix("-c search_path=")
    arguments = {ours: given[theirs] for ours, theirs in _NAMES.items() if theirs in given}
    return {**arguments, "server_settings": {"search_path": search_path}}


_NAMES = {"host": "host", "port": "port", "user": "user", "password": "password", "database": "dbname"}


@asynccontextmanager
async def of_psycopg(conninfo: str) -> AsyncIterator[Caller]:
    with closing(psycopg.connect(conninfo, row_factory=dict_row)) as raw:
        for name in ("text", "int8"):
            raw.adapters.register_loader(name, _Bytes)
        for kind in (str, int, list):
            raw.adapters.register_dumper(kind, _Refusing)
        yield Caller(raw, of_itself, _later(raw.execute), _later(raw.commit), _later(raw.rollback))


class _Bytes(TextBinaryLoader):
    """An application that wants to decode by itself."""

    format = psycopg.pq.Format.TEXT

    def load(self, data: Any) -> Any:
        return bytes(data)


class _Refusing(Dumper):
    """An application that writes types of its own only."""

    def dump(self, obj: Any) -> None:
        raise NotImplementedError(type(obj))


@asynccontextmanager
async def of_psycopg_autocommit(conninfo: str) -> AsyncIterator[Caller]:
    with closing(psycopg.connect(conninfo, autocommit=True, row_factory=namedtuple_row)) as raw:
        raw.cursor_factory = psycopg.RawCursor
        statements = [_later(raw.execute, statement) for statement in ("BEGIN", "COMMIT", "ROLLBACK")]
        yield Caller(raw, statements[0], _later(raw.execute), *statements[1:])


@asynccontextmanager
async def of_psycopg_async(conninfo: str) -> AsyncIterator[Caller]:
    raw = await psycopg.AsyncConnection.connect(conninfo, row_factory=dict_row)
    yield Caller(raw, of_itself, _awaited(raw.execute), raw.commit, raw.rollback)
    await raw.close()


@asynccontextmanager
async def of_asyncpg(conninfo: str) -> AsyncIterator[Caller]:
    raw = await asyncpg_connection(conninfo, record_class=Shouting)
    await raw.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    yield _of_asyncpg(raw)
    await raw.close()


@asynccontextmanager
async def of_asyncpg_pool(conninfo: str) -> AsyncIterator[Caller]:
    async with (
        asyncpg.create_pool(**_asyncpg_arguments(conninfo), min_size=1, max_size=1) as pool,
        pool.acquire() as raw,
    ):
        yield _of_asyncpg(raw)


def _of_asyncpg(raw: Any) -> Caller:
    statements = [_awaited(raw.execute, statement) for statement in ("BEGIN", "COMMIT", "ROLLBACK")]
    return Caller(raw, statements[0], _awaited(raw.execute), *statements[1:])


@asynccontextmanager
async def of_sqlalchemy_connection(conninfo: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo))
    with engine.connect().execution_options(stream_results=True) as raw:
        run = _later(lambda sql: raw.exec_driver_sql(sql, execution_options={"stream_results": False}))
        yield Caller(raw, of_itself, run, _later(raw.commit), _later(raw.rollback))
    engine.dispose()


@asynccontextmanager
async def of_sqlalchemy_session(conninfo: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo))
    with Session(engine) as raw:
        run = _later(lambda sql: raw.execute(sqlalchemy.text(sql)))
        yield Caller(raw, of_itself, run, _later(raw.commit), _later(raw.rollback))
    engine.dispose()


def _async_engine(driver: str, conninfo: str) -> Any:
    open_ = asyncpg_connection if driver == "asyncpg" else psycopg.AsyncConnection.connect
    return create_async_engine(f"postgresql+{driver}://", async_creator=lambda: open_(conninfo))


def of_sqlalchemy_async_connection(driver: str) -> Open:
    @asynccontextmanager
    async def opened(conninfo: str) -> AsyncIterator[Caller]:
        engine = _async_engine(driver, conninfo)
        async with engine.connect() as raw:
            yield Caller(raw, of_itself, _awaited(raw.exec_driver_sql), raw.commit, raw.rollback)
        await engine.dispose()

    return opened


def of_sqlalchemy_async_session(driver: str) -> Open:
    @asynccontextmanager
    async def opened(conninfo: str) -> AsyncIterator[Caller]:
        engine = _async_engine(driver, conninfo)
        async with AsyncSession(engine) as raw:
            run = _awaited(lambda sql: raw.execute(sqlalchemy.text(sql)))
            yield Caller(raw, of_itself, run, raw.commit, raw.rollback)
        await engine.dispose()

    return opened


SYNCHRONOUS: dict[str, Open] = {
    "psycopg": of_psycopg,
    "psycopg autocommit": of_psycopg_autocommit,
    "SQLAlchemy Connection": of_sqlalchemy_connection,
    "SQLAlchemy Session": of_sqlalchemy_session,
}
EVERY: dict[str, Open] = {
    **SYNCHRONOUS,
    "psycopg async": of_psycopg_async,
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_asyncpg_pool,
    "SQLAlchemy AsyncConnection asyncpg": of_sqlalchemy_async_connection("asyncpg"),
    "SQLAlchemy AsyncConnection psycopg": of_sqlalchemy_async_connection("psycopg"),
    "SQLAlchemy AsyncSession asyncpg": of_sqlalchemy_async_session("asyncpg"),
    "SQLAlchemy AsyncSession psycopg": of_sqlalchemy_async_session("psycopg"),
}
ASYNCHRONOUS: dict[str, Open] = {name: EVERY[name] for name in EVERY if name not in SYNCHRONOUS}
BOTH_DRIVERS: dict[str, Open] = {
    name: EVERY[name] for name in ("psycopg async", "asyncpg", "SQLAlchemy AsyncConnection asyncpg")
}
"""One of each way in which a database's error reaches us."""
