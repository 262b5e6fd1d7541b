"""What can go wrong, as one tree.

    EdgeoutboxError
    ├── InvalidRequest              refused at enqueue; nothing was stored
    │   └── InvalidPayload          the payload does not fit its kind
    ├── KeyOfAnotherKind            the idempotency key belongs to an action of another kind
    ├── NoSuchAction                no action has this id or key
    ├── NotPossible                 the action's state does not allow the step
    │   ├── ActionRunning           it is executing
    │   ├── LaneBusy                an action of the lane is executing
    │   ├── NotClaimable            it cannot be carried out now
    │   └── DigestMismatch          what would run is not what was approved
    ├── UnknownVariant              this build cannot decode the row
    │   └── UndecodableInLane       ... and it stands in the lane to be superseded
    ├── FenceRefused                the provider must not be called
    ├── SecondWrite                 an at-most-once attempt asked for a second fence
    ├── LooseningRefused            a kind's guarantee cannot be loosened now
    ├── HookError                   an ended hook did what it must not do
    ├── ConfigurationError          a setting is missing, unknown or wrong
    └── StorageError                the database
        ├── DatabaseBusy            locked by somebody else for too long
        │   └── TransactionConflict two transactions were in each other's way; run yours again
        ├── DatabaseUnavailable     full, read-only, failing or out of reach
        ├── ForbiddenByGuard        the database's guard, a trigger or a check refused the row
        ├── NoSchema                the database has no edgeoutbox tables
        ├── SchemaTooNew            a newer build owns the database
        ├── WrongDatabase           the connection has another database open
        ├── UnsupportedConnection   a connection of a kind that is not known
        ├── UnsupportedSqlite       this copy of SQLite is too old
        └── MixedSqliteCopies       two copies of SQLite in one process

Messages name actions by id and kind, never by payload, secret or address.
"""


class EdgeoutboxError(Exception):
    """The root of every error that this package raises on purpose."""


class InvalidRequest(EdgeoutboxError, ValueError):
    """The request breaks a rule; the message names the field, never its value."""


class InvalidPayload(InvalidRequest):
    """The payload does not fit its kind; the message names the field, never its value."""


class KeyOfAnotherKind(EdgeoutboxError):
    """The idempotency key is held by an action of another kind; choose keys that name their kind."""


class NoSuchAction(EdgeoutboxError, LookupError):
    """No action has this id or key: it never existed, was erased, or its retention passed."""


class NotPossible(EdgeoutboxError):
    """The action's state does not allow the step; nothing was changed."""


class ActionRunning(NotPossible):
    """The action is executing: its provider call may be under way; wait for it to end."""


class LaneBusy(NotPossible):
    """An action of the lane is executing, and the caller asked not to enqueue behind it."""


class NotClaimable(NotPossible):
    """The action cannot be carried out now; the message says what it waits for."""


class DigestMismatch(NotPossible):
    """The digest given to `admit` is not that of the stored payload; read it again before approving."""


class UnknownVariant(EdgeoutboxError):
    """This build cannot decode the row; a build that knows its kind and variant can."""


class UndecodableInLane(UnknownVariant):
    """The lane holds a row that this build cannot decode, so it must not be superseded here."""


class FenceRefused(EdgeoutboxError):
    """Another claim took the action, it was erased, it expired, or too little of its lease is left.

    The adapter must not call the provider. Let this error rise: it means `Abandoned`.
    """


class SecondWrite(EdgeoutboxError):
    """An attempt of an at-most-once kind asked for a second fence; one attempt makes one write."""


class LooseningRefused(EdgeoutboxError):
    """A kind cannot be loosened while one of its actions may already exist at the provider."""


class HookError(EdgeoutboxError):
    """An ended hook awaited something other than its transaction, or tried to end that transaction."""


class ConfigurationError(EdgeoutboxError, ValueError):
    """A setting is missing, unknown or wrong; the message names the setting, never a secret."""


class StorageError(EdgeoutboxError):
    """The database did not carry out the operation; it changed nothing."""


class DatabaseBusy(StorageError):
    """Somebody else held what this needs for too long: in SQLite the write lock, in Postgres a row or a lane."""


class TransactionConflict(DatabaseBusy):
    """Postgres ended your transaction in favour of another's; roll back, and run the whole of it again."""


class DatabaseUnavailable(StorageError):
    """The database is full, read-only, damaged, failing or out of reach; it can work again later."""


class ForbiddenByGuard(StorageError):
    """The database refused the row: a check or `guard_agent_action` trigger of the schema, or a trigger of your own.

    The same row is refused again.
    """


class NoSchema(StorageError):
    """The database has no edgeoutbox tables; open it with `Outbox` once, or apply `schema.sql`."""


class SchemaTooNew(StorageError):
    """A newer build migrated the database beyond what this build can read; upgrade this program."""


class WrongDatabase(StorageError):
    """The caller's connection has another database open than the outbox."""


class UnsupportedConnection(StorageError, TypeError):
    """The connection is of a library that is not known, or is a sync one where async is needed."""


class UnsupportedSqlite(StorageError):
    """This copy of SQLite is older than the schema needs."""


class MixedSqliteCopies(StorageError):
    """Two copies of SQLite would open one file in one process, which silently loses its locks."""
