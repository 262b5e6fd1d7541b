"""The tests of that adapter: with a fake of its provider it goes through the crash matrix."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from edgeoutbox import ActionRequest
from edgeoutbox.testing.crash import Crash
from pager_adapter import LinePagerAdapter


class FakePager:
    """Remembers every token. It may take a page and say nothing, as a provider does whose answer is lost."""

    def __init__(self) -> None:
        self.port = 0
        self.pages: dict[str, str] = {}
        self.holds = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one page."""
        line = await reader.readline()
        if line:
            page = json.loads(line)
            self.pages.setdefault(page["token"], page["text"])
            if self.holds:
                self.holds = False
                await reader.read()  # until whoever waits for the answer is gone
            writer.write(b"taken\n")
        writer.close()

    def hold(self) -> None:
        """Take the next page without an answer."""
        self.holds = True


@asynccontextmanager
async def a_pager() -> AsyncIterator[FakePager]:
    """A pager on this machine."""
    pager = FakePager()
    async with await asyncio.start_server(pager.serve, "127.0.0.1", 0) as server:
        pager.port = server.sockets[0].getsockname()[1]
        yield pager


def a_page(key: str) -> ActionRequest:
    """A request of the adapter's kind."""
    return ActionRequest(kind="page", idempotency_key=key, payload={"on_call": "anna", "text": "the disk is full"})


@pytest.mark.asyncio
@pytest.mark.crash_matrix
async def test_a_page_survives_every_crash(crash: Crash) -> None:
    """Killed anywhere and started again, the page is sent, and counts once."""
    async with a_pager() as pager:

        def effects(key: str) -> int:
            return int(key in pager.pages)

        await crash(LinePagerAdapter, "127.0.0.1", pager.port, request=a_page, effects=effects, hold=pager.hold)
