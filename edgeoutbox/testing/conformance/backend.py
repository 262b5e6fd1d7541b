"""What a backend supplies to be tested."""

from abc import ABC, abstractmethod
from typing import Any, Self

from edgeoutbox.storage.protocol import Storage
from edgeoutbox.testing.clock import MovableClock


class Backend(ABC):
    """One empty database for one test. Used as a context manager, which closes it."""

    clock: MovableClock
    """Moves the time of the database, for every storage opened on it and for `sql`."""

    @abstractmethod
    async def open(self) -> Storage:
        """Open one more storage on the database, as another process would. `close` closes it."""

    @abstractmethod
    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own, as a program in another language would; `?` is a parameter."""

    @abstractmethod
    async def close(self) -> None:
        """Close every storage that was opened."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
