"""A connection that a test listens to, and can make fail: the statements of the writer, in their order."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from edgeoutbox.storage.sqlite.drivers import Copy, Driver, OnConnect, Reader
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.steps import Row
from tests.storage.passing import Passing


class Tapped(Passing):
    """Passes every statement on. `fails` maps the first word of a statement to what is raised instead, once each."""

    def __init__(self, inner: Connection, heard: list[str], fails: dict[str, list[Exception]]) -> None:
        super().__init__(inner)
        self._heard = heard
        self._fails = fails

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Note the statement and run it, or fail."""
        word = sql.split(maxsplit=1)[0].upper()
        self._heard.append(word)
        if self._fails.get(word):
            raise self._fails[word].pop(0)
        return super().execute(sql, parameters)


class TappedDriver:
    """A driver whose connections are tapped; the reader is not."""

    def __init__(self, inner: Driver) -> None:
        self.inner = inner
        self.copy: Copy = inner.copy
        self.heard: list[str] = []
        self.fails: dict[str, list[Exception]] = {}
        self.as_version: tuple[int, ...] | None = None

    def version(self) -> tuple[int, ...]:
        """The version of the copy, or what a test says."""
        return self.as_version or self.inner.version()

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
        """Open a tapped connection."""
        return Tapped(self.inner.open(path, busy_timeout, on_connect), self.heard, self.fails)

    async def reader(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Reader:
        """Open a connection that reads."""
        return await self.inner.reader(path, busy_timeout, on_connect)

    def counts(self) -> Counter[str]:
        """How often each kind of statement was heard, and forget them."""
        counted = Counter(self.heard)
        self.heard.clear()
        return counted
