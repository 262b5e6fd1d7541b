"""What Postgres and its drivers say went wrong, as one of our errors. No driver is imported here.

The texts hold no values: a message of Postgres may quote one, so only those of the guard and of checks are passed on.
"""

import re

from edgeoutbox.errors import (
    DatabaseBusy,
    DatabaseUnavailable,
    ForbiddenByGuard,
    NoSchema,
    SchemaTooNew,
    StorageError,
)

_DRIVERS = ("psycopg", "asyncpg")

BUSY = (
    "another transaction held what this one needs for too long, or they would have waited for each other; "
    "if your own transaction is open, give it as connection="
)

_BY_STATE: tuple[tuple[str, type[StorageError], str], ...] = (
    ("40001", DatabaseBusy, BUSY),
    ("40P01", DatabaseBusy, BUSY),
    ("55P03", DatabaseBusy, BUSY),
    ("57014", DatabaseBusy, BUSY),
    ("25P03", DatabaseUnavailable, "the server ended a transaction that was idle for too long"),
    ("25006", DatabaseUnavailable, "the server takes no writes: it is read-only, or a standby"),
    ("28", DatabaseUnavailable, "the server refused the login; check the user and the password of the url"),
    ("3D000", DatabaseUnavailable, "the server has no such database; check the name in the url"),
    ("08", DatabaseUnavailable, "the connection was lost or refused; check that the server runs and can be reached"),
    ("57P", DatabaseUnavailable, "the server is starting, stopping or was restarted"),
    ("53", DatabaseUnavailable, "the server is out of disk, memory or connections"),
    ("58", DatabaseUnavailable, "the server's disk or files fail"),
    ("XX", DatabaseUnavailable, "the server found its own data or state broken; look into its log"),
    ("42501", StorageError, "the role lacks a privilege; grant it what 'edgeoutbox migrate' names"),
)
"""The longest prefix of an SQLSTATE that stands here, what it is to us, and what to say."""

_OURS = re.compile(r"\bagent_action|\bedgeoutbox_now\b")


def storage_error(error: Exception) -> StorageError | None:
    """A driver's error as one of ours, or `None` when it is not a driver's."""
    if isinstance(error, StorageError):
        return error
    name = type(error).__name__
    if any(kind.__module__.partition(".")[0] in _DRIVERS for kind in type(error).__mro__):
        state: str = getattr(error, "sqlstate", None) or ""
        return (
            _of_ours(error, state, _message(error)) or _of_state(name, state) if state else _without_state(error, name)
        )
    if isinstance(error, OSError):  # asyncpg connects with the operating system's own errors
        return DatabaseUnavailable(f"the server cannot be reached ({name}); check that it runs")
    return None


def _of_ours(error: Exception, state: str, message: str) -> StorageError | None:
    """What our own tables and triggers have to do with it."""
    match state:
        case "23514":
            return ForbiddenByGuard(message)
        case "0A000" if _OURS.search(message):
            return ForbiddenByGuard(message)
        # Somebody did the same at the same time; whoever looks again finds it done.
        case "23505" if (_constraint(error) or "").startswith(("ux_agent_action", "agent_action")):
            return DatabaseBusy(BUSY)
        case "42P01" | "42883" if _OURS.search(message):
            return NoSchema(
                "the database has no edgeoutbox tables where search_path looks; run 'edgeoutbox migrate', "
                "or name their schema with ?schema= in the url"
            )
        case "P0001" if message.startswith("edgeoutbox: this database has schema"):
            return SchemaTooNew(f"{message.removeprefix('edgeoutbox: ')}; upgrade this program")
        case _:
            return None


def _of_state(name: str, state: str) -> StorageError:
    for prefix, kind, text in _BY_STATE:
        if state.startswith(prefix):
            return kind(f"{text} (SQLSTATE {state})")
    return StorageError(f"the database refused a statement ({name}, SQLSTATE {state})")


def _without_state(error: Exception, name: str) -> StorageError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "another operation is in progress" in str(error):  # asyncpg's; psycopg waits for its turn
        return StorageError("the connection runs another statement of yours; await that one first")
    if kinds & {"OperationalError", "InterfaceError", "OSError"}:
        return DatabaseUnavailable(f"the server cannot be reached ({name}); check that it runs and the url is right")
    return StorageError(f"the database driver refused a statement ({name})")


def _message(error: Exception) -> str:
    diagnosis = getattr(error, "diag", None)  # psycopg's; asyncpg's errors carry the fields themselves
    said = getattr(diagnosis, "message_primary", None) or getattr(error, "message", None) or ""
    return str(said)


def _constraint(error: Exception) -> str | None:
    found: str | None = getattr(getattr(error, "diag", error), "constraint_name", None)
    return found
