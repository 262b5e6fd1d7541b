"""The schema of a database: applied, migrated, or refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from edgeoutbox.errors import NoSchema, SchemaTooNew
from edgeoutbox.storage.sqlite.spelling import Connection

VERSION = 1
"""The schema that this build writes. A build at or above a database's `readable_from` may open it."""


@dataclass(frozen=True, slots=True)
class Migration:
    """The step to `version`. An additive one keeps `readable_from`, so that older builds go on."""

    version: int
    readable_from: int
    apply: Callable[[Connection], None]


MIGRATIONS: tuple[Migration, ...] = ()
"""The steps from version 1 on, in order."""


def schema_sql() -> str:
    """The text of `schema.sql`: in the installed package, or at the root of a checkout."""
    packaged = files("edgeoutbox").joinpath("schema.sql")
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return Path(__file__).parents[3].joinpath("schema.sql").read_text(encoding="utf-8")


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS, build: int = VERSION) -> int | None:
    """Bring the database to this build's schema, in one transaction; returns the version found, `None` for none.

    Raises `SchemaTooNew`, having touched nothing, when a newer build owns the database and this one cannot read it.
    """
    found = _version(connection, build)
    if found is None:
        found = _apply(connection, build)
    if any(step.version > (found or 1) for step in migrations):
        _migrate(connection, migrations, build)
    return found


def require_schema(connection: Connection, build: int = VERSION) -> None:
    """Raise `NoSchema` or `SchemaTooNew` unless this build may work with the database."""
    if _version(connection, build) is None:
        raise NoSchema("the database has no edgeoutbox tables; open it with Outbox once, or apply schema.sql")


def refuse_newer(connection: Connection, build: int = VERSION) -> None:
    """Raise `SchemaTooNew` for a database that this build cannot work with; one without the schema passes."""
    _version(connection, build)


def _version(connection: Connection, build: int) -> int | None:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'agent_action_schema'")
    rows = connection.execute("SELECT version, readable_from FROM agent_action_schema") if found else []
    if not rows:
        return None
    version, readable_from = rows[0]
    require_readable(version, readable_from, build)
    return int(version)


def require_readable(version: int, readable_from: int, build: int = VERSION) -> None:
    """Raise `SchemaTooNew` when this build cannot work with a schema."""
    if readable_from > build:
        raise SchemaTooNew(
            f"the database has schema {version}, readable by builds of schema {readable_from} or later; "
            f"this build has schema {build}. Upgrade this program; nothing was changed."
        )


def _apply(connection: Connection, build: int) -> int | None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _version(connection, build)  # somebody else may have been faster
        for statement in statements(schema_sql()) if found is None else ():
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found


def _migrate(connection: Connection, migrations: Sequence[Migration], build: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, build) or 1
        for step in migrations:
            if step.version > version:
                step.apply(connection)
                connection.execute(
                    "UPDATE agent_action_schema SET version = ?, readable_from = MAX(readable_from, ?)",
                    (step.version, step.readable_from),
                )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements(script: str) -> list[str]:
    """The statements of a script, without its own BEGIN and COMMIT."""
    import sqlite3  # noqa: PLC0415 - only its tokenizer; it opens nothing

    found: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return [statement for statement in found if not statement.endswith(("BEGIN IMMEDIATE;", "\nCOMMIT;", "COMMIT;"))]
