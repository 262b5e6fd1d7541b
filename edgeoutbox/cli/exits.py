"""The exit codes, and which error ends with which."""

from enum import IntEnum

from edgeoutbox.errors import (
    ConfigurationError,
    DatabaseBusy,
    EdgeoutboxError,
    ForbiddenByGuard,
    InvalidRequest,
    StorageError,
)


class Exit(IntEnum):
    """What a command's exit code says."""

    OK = 0
    NOT_POSSIBLE = 1
    USAGE = 2
    DATABASE = 3
    HURRIED = 4


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.NOT_POSSIBLE: "no such action, not possible now, or a key with other content; doctor or demo found a fault; "
    "copy left something",
    Exit.USAGE: "wrong usage, payload or configuration; nothing was changed",
    Exit.DATABASE: "the database is missing, unreachable, locked, damaged or of a newer build",
    Exit.HURRIED: "run was stopped by a second signal, which cancelled attempts",
}
"""The table of `edgeoutbox --help` and of the documentation."""


def exit_of(error: EdgeoutboxError) -> Exit:
    """The exit code that an error ends a command with."""
    match error:
        case ConfigurationError() | InvalidRequest():
            return Exit.USAGE
        case ForbiddenByGuard():
            return Exit.NOT_POSSIBLE
        case StorageError():
            return Exit.DATABASE
        case _:
            return Exit.NOT_POSSIBLE


def message_of(error: EdgeoutboxError) -> str:
    """What an error says here: the library's own words, except where these speak of Python."""
    if isinstance(error, DatabaseBusy):
        return "the database is locked: another program holds what this needs; end its transaction and try again"
    return str(error)
