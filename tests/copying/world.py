"""Two databases, and everything that an action can be in the first."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from edgeoutbox.kinds import Delivery
from edgeoutbox.model import ActionRequest
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.copying import Tally, copy
from edgeoutbox.storage.places import place_of
from edgeoutbox.storage.postgres.schema import schema_sql
from edgeoutbox.storage.postgres.spelling import positional
from edgeoutbox.storage.protocol import Claim, Decision, Fence, KindDeclaration, Served, Settlement, Storage
from edgeoutbox.storage.sqlite.drivers import ApswDriver, StdlibDriver
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.copying import ACTION, ATTEMPT, OWED
from edgeoutbox.storage.statements.kinds import HELD_BY
from edgeoutbox.testing import until
from edgeoutbox.testing.postgres import PostgresServer, as_url
from edgeoutbox.variants import ALWAYS


@dataclass(frozen=True)
class Database:
    """A database of either kind, with plain SQL beside it."""

    url: str
    path: Path | None = None
    conninfo: str = ""

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement by another program."""
        if self.path is not None:
            with contextlib.closing(self._file()) as file:
                return file.execute(statement, parameters)
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.adapters.register_loader("json", TextLoader)
            cursor = connection.execute(positional(statement).encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def _file(self) -> Connection:
        """The file through the copy of SQLite that the outbox uses: this process may have it open."""
        driver = ApswDriver() if self.url.startswith("sqlite+apsw") else StdlibDriver()
        return driver.open(str(self.path), 10_000, None)

    def column(self, statement: str, *parameters: Any) -> list[Any]:
        """The first column of a query."""
        return [row[0] for row in self.sql(statement, *parameters)]

    def contents(self, *, heads: bool = True) -> dict[str, Any]:
        """Every action by its key: its columns, its dispatch log, the hook that it is owed; no id."""
        found: dict[str, Any] = {}
        listed = ", ".join((*ACTION, "is_head"))
        for action_id, *values in self.sql(f"SELECT id, {listed} FROM agent_action ORDER BY id"):
            columns = dict(zip((*ACTION, "is_head"), values, strict=True))
            if not heads:
                del columns["is_head"]
            log = self.sql(
                f"SELECT {', '.join(ATTEMPT)} FROM agent_action_attempt WHERE action_id = ? ORDER BY epoch", action_id
            )
            owed = self.sql(f"SELECT {', '.join(OWED)} FROM agent_action_ended WHERE action_id = ?", action_id)
            found[columns["idempotency_key"]] = columns, log, owed
        return found

    def guards(self) -> list[tuple[Any, ...]]:
        """The triggers of the tables as they are in force."""
        if self.path is not None:
            return sorted(self.sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
        return sorted(
            self.sql(
                "SELECT tgname::text, tgenabled::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
                "WHERE relnamespace = current_schema()::regnamespace AND relname LIKE 'agent_action%'"
            )
        )


def make_database(kind: str, folder: Path, server: PostgresServer, name: str, *, empty: bool = False) -> Database:
    """A new database of this kind."""
    if kind == "postgres":
        conninfo = server.fresh_schema("" if empty else schema_sql())
        return Database(as_url(conninfo), conninfo=conninfo)
    path = folder / f"{name}.db"
    return Database(f"{kind}:///{path}", path=path)


async def copied(
    source: Database,
    destination: Database,
    *,
    everything: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> Tally:
    """Copy, as the command does it; `meanwhile` is called when the source is on hold, and after each batch."""
    here, there = place_of(source.url), place_of(destination.url)
    await there.migrate()
    async with here.opened(), there.opened():
        await there.make_ready()
        async for tally in copy(here, there, HELD_BY + there.shown, everything=everything):
            last = tally
            meanwhile()
    return last


def a_request(key: str, lane: str | None = None, *, kind: str = "email", **fields: Any) -> ActionRequest:
    """A request with a payload of its own."""
    return ActionRequest(
        kind=kind, idempotency_key=key, lane_key=lane, payload={"key": key, "text": "größer > ☃", "n": 1.5}, **fields
    )


def declaration(kind: str, delivery: Delivery = Delivery.AT_MOST_ONCE, **more: Any) -> KindDeclaration:
    """A kind as a process declares it."""
    usual = {"instance_level": False, "requires_approval": False, "retention_days": 30, "has_ended_hook": False}
    return KindDeclaration(kind, delivery, **{**usual, **more})


async def taken(storage: Storage, kind: str = "email", *, lease: int = 60_000) -> Claim:
    """Claim the one action of the kind that can be claimed."""
    [claim] = await storage.claim([Served(kind, ALWAYS, lease, 5, 10)], 10, "died")
    return claim


async def lease_ends(storage: Storage, action_id: int) -> None:
    """Wait until nobody holds the action any more."""
    action = await storage.get(action_id=action_id)
    assert action is not None
    assert action.lease_expires_at is not None
    while await storage.now() <= action.lease_expires_at:
        await until(lambda: True)


async def enqueue(storage: Storage, key: str, lane: str | None = None, *, proposed: bool = False, **fields: Any) -> int:
    """Enqueue or propose one action."""
    [answer] = await storage.enqueue([a_request(key, lane, **fields)], proposed=proposed)
    return answer.id


async def fill(database: Database) -> None:
    """Put in one action of everything that there is, each of a story that programs can bring about."""
    storage = open_storage(database.url)
    await storage.open()
    try:
        await storage.declare_kinds(
            [
                declaration("email", retention_days=7),
                declaration("hooked", Delivery.REPEATABLE, has_ended_hook=True),
                declaration("approved", Delivery.READS_BACK, requires_approval=True),
            ]
        )
        await _ended(storage)
        await _executing(storage)
        later = await storage.now() + 3_600_000
        await enqueue(
            storage,
            "full",
            "lane",
            run_id="run",
            subject_account_id="jane",
            max_attempts=3,
            due_at=later,
            expires_at=later + 1,
            trace_parent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        await enqueue(storage, "behind", "lane")
        await enqueue(storage, "forgotten", "lane")
        await storage.forget("forgotten")
        await enqueue(storage, "proposed", "other", kind="approved", proposed=True)
        await enqueue(storage, "behind a proposal", "other", kind="approved", proposed=True)
        admitted = await enqueue(storage, "admitted by anna", kind="approved", proposed=True)
        await storage.decide(admitted, Decision("admit", "anna", "fine", a_request("admitted by anna").payload_digest))
        await enqueue(storage, "nobody declared it", kind="unknown")
        await storage.pause("approved", "anna")
    finally:
        await storage.close()
    raw = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('plain', 'plain', '{ \"a\" : 1 }')"
    database.sql(raw)


async def _ended(storage: Storage) -> None:
    for key, kind, settlement in (
        ("done", "hooked", Settlement(State.DONE, "Done", StopReason.CONFIRMED, evidence='{"id": "x"}')),
        ("failed", "email", Settlement(State.FAILED, "Rejected", StopReason.REJECTED, reason="550")),
        ("uncertain", "email", Settlement(State.UNCERTAIN, "Uncertain", StopReason.NO_CONFIRMATION, readback_ref="r")),
    ):
        await enqueue(storage, key, "ended", kind=kind)
        claim = await taken(storage, kind)
        assert isinstance(await storage.begin_write(claim.id, claim.epoch, claim.owner, 1), Fence)
        assert await storage.settle(claim, settlement)
    withdrawn = await enqueue(storage, "withdrawn")
    await storage.decide(withdrawn, Decision("withdraw", by="anna"))


async def _executing(storage: Storage) -> None:
    await enqueue(storage, "retried", "retried")
    claim = await taken(storage)
    again = Settlement(State.ADMITTED, "Retry", wait=3_600_000, clears_fence=True, reason="421")
    assert await storage.settle(claim, again)
    await enqueue(storage, "reread", kind="reread")
    await storage.settle(await taken(storage, "reread"), Settlement(State.EXECUTING, "Reread", wait=3_600_000))
    for key, fenced in (("lost", False), ("fenced", True)):
        await enqueue(storage, key, key, kind=key)
        claim = await taken(storage, key, lease=300)
        if fenced:
            assert isinstance(await storage.begin_write(claim.id, claim.epoch, claim.owner, 1), Fence)
        await lease_ends(storage, claim.id)
