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

UNPREPARED = (
    "a prepared statement is missing, or another's: a pooler stands between that knows none; prepare none on this "
    "connection (in a url: prepare=off)"
)

READ_ONLY = (
    "the server takes no writes: it is a standby, or read-only; name the primary in the url, or wait until this one is"
)

_LOGIN = "the server refused the login; check the user and the password, and what its pg_hba.conf allows"
_LOST = "the connection was lost or refused; check that the server runs and can be reached"
_AWAY = "the server cannot be reached; check that it runs, and the host and the port of the url"
_ANY = (
    "the server cannot be reached, or it refused the login, or has no such database; check that it runs, and the "
    "host, port, user, password and database of the url"
)
_NO_DATABASE = "the server has no such database; check its name in the url"
_NO_LOGIN = "the role may not log in there; it needs LOGIN, and CONNECT to the database"
_STARTING = "the server is starting, stopping or was restarted"
_VALUE = "libpq does not take a value of one of the url's parameters, or knows no such service"
_STARTUP = (
    "a pooler refuses what the url or PGOPTIONS sets for the session; name the schema with schema= in the url, "
    "and set the rest with ALTER ROLE"
)

_BY_STATE: tuple[tuple[str, type[StorageError], str], ...] = (
    ("40001", DatabaseBusy, BUSY),
    ("40P01", DatabaseBusy, BUSY),
    ("55P03", DatabaseBusy, BUSY),
    ("57014", DatabaseBusy, BUSY),
    ("25P03", DatabaseUnavailable, "the server ended a transaction that was idle for too long"),
    ("25006", DatabaseUnavailable, READ_ONLY),
    ("28", DatabaseUnavailable, _LOGIN),
    ("3D000", DatabaseUnavailable, _NO_DATABASE),
    ("08", DatabaseUnavailable, _LOST),
    ("57P", DatabaseUnavailable, _STARTING),
    ("53", DatabaseUnavailable, "the server is out of disk, memory or connections"),
    ("58", DatabaseUnavailable, "the server's disk or files fail"),
    ("XX", DatabaseUnavailable, "the server found its own data or state broken; look into its log"),
    ("26000", StorageError, UNPREPARED),
    ("42P05", StorageError, UNPREPARED),
    ("42501", StorageError, "the role lacks a privilege; grant it what 'edgeoutbox migrate' names"),
    ("22", ForbiddenByGuard, "the database does not take a value of the row"),
    ("23", ForbiddenByGuard, "a constraint refused the row"),
    ("44", ForbiddenByGuard, "a view refused the row"),
    ("54", ForbiddenByGuard, "a value of the row is too large or too deep for the server"),
    *((state, ForbiddenByGuard, "a trigger refused the row") for state in ("09", "27", "38", "39", "P0")),
)
"""A prefix of an SQLSTATE, what it is to us, and what to say; the first that fits.

What is `ForbiddenByGuard` is said of the row that was written, and would be said again. Nothing else is: whatever it
is, of a right, a table or a prepared statement, the same row may be taken later.
"""

_WHILE_CONNECTING: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"unsupported startup parameter", _STARTUP),
        (r"session is read-only|server is in hot standby mode", READ_ONLY),
        (r"database .* does not exist|no such database", _NO_DATABASE),
        (r"role .* does not exist|no such user", "the server has no such role; check the user of the url"),
        (r"is not permitted to log in|permission denied for", _NO_LOGIN),
        (r"password|pg_hba\.conf|authenticat", _LOGIN),
        (r"too many (clients|connections)|connection slots", "the server has no connection left for this role"),
        (r"starting up|shutting down|not yet accepting", _STARTING),
        (r"SSL|certificate", "the server's TLS is not what the url asks for; check sslmode and the certificates"),
        (r"invalid \S+ value|definition of service", _VALUE),
        (r"closed the connection|connection (is closed|not open|was closed)|terminat", _LOST),
        (r"refused|No such file|resolve|translate host|[Tt]imeout|timed out|o route|nreachable|reset", _AWAY),
    )
)
"""What libpq or the server says when there is no connection yet, and so no SQLSTATE; in English, that is. The first
that fits. The text itself is never shown: it names addresses."""

_NAMES = re.compile(r""""[^"]*"|'[^']*'""")
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
                "the database has no edgeoutbox tables in the url's ?schema=, or without one where search_path looks; "
                "make them with 'edgeoutbox migrate', or name the schema that they are in"
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
    if "DataError" in kinds:  # a NUL in a text, which is not even sent
        return ForbiddenByGuard(f"the database does not take a value of the row ({name})")
    if "another operation is in progress" in str(error):  # asyncpg's; psycopg waits for its turn
        return StorageError("the connection runs another statement of yours; await that one first")
    if kinds & {"OperationalError", "InterfaceError", "OSError"}:
        return DatabaseUnavailable(f"{_while_connecting(str(error))} ({name})")
    return StorageError(f"the database driver refused a statement ({name})")


def _while_connecting(said: str) -> str:
    words = _NAMES.sub("", said)
    return next((text for pattern, text in _WHILE_CONNECTING if pattern.search(words)), _ANY)


def _message(error: Exception) -> str:
    diagnosis = getattr(error, "diag", None)  # psycopg's; asyncpg's errors carry the fields themselves
    said = getattr(diagnosis, "message_primary", None) or getattr(error, "message", None) or ""
    return str(said)


def _constraint(error: Exception) -> str | None:
    found: str | None = getattr(getattr(error, "diag", error), "constraint_name", None)
    return found
