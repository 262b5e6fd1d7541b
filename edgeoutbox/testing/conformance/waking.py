"""mark and changed: notice that somebody committed."""

import asyncio

import pytest

from edgeoutbox.storage.protocol import Storage
from edgeoutbox.testing.conformance.backend import Backend
from edgeoutbox.testing.conformance.story import INSERT, Topic, enqueue


class Waking(Topic):
    """An executor need not be told, and need not ask all the time."""

    @pytest.mark.parametrize("who", ["another storage", "another program", "itself"])
    async def test_a_commit_ends_the_wait(self, storage: Storage, backend: Backend, who: str) -> None:
        """Whoever commits while somebody waits."""
        other = await backend.open()
        waiter = asyncio.create_task(storage.changed(storage.mark(), 20.0))
        await asyncio.sleep(0)
        match who:
            case "another storage":
                await enqueue(other)
            case "another program":
                await backend.sql(INSERT, "email", "k", "{}")
            case _:
                await enqueue(storage)
        assert await waiter is True

    async def test_a_commit_between_mark_and_wait_is_noticed_at_once(self, storage: Storage, backend: Backend) -> None:
        """Nothing that was committed after the mark is slept through."""
        mark = storage.mark()
        await backend.sql(INSERT, "email", "k", "{}")
        assert await storage.changed(mark, 0.0) is True

    async def test_without_a_commit_the_wait_times_out(self, storage: Storage) -> None:
        """Reads wake nobody."""
        mark = storage.mark()
        await storage.get(key="k")
        assert await storage.changed(mark, 0.02) is False
        assert storage.mark() == mark

    async def test_many_wait_at_the_same_time(self, storage: Storage, backend: Backend) -> None:
        """Each is woken, and one that is cancelled takes none of the others with it."""
        waiters = [asyncio.create_task(storage.changed(storage.mark(), 20.0)) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        await backend.sql(INSERT, "email", "k", "{}")
        assert await asyncio.gather(*waiters[1:]) == [True, True]
        with pytest.raises(asyncio.CancelledError):
            await waiters[0]
