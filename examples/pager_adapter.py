"""A third party's adapter: pages whoever is on call. Its provider recognises a page that it was sent before."""

import asyncio
import json

from pydantic import BaseModel

from edgeoutbox import Adapter, Attempt, Defer, Done, Failed, Kind, Reread, Result, StopReason, one


class Page(BaseModel):
    """Who is paged, and why."""

    on_call: str
    text: str


class LinePagerAdapter(Adapter[Page]):
    """Sends each page as one line of JSON, with the action's key as the provider's token."""

    def __init__(self, host: str, port: int) -> None:
        self.kind = Kind("page", variants=one(Page), delivery="repeatable", lease=60, write_window=20)
        self._address = (host, port)

    async def execute(self, attempt: Attempt[Page]) -> Result:
        """Page once; a page whose answer was lost is sent again, with the same token."""
        try:
            reader, writer = await asyncio.open_connection(*self._address)
        except OSError:
            return Defer("the pager cannot be reached", scope="kind")
        try:
            await attempt.begin_write()
            page = {"token": attempt.action.idempotency_key, **attempt.payload.model_dump()}
            writer.write(json.dumps(page).encode() + b"\n")
            answer = await reader.readline()
        finally:  # also when the window ends: then the attempt is cancelled
            writer.transport.abort()
        if answer == b"nobody is on call\n":  # documented: it has not taken the page
            return Failed(StopReason.UNDELIVERABLE, "nobody is on call")
        return Done() if answer == b"taken\n" else Reread("the pager gave no answer that is documented")
