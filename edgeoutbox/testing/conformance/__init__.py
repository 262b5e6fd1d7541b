"""The conformance suite: every promise of `edgeoutbox.storage.protocol.Storage`, as tests that a backend passes.

What is not tested here is not promised. A backend supplies an opener and a way to run plain SQL, and inherits the rest
(pytest with pytest-asyncio runs it, in strict or auto mode):

    class MyDatabase(Backend):
        def __init__(self, url: str) -> None:
            self.clock = MovableClock()
            self._url = url
            self._opened: list[Storage] = []

        async def open(self) -> Storage:
            storage = MyStorage(self._url, now=self.clock)      # the database's clock is the one that tests move
            await storage.open()
            self._opened.append(storage)
            return storage

        async def sql(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
            ...                                                 # one statement in its own transaction; ? is a parameter

        async def close(self) -> None:
            for storage in self._opened:
                await storage.close()


    class TestMyStorage(StorageConformance):
        @pytest_asyncio.fixture
        async def backend(self) -> AsyncIterator[Backend]:
            async with MyDatabase(fresh_empty_database()) as backend:
                yield backend

Every test gets a new, empty database. One difference between backends is theirs to have: how a caller's own connection
is used. Extend this suite first when the protocol learns something.
"""

import pytest

# Before the imports below, so that a failed assert of the suite shows its values.
for _topic in (
    "claiming", "deciding", "enqueueing", "fencing", "hooks", "kinds", "reading", "reaping", "settling", "story",
    "sweeping", "waking",
):  # fmt: skip
    pytest.register_assert_rewrite(f"{__name__}.{_topic}")

from edgeoutbox.testing.conformance.backend import Backend  # noqa: E402 - see above
from edgeoutbox.testing.conformance.suite import StorageConformance  # noqa: E402 - see above

__all__ = ["Backend", "StorageConformance"]
