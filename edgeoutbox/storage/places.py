"""A database as a place: its schema is made or brought up to date there, and actions are copied from it or to it."""

from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from edgeoutbox.storage import open_storage
from edgeoutbox.storage.copying import Destination, Source
from edgeoutbox.storage.protocol import Migrated
from edgeoutbox.storage.sqlite.backend import SqliteStorage


class Place(Source, Destination, Protocol):
    """A database whose schema is made, and whose actions are copied, while no storage of this process has it open."""

    @property
    def shown(self) -> str:
        """Where it is, without a secret."""

    @property
    def identity(self) -> Hashable:
        """What two places of one database have in common; known once it was opened."""

    def sql(self) -> str:
        """The statements that make the schema; they may be run again."""

    async def migrate(self) -> Migrated:
        """Bring the schema to this build's version in one transaction; makes the database where it is a file.

        Raises `SchemaTooNew`, or `NoSchema` when this role may not.
        """

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Connect, and disconnect in the end. Raises `NoSchema` or `SchemaTooNew`."""

    async def make_ready(self) -> None:
        """Make what only a destination needs.

        Raises `NotPossible` when this role may not put the guard aside, or its own actions were copied elsewhere.
        """


def place_of(url: str) -> Place:
    """The place of a URL, as `open_storage` reads it. Raises `ConfigurationError`. Nothing is opened yet."""
    storage = open_storage(url)
    if isinstance(storage, SqliteStorage):
        from edgeoutbox.storage.sqlite.copying import SqlitePlace  # noqa: PLC0415 - it imports what is above

        return SqlitePlace(storage)
    from edgeoutbox.storage.postgres.copying import PostgresPlace  # noqa: PLC0415 - its driver is an extra

    return PostgresPlace(url)
