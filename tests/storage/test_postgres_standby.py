"""A server that takes no writes for a while: it is a standby, until it is promoted."""

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from edgeoutbox import Executor, Outbox
from edgeoutbox.cli.exits import Exit
from edgeoutbox.errors import DatabaseUnavailable
from edgeoutbox.storage.places import place_of
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.testing import ScriptedAdapter, Step, until
from edgeoutbox.testing.conformance.story import DONE, WINDOW, a_request, read, started
from edgeoutbox.testing.postgres import PostgresServer, as_url, unavailable
from tests.cli.conftest import terminal
from tests.cli.terminal import Terminal
from tests.executor.world import ended, outcome, request

__all__ = ["terminal"]

READ_ONLY = "the server takes no writes: it is a standby"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that is ours to stop and start."""
    why = unavailable()
    if why is not None:
        pytest.skip(why)
    with PostgresServer(fsync=False) as opened:
        if not opened.private:
            pytest.skip("the server is another's, which is not ours to demote")
        yield opened


async def demote(server: PostgresServer) -> None:
    """Let the server come back as a standby of nobody."""
    await asyncio.to_thread(server.stop)
    signal = server._data / "standby.signal"
    signal.touch()
    if server._as:
        os.chown(signal, server._as["user"], server._as["group"])
    await asyncio.to_thread(server.start)


def promote(server: PostgresServer) -> None:
    """Let it take writes again; returns once it does."""
    with server.connect() as administrator:
        administrator.execute("SELECT pg_promote()")


async def test_p9_what_was_confirmed_while_the_server_is_a_standby_is_recorded_once_it_is_none(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The executor says that the database cannot be used, asks on, and gives up nothing."""
    adapter, confirms = ScriptedAdapter(), asyncio.Event()
    adapter.on("a", Step(gate=confirms))
    async with Outbox(as_url(server.fresh_schema()), [adapter]) as outbox, Executor(outbox):
        settle = outbox.storage.settle
        refusals: list[str] = []

        async def heard(*given: Any) -> bool:
            try:
                return await settle(*given)
            except Exception as error:
                refusals.append(str(error))
                raise

        monkeypatch.setattr(outbox.storage, "settle", heard)
        asked = await outbox.enqueue(request())
        async with asyncio.timeout(60):
            await until(lambda: bool(adapter.writes))
            await demote(server)
            confirms.set()
            await until(lambda: any(READ_ONLY in refusal for refusal in refusals))
            await asyncio.to_thread(promote, server)
            assert outcome(await ended(outbox, asked.id)) == ("DONE", "CONFIRMED")
    assert "storage.unavailable" in caplog.text
    assert "action.settle" not in caplog.text


async def test_a_standby_says_what_it_is_whatever_is_asked_of_it(
    server: PostgresServer,
    terminal: Terminal,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each write says so, reads work, and neither a new schema nor a copy is tried; `doctor` is not content."""
    caplog.set_level(logging.ERROR)
    url = as_url(server.fresh_schema())
    storage = PostgresStorage(url)
    await storage.open()
    try:
        held = await started(storage)
        await demote(server)
        for write in (
            storage.settle(held, DONE),
            storage.begin_write(held.id, held.epoch, held.owner, WINDOW),
            storage.let_go(held, DONE),
            storage.enqueue([a_request("next")]),
            storage.sweep(["email"]),
            place_of(f"{url}&schema=new").migrate(),
        ):
            with pytest.raises(DatabaseUnavailable, match=READ_ONLY):
                await write
        assert (await read(storage, held.id)).epoch == held.epoch
        enqueue = await asyncio.to_thread(terminal.process, "enqueue", "email", "k", "{}", "--database", url)
        assert (enqueue.returncode, READ_ONLY in enqueue.stderr) == (Exit.DATABASE, True)
        doctor = await asyncio.to_thread(terminal.process, "doctor", "--json", "--database", url)
        [check] = [check for check in json.loads(doctor.stdout)["checks"] if check["name"] == "postgres"]
        assert (doctor.returncode, check["ok"]) == (Exit.NOT_POSSIBLE, False)
        assert READ_ONLY in check["detail"]
        promote(server)
        assert await storage.settle(held, DONE) is True
    finally:
        await storage.close()
