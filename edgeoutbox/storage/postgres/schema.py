"""The schema of a database: found, applied, or refused."""

import re
from importlib.resources import files

import psycopg
from psycopg import ConnectionInfo

from edgeoutbox.errors import NoSchema, StorageError
from edgeoutbox.storage.postgres.errors import storage_error
from edgeoutbox.storage.postgres.facts import FACTS, VERSION, facts_of, require_readable
from edgeoutbox.storage.postgres.sessions import Session
from edgeoutbox.storage.postgres.spelling import quoted
from edgeoutbox.storage.protocol import PostgresFacts

MINIMUM = 140000
"""The server that the schema needs, as libpq counts: Postgres 14."""

MIGRATE_WITHIN = 60_000
"""Milliseconds that a migration waits for the locks of others."""

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('edgeoutbox migration', 0))"
"""One migration at a time."""

_CURRENT = "SELECT CAST(current_schema() AS text)"

_FOUND = """
SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = CAST(? AS text) AND relname = 'agent_action_schema'
"""

_BEGIN, _COMMIT = "BEGIN ISOLATION LEVEL READ COMMITTED;\n", "COMMIT;"

_MISSING = (
    "the database has no edgeoutbox tables in the schema {schema}, and this role may not make them; run "
    "'edgeoutbox migrate' once with a role that may, and grant this one what it prints"
)


def schema_sql() -> str:
    """The text of `postgres.sql`."""
    return files("edgeoutbox.storage").joinpath("postgres.sql").read_text(encoding="utf-8")


def require_server(said: ConnectionInfo) -> None:
    """Refuse a server, or a database in it, that the schema cannot live in."""
    version = said.server_version
    if version < MINIMUM:
        raise StorageError(f"Postgres {version // 10000} is too old: {MINIMUM // 10000} or later is needed")
    encoding = said.parameter_status("server_encoding")
    if encoding not in {"UTF8", None}:  # None: a pooler keeps it to itself
        raise StorageError(
            f"the database stores text as {encoding}, which has no place for all of it; use one with ENCODING 'UTF8'"
        )


async def resolve(session: Session) -> str:
    """The name of the schema that our tables are or will be in: the one of the URL, or the first of search_path."""
    if session.schema is not None:
        return session.schema
    [(name,)] = await session.execute(_CURRENT)
    if name is None:
        raise NoSchema(
            "search_path names no schema that exists and that this role may use; name one with ?schema= in the url"
        )
    return str(name)


async def facts(session: Session) -> PostgresFacts | None:
    """What the database says of itself; `None` when it has no tables of ours. Raises `SchemaTooNew`."""
    if not await session.execute(_FOUND, (session.schema,)):
        return None
    found = facts_of(await session.execute(FACTS))
    require_readable(found)
    return found


async def migrate(session: Session) -> PostgresFacts:
    """Bring the database to this build's schema, in one transaction; one that is there already is left as it is."""
    return (await bring(session))[1]


async def bring(session: Session) -> tuple[int | None, PostgresFacts]:
    """The same; returns also the version that was found, or `None` where there was none."""
    found = await facts(session)
    if found is not None and found.version >= VERSION:
        return found.version, found
    before = await _apply(session)
    applied = await facts(session)
    if applied is None:
        raise NoSchema(_MISSING.format(schema=session.schema))
    return before, applied


def script(schema: str | None) -> str:
    """The same as SQL for psql: in this schema, which it makes, or in the first of search_path. May be run again."""
    if schema is None:
        return schema_sql()
    name, text = quoted(schema), schema.replace("'", "''")
    # CREATE SCHEMA IF NOT EXISTS asks for the privilege to make one also where it is there.
    make = f"""
SET LOCAL client_min_messages = warning;

DO $edgeoutbox$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('edgeoutbox migration', 0));
  IF NOT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = '{text}') THEN
    CREATE SCHEMA {name};
  END IF;
END
$edgeoutbox$;

SET LOCAL search_path = {name};
"""
    return schema_sql().replace(_BEGIN, _BEGIN + make, 1)


def grants(schema: str, role: str) -> str:
    """What a role that runs or enqueues needs, as SQL. It may read what the guard decides by, and write the rest."""
    text = schema_sql()
    tables = re.findall(r"^CREATE TABLE IF NOT EXISTS (\w+)", text, re.MULTILINE)
    [sequence] = re.findall(r"^CREATE SEQUENCE IF NOT EXISTS (\w+)", text, re.MULTILINE)
    within = quoted(schema)
    read, written = (
        ",\n  ".join(f"{within}.{table}" for table in tables if (table in RULES) is rules) for rules in (True, False)
    )
    return (
        f"GRANT USAGE ON SCHEMA {within} TO {role};\n"
        f"GRANT SELECT ON\n  {read}\nTO {role};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON\n  {written}\nTO {role};\n"
        f"GRANT USAGE ON SEQUENCE {within}.{sequence} TO {role};\n"
    )


RULES = ("agent_action_schema", "agent_action_transition", "agent_action_stop_reason")
"""The tables that the guard decides by: who may write them could allow itself any step."""


async def _apply(session: Session) -> int | None:
    schema = quoted(session.schema or "")
    body = schema_sql()
    body = body[body.index(_BEGIN) + len(_BEGIN) : body.rindex(_COMMIT)]
    try:
        await session.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        await session.execute(f"SET LOCAL lock_timeout = {MIGRATE_WITHIN}")
        # Two that find no schema at the same time: the second waits here, and finds it then.
        await session.execute(LOCK)
        before = await facts(session)
        if not await session.execute("SELECT 1 FROM pg_namespace WHERE nspname = CAST(? AS text)", (session.schema,)):
            await session.execute(f"CREATE SCHEMA {schema}")
        await session.execute(f"SET LOCAL search_path = {schema}")
        await session.raw.execute(body.encode())
        await session.execute("COMMIT")
    except StorageError:
        if not session.lost:
            await session.execute("ROLLBACK")
        raise
    except psycopg.Error as error:
        if not session.lost:
            await session.execute("ROLLBACK")
        if isinstance(error, psycopg.errors.InsufficientPrivilege | psycopg.errors.ReadOnlySqlTransaction):
            raise NoSchema(_MISSING.format(schema=session.schema)) from None
        raise storage_error(error) or error from None
    return None if before is None else before.version
