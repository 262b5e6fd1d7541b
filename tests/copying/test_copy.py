from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeoutbox import Executor, Outbox
from edgeoutbox.errors import NotPossible
from edgeoutbox.kinds import Delivery
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage import open_storage
from edgeoutbox.storage.statements.copying import Outcome
from edgeoutbox.storage.statements.kinds import HELD_BY
from edgeoutbox.testing import ScriptedAdapter, until
from edgeoutbox.testing.postgres import PostgresServer
from tests.copying.world import (
    Database,
    copied,
    declaration,
    enqueue,
    fill,
    lease_ends,
    make_database,
    taken,
)
from tests.postgres.database import PostgresDatabase

OPEN = {"PROPOSED", "ADMITTED", "EXECUTING"}


async def drained(database: Database, *kinds: str, **hooks: Any) -> ScriptedAdapter:
    """Run an executor of these kinds until it is idle; returns the adapter of the last."""
    adapters = [ScriptedAdapter(kind, **hooks) for kind in kinds]
    async with Outbox(database.url, adapters) as outbox:
        await Executor(outbox).run(until_idle=True)
    return adapters[-1]


async def test_everything_arrives_as_it_was(way: tuple[Database, Database]) -> None:
    """With `--all` every column but the ids is the same at the destination, and the guard stands as before."""
    source, destination = way
    await fill(source)
    before = source.contents()
    tally = await copied(source, destination, everything=True)
    assert (tally.copied, tally.present, tally.left) == (len(before), 0, [])
    assert destination.contents() == before
    assert source.contents() == before
    with pytest.raises(Exception, match="the lifecycle has no such step"):
        destination.sql("UPDATE agent_action SET state = 'DONE' WHERE idempotency_key = 'plain'")
    with pytest.raises(Exception, match=r"agent_action\.id is assigned by the database"):
        destination.sql("INSERT INTO agent_action (id, kind, idempotency_key, payload) VALUES (99, 'a', 'a', '{}')")


async def test_there_and_back_again(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """From SQLite to Postgres and back nothing is lost, and ids stay in their order."""
    source = make_database("sqlite", tmp_path, postgres_server, "source")
    middle = make_database("postgres", tmp_path, postgres_server, "middle", empty=True)
    end = make_database("sqlite", tmp_path, postgres_server, "end")
    await fill(source)
    await copied(source, middle, everything=True)
    await copied(middle, end, everything=True)
    assert end.contents() == source.contents()
    keys = "SELECT idempotency_key FROM agent_action ORDER BY id"
    assert end.column(keys) == source.column(keys)


async def test_what_has_ended_stays_unless_its_hook_is_owed(way: tuple[Database, Database]) -> None:
    """Without `--all` what is open goes over, and what ended but owes its hook."""
    source, destination = way
    await fill(source)
    await copied(source, destination)
    wanted = {key: value for key, value in source.contents().items() if value[0]["state"] in OPEN or value[2]}
    assert "done" in wanted
    assert destination.contents() == wanted


async def test_a_second_copy_finds_everything_there(way: tuple[Database, Database]) -> None:
    """A repeated copy changes nothing, and counts what it finds."""
    source, destination = way
    await fill(source)
    first = await copied(source, destination)
    there = destination.contents()
    second = await copied(source, destination)
    assert (second.copied, second.present, second.left) == (0, first.copied, [])
    assert destination.contents() == there


async def test_what_was_deleted_at_the_destination_does_not_come_back(pair: tuple[Database, Database]) -> None:
    """An action that was carried out and forgotten at the destination is not copied again, and so not sent again."""
    source, destination = pair
    storage = open_storage(source.url)
    await storage.open()
    await enqueue(storage, "once")
    await storage.forget("once")
    await storage.close()
    await copied(source, destination)
    assert (await drained(destination, "email")).writes == ["once"]
    assert destination.contents() == {}
    tally = await copied(source, destination)
    assert (tally.copied, tally.present) == (0, 1)
    assert (await drained(destination, "email")).writes == []


async def test_the_source_is_on_hold(way: tuple[Database, Database]) -> None:
    """An executor that is started at the source sends nothing, of no kind; the destination's does."""
    source, destination = way
    await fill(source)
    tally = await copied(source, destination)
    assert set(tally.paused) == set(source.column("SELECT kind FROM agent_action_kind"))
    paused = dict(source.sql("SELECT kind, paused_by FROM agent_action_kind"))
    assert paused["approved"].endswith("; before paused by anna")
    assert {by.startswith(f"{HELD_BY}{'sqlite' if destination.path else 'postgresql'}") for by in paused.values()} == {
        True
    }
    assert (await drained(source, "email", "unknown", "plain", "lost")).calls == []
    assert (await drained(source, "unknown")).writes == []
    assert (await drained(destination, "unknown")).writes == ["nobody declared it"]
    there = dict(destination.sql("SELECT kind, paused_by FROM agent_action_kind"))
    assert {kind: by for kind, by in there.items() if by} == {"approved": "anna"}


@pytest.mark.parametrize("kind", ["email", "approved"])
async def test_the_source_does_not_send_what_the_destination_sends(pair: tuple[Database, Database], kind: str) -> None:
    """Neither a resume, nor a pause and a resume, lets go what a copy holds; only who says that nothing went out."""
    source, destination = pair
    await fill(source)
    await copied(source, destination)
    async with Outbox(open_storage(source.url), [ScriptedAdapter(kind)]) as outbox:
        with pytest.raises(NotPossible, match="a second time"):
            await outbox.resume(kind)
        await outbox.pause(kind, "ben")
        with pytest.raises(NotPossible, match="a second time"):
            await outbox.resume(kind)
        await outbox.resume(kind, copied=True)
        assert (await outbox.kinds())[kind].paused_by is None


async def test_the_stricter_of_both_promises_holds(pair: tuple[Database, Database]) -> None:
    """A kind that both know keeps the stricter delivery and approval; one that nobody declared is at most once."""
    source, destination = pair
    for database, deliveries, approval in (
        (source, {"a": Delivery.REPEATABLE, "b": Delivery.AT_MOST_ONCE, "c": Delivery.REPEATABLE}, True),
        (destination, {"a": Delivery.READS_BACK, "b": Delivery.REPEATABLE}, False),
    ):
        storage = open_storage(database.url)
        await storage.open()
        await storage.declare_kinds(
            [
                declaration(kind, delivery, requires_approval=approval and kind == "a", retention_days=5 + approval)
                for kind, delivery in deliveries.items()
            ]
        )
        await enqueue(storage, f"d:{database.url}", kind="d")
        await storage.close()
    await copied(source, destination)
    found = destination.sql(
        "SELECT kind, delivery, requires_approval, retention_days FROM agent_action_kind ORDER BY 1"
    )
    assert found == [
        ("a", "reads_back", 1, 5),
        ("b", "at_most_once", 0, 5),
        ("c", "repeatable", 0, 6),
        ("d", "at_most_once", 0, 30),
    ]


async def test_actions_of_a_kind_that_only_the_destination_did_not_declare_stay_at_most_once(
    pair: tuple[Database, Database],
) -> None:
    """The source's looser promise does not reach back to what the destination held undeclared."""
    source, destination = pair
    storage = open_storage(source.url)
    await storage.open()
    await storage.declare_kinds([declaration("email", Delivery.REPEATABLE)])
    await storage.close()
    storage = open_storage(destination.url)
    await storage.open()
    await enqueue(storage, "theirs")
    await storage.close()
    await copied(source, destination)
    assert destination.column("SELECT delivery FROM agent_action_kind") == ["at_most_once"]


async def test_p08_what_was_fenced_at_the_source_is_never_sent(way: tuple[Database, Database]) -> None:
    """A fenced at-most-once action whose holder died ends UNCERTAIN at the destination, unsent; its lane goes on."""
    source, destination = way
    storage = open_storage(source.url)
    await storage.open()
    action = await enqueue(storage, "fenced", "lane")
    claim = await taken(storage, lease=300)
    await storage.begin_write(claim.id, claim.epoch, claim.owner, 1)
    await enqueue(storage, "next", "lane")
    await lease_ends(storage, action)
    await storage.close()
    await copied(source, destination)
    adapter = ScriptedAdapter("email")
    async with Outbox(destination.url, [adapter]) as outbox, Executor(outbox):
        [key] = destination.column("SELECT id FROM agent_action WHERE idempotency_key = 'next'")
        ended = await outbox.wait(key, timeout=20)
        fenced = await outbox.get(key="fenced")
    assert ended.state is State.DONE
    assert fenced is not None
    assert (fenced.state, fenced.stop_reason) == (State.UNCERTAIN, StopReason.LEASE_LOST_AFTER_WRITE)
    assert adapter.writes == ["next"]


async def test_a_lane_keeps_its_order(way: tuple[Database, Database]) -> None:
    """Fifty actions of a lane are carried out at the destination in the order of the source, behind what was there."""
    source, destination = way
    keys = [f"key {number * 37 % 50:02}" for number in range(50)]
    for database, wanted in ((source, keys), (destination, ["theirs"])):
        storage = open_storage(database.url)
        await storage.open()
        for number, key in enumerate(wanted):
            await enqueue(storage, key, "lane")
            await enqueue(storage, f"{key} between", f"other {number % 7}", kind="between")
        await storage.close()
    await copied(source, destination)
    assert destination.column("SELECT COUNT(*) FROM agent_action WHERE is_head = 1 AND lane_key = 'lane'") == [1]
    assert (await drained(destination, "email")).writes == ["theirs", *keys]


async def test_owed_hooks_run_at_the_destination(pair: tuple[Database, Database]) -> None:
    """A hook that the source owed runs at the destination, once."""
    source, destination = pair
    await fill(source)
    await copied(source, destination)
    heard = []

    class Hooked(ScriptedAdapter):
        async def ended(self, action: Any, _: Any) -> None:
            heard.append(action.idempotency_key)

    async with Outbox(destination.url, [Hooked("hooked")]) as outbox, Executor(outbox):
        await until(lambda: bool(heard))
    assert heard == ["done"]
    assert destination.sql("SELECT 1 FROM agent_action_ended") == []


async def test_executors_of_the_destination_run_meanwhile(
    pair: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a copy is under way the destination's executor takes what came, each action once and each lane in order."""
    source, destination = pair
    monkeypatch.setattr("edgeoutbox.storage.copying.BATCH", 7)
    storage = open_storage(source.url)
    await storage.open()
    for number in range(150):
        await enqueue(storage, f"{number:03}", f"lane {number % 4}")
    await storage.close()
    storage = open_storage(destination.url)
    await storage.open()
    await storage.close()
    adapter = ScriptedAdapter("email")
    async with Outbox(destination.url, [adapter]) as outbox, Executor(outbox):
        assert (await copied(source, destination)).copied == 150
        await until(lambda: len(adapter.writes) == 150, timeout=30)
    for lane in range(4):
        assert [key for key in adapter.writes if int(key) % 4 == lane] == [f"{at:03}" for at in range(lane, 150, 4)]


@pytest.mark.parametrize("other", ["kind", "payload"])
async def test_a_key_with_other_content_stays_and_holds_its_lane(pair: tuple[Database, Database], other: str) -> None:
    """An action whose key the destination knows otherwise stays at the source, with its lane; the rest goes over."""
    source, destination = pair
    for database in pair:
        storage = open_storage(database.url)
        await storage.open()
        ours = database is source
        if other == "payload" and not ours:
            destination.sql("INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', 'a', '{}')")
        else:
            await enqueue(storage, "a", "lane", kind="email" if ours or other == "payload" else "slack")
        if ours:
            await enqueue(storage, "b", "lane")
            await enqueue(storage, "c", "elsewhere")
        await storage.close()
    tally = await copied(source, destination)
    assert [left.outcome for left in tally.left] == [Outcome.OTHER, Outcome.BEHIND]
    assert (tally.copied, tally.present) == (1, 0)
    assert set(destination.contents()) == {"a", "c"}


async def test_an_executing_action_does_not_stand_behind_another(pair: tuple[Database, Database]) -> None:
    """One that had started stays while its lane is in use at the destination, and goes over when that has ended."""
    source, destination = pair
    storage = open_storage(source.url)
    await storage.open()
    action = await enqueue(storage, "started", "lane")
    await taken(storage, lease=100)
    await lease_ends(storage, action)
    await enqueue(storage, "next", "lane")
    await storage.close()
    storage = open_storage(destination.url)
    await storage.open()
    await enqueue(storage, "theirs", "lane")
    await storage.close()
    tally = await copied(source, destination)
    assert [left.outcome for left in tally.left] == [Outcome.LANE_BUSY, Outcome.BEHIND]
    assert (await drained(destination, "email")).writes == ["theirs"]
    assert (await copied(source, destination)).copied == 2
    assert (await drained(destination, "email")).writes == ["started", "next"]


@pytest.mark.parametrize(
    ("column", "value"),
    [("payload", '{"a": "\\u0000"}'), ("payload", '{"a": "\\ud800"}'), ("run_id", "a\0b"), ("run_id", b"\xff")],
)
async def test_what_postgres_cannot_store_stays(
    tmp_path: Path, postgres_server: PostgresServer, column: str, value: Any
) -> None:
    """A text that Postgres does not take stays at the source with what follows in its lane; the rest goes over."""
    source = make_database("sqlite", tmp_path, postgres_server, "source")
    destination = make_database("postgres", tmp_path, postgres_server, "destination", empty=True)
    storage = open_storage(source.url)
    await storage.open()
    for number in range(3):
        await enqueue(storage, f"before {number}", "elsewhere")
    fields = {"payload": "{}", "run_id": None, column: value}
    source.sql(
        "INSERT INTO agent_action (kind, idempotency_key, lane_key, payload, run_id) "
        "VALUES ('email', 'odd', 'lane', ?, CAST(? AS TEXT))",
        fields["payload"],
        fields["run_id"],
    )
    await enqueue(storage, "next", "lane")
    await enqueue(storage, "after")
    await storage.close()
    tally = await copied(source, destination)
    assert [left.outcome for left in tally.left] == [Outcome.UNFIT, Outcome.BEHIND]
    assert set(destination.contents()) == {"before 0", "before 1", "before 2", "after"}
    other = make_database("sqlite", tmp_path, postgres_server, "other")
    assert (await copied(source, other)).left == []


async def test_a_trigger_of_the_applications_own_stays(pair: tuple[Database, Database]) -> None:
    """The application's trigger sees what is copied, and what it refuses stays at the source."""
    source, destination = pair
    await fill(source)
    storage = open_storage(destination.url)
    await storage.open()
    await storage.close()
    if destination.path is not None:
        destination.sql(
            "CREATE TRIGGER app_refuses BEFORE INSERT ON agent_action WHEN NEW.idempotency_key = 'plain' "
            "BEGIN SELECT RAISE(ABORT, 'not here'); END"
        )
    else:
        destination.sql(
            "CREATE FUNCTION app_refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'not here' USING ERRCODE = '23514'; END $$"
        )
        destination.sql(
            "CREATE TRIGGER app_refuses BEFORE INSERT ON agent_action FOR EACH ROW "
            "WHEN (NEW.idempotency_key = 'plain') EXECUTE FUNCTION app_refuses()"
        )
    guards = destination.guards()
    tally = await copied(source, destination)
    [left] = tally.left
    assert (left.kind, left.outcome) == ("plain", Outcome.UNFIT)
    assert destination.guards() == guards


async def test_a_kind_that_comes_up_meanwhile_is_put_on_hold_too(
    way: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is enqueued during the copy goes over, and its kind is paused at the source before it does."""
    source, destination = way
    monkeypatch.setattr("edgeoutbox.storage.copying.BATCH", 1)
    storage = open_storage(source.url)
    await storage.open()
    await enqueue(storage, "first")
    await enqueue(storage, "second")
    await storage.close()
    waiting = ["a", "b", "c"]

    def enqueue_another() -> None:
        if waiting:
            key = waiting.pop()
            source.sql(
                "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES (?, ?, '{}')", f"new_{key}", key
            )

    tally = await copied(source, destination, meanwhile=enqueue_another)
    assert (tally.copied, tally.paused) == (5, ["email", "new_a", "new_b", "new_c"])
    assert set(destination.contents()) == {"first", "second", "a", "b", "c"}


async def test_what_is_committed_after_a_higher_id_goes_over(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """A producer of a Postgres source whose action is committed behind the copy's back is not overlooked."""
    source = make_database("postgres", tmp_path, postgres_server, "source")
    destination = make_database("sqlite", tmp_path, postgres_server, "destination")
    insert = "INSERT INTO agent_action (kind, idempotency_key, payload) VALUES ('email', ?, '{}')"
    source.sql(insert, "first")
    with PostgresDatabase(source.conninfo) as slow:

        def begin() -> None:
            slow("BEGIN")
            slow(insert, "slow")
            source.sql(insert, "quick")

        steps: list[Callable[[], object]] = [lambda: slow("COMMIT"), begin]

        def step() -> None:
            if steps:
                steps.pop()()

        tally = await copied(source, destination, meanwhile=step)
    assert (tally.copied, tally.present) == (3, 0)
    assert destination.column("SELECT idempotency_key FROM agent_action ORDER BY id") == ["first", "quick", "slow"]


async def test_what_somebody_executes_meanwhile_stays(pair: tuple[Database, Database]) -> None:
    """An action whose kind was resumed and that is executing when the copy comes to it is left, with its lane."""
    source, destination = pair
    storage = open_storage(source.url)
    await storage.open()
    await enqueue(storage, "resumed", "lane")
    await enqueue(storage, "next", "lane")
    await storage.close()

    def resume() -> None:
        source.sql(
            "UPDATE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'x', "
            "lease_expires_at = 9999999999999 WHERE idempotency_key = 'resumed' AND state = 'ADMITTED'"
        )

    tally = await copied(source, destination, meanwhile=resume)
    assert [left.outcome for left in tally.left] == [Outcome.EXECUTING, Outcome.BEHIND]
    assert destination.contents() == {}


async def test_a_long_copy_does_not_let_the_log_of_sqlite_grow(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination's write-ahead log is folded into its file on the way."""
    source = make_database("sqlite", tmp_path, postgres_server, "source")
    destination = make_database("sqlite", tmp_path, postgres_server, "destination")
    monkeypatch.setattr("edgeoutbox.storage.copying.BATCH", 10)
    monkeypatch.setattr("edgeoutbox.storage.sqlite.checkpoints.CHECKPOINT_AT", 100_000)
    storage = open_storage(source.url)
    await storage.open()
    for number in range(200):
        await enqueue(storage, f"{number}" + "x" * 400)
    await storage.close()
    sizes: list[int] = []
    log = tmp_path / "destination.db-wal"
    tally = await copied(source, destination, meanwhile=lambda: sizes.append(log.stat().st_size))
    assert tally.copied == 200
    assert max(sizes) < 300_000
