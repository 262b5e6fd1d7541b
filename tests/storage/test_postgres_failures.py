"""Postgres on bad days: answers that are lost, a server that goes away, locks of others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from edgeoutbox.errors import DatabaseBusy, DatabaseUnavailable
from edgeoutbox.storage.postgres import committer
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.copying import PostgresPlace
from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.storage.protocol import Claim, Fence
from edgeoutbox.testing import until
from edgeoutbox.testing.conformance.story import (
    DONE,
    WINDOW,
    a_request,
    claim,
    enqueue,
    read,
    served,
    started,
)
from edgeoutbox.testing.postgres import PostgresServer, as_url, unavailable


@pytest.fixture
async def cable(conninfo: str, tmp_path: Path) -> AsyncIterator["Cable"]:
    """What lies between the storage and the server."""
    given = conninfo_to_dict(conninfo)
    opened = Cable(f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}")
    server = await asyncio.start_unix_server(opened.connected, tmp_path / ".s.PGSQL.5432")
    yield opened
    server.close()
    await opened.close()


@pytest.fixture
async def storage(conninfo: str, cable: "Cable", tmp_path: Path) -> AsyncIterator[PostgresStorage]:
    """A storage whose connections can be cut."""
    assert not cable.broken
    opened = PostgresStorage(as_url(make_conninfo(conninfo, host=str(tmp_path), port=5432)))
    await opened.open()
    yield opened
    await opened.close()


class Cable:
    """Passes bytes on, until it is told to cut a connection when a COMMIT comes by."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._ends: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.at_commit: str | None = None
        """How to cut. `before` the server has a COMMIT, or `behind` it: the server commits, and its answer is lost.

        Or let it be `stuck`: it never arrives, and the server does not know that anything is amiss.
        """
        self.cuts = 0
        self.broken = False
        """Whether new connections are refused."""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody connects."""
        if self.broken:
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._server)
        self._ends += [writer, server_writer]
        cut = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await asyncio.gather(
            self._pass(reader, server_writer, writer, cut), self._back(server_reader, writer, server_writer, cut)
        )

    async def _pass(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, client: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            if self.at_commit and b"COMMIT\0" in data:
                when, self.at_commit = self.at_commit, None
                self.cuts += 1
                cut.set()
                if when == "behind":
                    to.write(data)
                    await to.drain()
                elif when == "before":
                    to.close()
                client.close()
                return
            to.write(data)
            await to.drain()
        to.close()

    async def _back(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, server: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            if cut.is_set():
                server.close()
                return
            to.write(data)
        to.close()

    def cut_all(self) -> None:
        """Cut every connection there is."""
        ends, self._ends = self._ends, []
        for end in ends:
            end.close()

    async def close(self) -> None:
        """Cut what is left."""
        self.cut_all()
        if self._tasks:
            await asyncio.wait(self._tasks)


@pytest.mark.parametrize("when", ["before", "behind"])
async def test_p9_a_commit_whose_answer_is_lost_is_looked_up(storage: PostgresStorage, cable: Cable, when: str) -> None:
    """Whatever became of it, the caller gets the answer of one commit, and nothing is done twice."""
    held = await started(storage)
    cable.at_commit = when
    fence = await storage.begin_write(held.id, held.epoch, held.owner, WINDOW)
    assert isinstance(fence, Fence)
    assert (await read(storage, held.id)).write_started_at == fence.written_at
    cable.at_commit = when
    assert await storage.settle(held, DONE) is True
    [log] = await storage.attempts(held.id)
    assert (log.recorded, log.result) == (True, "Done")
    cable.at_commit = when
    [answer] = await storage.enqueue([a_request("next")])
    assert answer.created
    assert cable.cuts == 3


async def test_p9_a_settlement_of_unknown_outcome_is_recognised_when_it_is_repeated(
    storage: PostgresStorage, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server cannot be asked the caller is told so; its repeat is told that it was this very settlement."""
    monkeypatch.setattr(committer, "FATE_WITHIN", 0.1)
    held = await started(storage)
    cable.at_commit = "behind"
    cable.broken = True
    with pytest.raises(DatabaseUnavailable, match="does not say what became of it"):
        await storage.settle(held, DONE)
    cable.broken = False
    assert await storage.settle(held, DONE) is True
    assert await storage.settle(held, DONE) is False


async def test_p10_a_claim_of_unknown_outcome_is_let_go(
    storage: PostgresStorage, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner runs none of it and lives on: what it may hold can be claimed again when the lease is over."""
    monkeypatch.setattr(committer, "FATE_WITHIN", 0.1)
    await enqueue(storage, "first")
    cable.at_commit = "behind"
    cable.broken = True
    with pytest.raises(DatabaseUnavailable, match="does not say what became of it"):
        await storage.claim([served(lease=100)], 1, "one")
    cable.broken = False
    again: list[Claim] = []
    async with asyncio.timeout(10.0):
        while not again:
            again = list(await storage.claim([served(lease=100)], 1, "one"))
    assert (again[0].epoch, again[0].action.idempotency_key) == (2, "first")


async def test_p7_an_id_that_a_crash_gave_to_another_proves_nothing(tmp_path: Path) -> None:
    """A transaction that a crash of the server took away leaves its id to the next, whose commit is not its own."""
    why = unavailable()
    if why is not None:
        pytest.skip(why)
    with PostgresServer() as server:
        if not server.private:
            pytest.skip("the server is another's, which is not ours to crash")
        conninfo = server.fresh_schema(schema_sql())
        cable = Cable(f"{conninfo_to_dict(conninfo)['host']}/.s.PGSQL.5432")
        listening = await asyncio.start_unix_server(cable.connected, tmp_path / ".s.PGSQL.5432")
        storage = PostgresStorage(as_url(make_conninfo(conninfo, host=str(tmp_path))))
        await storage.open()
        held = await started(storage)
        with server.connect() as administrator:
            administrator.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            administrator.execute("SELECT pg_reload_conf()")
        cable.at_commit = "stuck"
        cable.broken = True
        fencing = asyncio.create_task(storage.begin_write(held.id, held.epoch, held.owner, WINDOW))
        await until(lambda: cable.cuts == 1)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        with server.connect(conninfo) as other:
            for key in ("one", "two"):
                other.execute(
                    "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', %s, '{}')", (key,)
                )
        cable.broken = False
        with pytest.raises(DatabaseUnavailable, match="does not say what became of it"):
            await fencing
        assert (await read(storage, held.id)).write_started_at is None
        await storage.close()
        listening.close()
        await cable.close()


async def test_p7_in_which_of_its_lives_the_server_tells_a_fate_is_asked_with_it(
    storage: PostgresStorage, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection to a pooler survives a crash of the server: what it was told when it was made is of no use."""
    monkeypatch.setattr(committer, "FATE", "SELECT pg_xact_status(CAST(CAST(? AS text) AS xid8)), 'a later life'")
    cable.at_commit = "behind"
    with pytest.raises(DatabaseUnavailable, match="does not say what became of it"):
        await enqueue(storage, "first")
    assert cable.cuts == 1


async def test_a_storage_recovers_when_the_server_can_be_reached_again(storage: PostgresStorage, cable: Cable) -> None:
    """Every call says that the server is away, and the first one after that works, also on connections that died."""
    await enqueue(storage, "first")
    cable.broken = True
    cable.cut_all()
    for operation in (
        storage.enqueue([a_request("second")]),
        storage.get(key="first"),
        storage.now(),
        storage.declare_kinds([]),
        storage.sweep(["email"]),
    ):
        with pytest.raises(DatabaseUnavailable):
            await operation
    cable.broken = False
    await enqueue(storage, "second")
    await asyncio.gather(*(storage.now() for _ in range(6)))
    cable.cut_all()
    assert (await storage.get(key="second")) is not None
    cable.cut_all()
    assert len(await storage.claim([], 1, "one")) == 0
    await enqueue(storage, "third")


async def test_a_lost_listener_is_replaced_and_misses_nothing(
    storage: PostgresStorage, cable: Cable, conninfo: str
) -> None:
    """While nobody listens `changed` polls; afterwards another program's commit is heard at once."""
    cable.cut_all()
    cable.broken = True
    async with asyncio.timeout(10.0):
        await until(lambda: not storage._watch.listening)
        mark = storage.mark()
        assert await storage.changed(mark, 5.0) is True
        cable.broken = False
        while not storage._watch.listening:
            await storage.changed(storage.mark(), 0.05)
        mark = storage.mark()
        with psycopg.connect(conninfo, autocommit=True) as other:
            other.execute("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'k', '{}')")
        loop = asyncio.get_running_loop()
        asked = loop.time()
        assert await storage.changed(mark, 4.0) is True
        assert loop.time() - asked < 2.0


@pytest.fixture
def application(conninfo: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Another program's connection."""
    with psycopg.connect(conninfo) as connection:
        yield connection
        connection.rollback()


async def test_p14_a_row_that_an_application_holds_delays_nobody_elses(
    storage: PostgresStorage, application: psycopg.Connection[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch gives way; others of it are answered at once, and who wants the row is told in the end."""
    monkeypatch.setattr(committer, "YIELDING", 20)
    monkeypatch.setattr(committer, "PATIENT", 200)
    held = [await started(storage, f"k{n}") for n in range(3)]
    application.execute("SELECT 1 FROM agent_action WHERE id = %s FOR UPDATE", (held[0].id,))
    settling = [asyncio.create_task(storage.settle(one, DONE)) for one in held]
    assert await asyncio.gather(*settling[1:]) == [True, True]
    assert not settling[0].done()
    with pytest.raises(DatabaseBusy):
        await settling[0]
    application.rollback()
    assert await storage.settle(held[0], DONE) is True


async def test_p14_of_two_that_wait_for_each_other_it_is_ours_that_gives_way(
    storage: PostgresStorage, application: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """An application that holds one row and wants another gets it, without a deadlock; then we get both."""
    held = [await started(storage, f"k{n}") for n in range(2)]
    application.execute("SELECT 1 FROM agent_action WHERE id = %s FOR UPDATE", (held[1].id,))
    settling = asyncio.gather(*(storage.settle(one, DONE) for one in held))
    while not await asyncio.to_thread(_waits, application):
        assert not settling.done()
    await asyncio.to_thread(application.execute, "SELECT 1 FROM agent_action WHERE id = %s FOR UPDATE", (held[0].id,))
    application.commit()
    assert await settling == [True, True]


def _waits(application: psycopg.Connection[tuple[Any, ...]]) -> bool:
    sql = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
    return bool(application.execute(sql.encode()).fetchall()[0][0])


@pytest.mark.parametrize(
    ("prefers", "holds"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
async def test_p7_a_fence_is_durable_whatever_the_server_prefers(conninfo: str, prefers: str, holds: str) -> None:
    """The commit that carries a fence waits for the disks although synchronous_commit would not."""
    lazy = make_conninfo(conninfo, options=f"{conninfo_to_dict(conninfo)['options']} -c synchronous_commit={prefers}")
    storage = PostgresStorage(as_url(lazy))
    await storage.open()
    try:
        async with storage._sessions.session() as session:
            assert await session.execute("SHOW synchronous_commit") == [(prefers,)]
        seen: list[Any] = []
        held = await started(storage)

        def look() -> Any:
            seen.extend((yield "SELECT current_setting('synchronous_commit')", ()))

        await asyncio.gather(
            storage._executing.submit(look), storage.begin_write(held.id, held.epoch, held.owner, WINDOW)
        )
        assert seen == [(holds,)]
        place = PostgresPlace(as_url(lazy))
        async with place.opened():
            assert await place._write((), lambda session: session.execute("SHOW synchronous_commit")) == [(holds,)]
    finally:
        await storage.close()


async def test_a_server_that_restarts_costs_no_certainty() -> None:
    """What was answered is there after a crash of the server, and the storage works on without being opened again."""
    why = unavailable()
    if why is not None:
        pytest.skip(why)
    with PostgresServer() as server:
        if not server.private:
            pytest.skip("the server is another's, which is not ours to crash")
        storage = PostgresStorage(as_url(server.fresh_schema()))
        await storage.open()
        held = await started(storage)
        fence = await storage.begin_write(held.id, held.epoch, held.owner, WINDOW)
        await asyncio.to_thread(server.kill)
        with pytest.raises(DatabaseUnavailable):
            await storage.settle(held, DONE)
        await asyncio.to_thread(server.start)
        assert isinstance(fence, Fence)
        assert (await read(storage, held.id)).write_started_at == fence.written_at
        assert await storage.settle(held, DONE) is True
        await enqueue(storage, "next")
        assert (await claim(storage)).action.idempotency_key == "next"
        await storage.close()
