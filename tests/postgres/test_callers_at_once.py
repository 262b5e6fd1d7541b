"""Callers' transactions at once: one key, one lane, lanes in each order, and what the second of two is told."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import psycopg
import pytest

from edgeoutbox import Enqueued, LaneBusy, Outbox
from edgeoutbox.connections import ANYWHERE, run_async, run_sync
from edgeoutbox.errors import DatabaseBusy, TransactionConflict
from edgeoutbox.storage.statements import enqueueing
from edgeoutbox.storage.statements.lanes import Lanes
from edgeoutbox.testing.conformance.story import a_request
from tests.postgres.callers import BOTH_DRIVERS, SYNCHRONOUS, Open
from tests.postgres.database import PostgresDatabase
from tests.postgres.sessions import PATIENCE
from tests.postgres.world import World
from tests.storage.interfering import interfering

T = TypeVar("T")

TwoWorlds: TypeAlias = tuple[World, World]


@pytest.fixture(params=BOTH_DRIVERS)
async def two(
    request: pytest.FixtureRequest, outbox: Outbox, db: PostgresDatabase, shop: str
) -> AsyncIterator[TwoWorlds]:
    """Two connections of one library to one database."""
    opened: Open = BOTH_DRIVERS[request.param]
    async with opened(shop) as one, opened(shop) as another:
        yield World(outbox, one, db, shop), World(outbox, another, db, shop)


async def blocked(world: World, work: Awaitable[T]) -> "asyncio.Future[T]":
    """The work, once one session of the server waits for another."""
    task = asyncio.ensure_future(work)
    deadline = time.monotonic() + PATIENCE
    while not world.db.one(_WAITING):
        assert not task.done(), f"it did not wait, and came to {task.exception() or task.result()}"
        assert time.monotonic() < deadline, "it neither waits nor ends"
        await asyncio.sleep(0.01)
    return task


_WAITING = "SELECT COUNT(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"


def enqueueing_on(world: World, *requests: Any, **more: Any) -> Callable[[], Awaitable[list[Enqueued]]]:
    """An enqueue on a world's connection, to be begun."""

    async def enqueue() -> list[Enqueued]:
        if len(requests) > 1:
            return await world.outbox.enqueue_many(requests, connection=world.connection)
        return [await world.outbox.enqueue(requests[0], connection=world.connection, **more)]

    return enqueue


@pytest.mark.parametrize("lanes", [(None, None), ("lane", "lane"), ("lane", "other")], ids=["lone", "same", "other"])
async def test_p2_two_transactions_that_enqueue_one_key_get_one_action(
    two: TwoWorlds, lanes: tuple[str | None, str | None]
) -> None:
    """The second waits for the first's commit, and is answered with its action; nobody gets an error."""
    first, second = two
    await first.caller.begin()
    await second.caller.begin()
    [made] = await enqueueing_on(first, a_request("k", lanes[0]))()
    waiting = await blocked(second, enqueueing_on(second, a_request("k", lanes[1]))())
    await first.caller.commit()
    [found] = await waiting
    await second.caller.commit()
    assert (found.id, found.created, found.same_content) == (made.id, False, lanes[0] == lanes[1])
    assert first.committed() == {"k"}


@pytest.mark.parametrize("lane", [None, "lane"])
async def test_p2_the_second_takes_over_when_the_first_rolls_back(two: TwoWorlds, lane: str | None) -> None:
    """It waits for the rollback, and makes the action itself."""
    first, second = two
    await first.caller.begin()
    await second.caller.begin()
    await enqueueing_on(first, a_request("k", lane))()
    waiting = await blocked(second, enqueueing_on(second, a_request("k", lane))())
    await first.caller.rollback()
    [made] = await waiting
    await second.caller.commit()
    assert made.created
    assert first.db.one("SELECT id FROM agent_action WHERE is_head = 1") == made.id


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("keys", [("k", "k"), ("k", "another")], ids=["one key", "one lane"])
async def test_at_a_higher_isolation_level_the_second_is_told_to_run_again(
    two: TwoWorlds, isolation: str, keys: tuple[str, str]
) -> None:
    """Its snapshot is too old to see the first's action; run again it is answered, or stands behind it."""
    first, second = two
    for world in two:
        await world.caller.begin()
        await world.caller.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    await second.caller.execute("SELECT 1 FROM orders")
    [made] = await enqueueing_on(first, a_request(keys[0], "lane"))()
    waiting = await blocked(second, enqueueing_on(second, a_request(keys[1], "lane"))())
    await first.caller.commit()
    with pytest.raises(TransactionConflict, match=r"SQLSTATE (40001|23505)\): ROLLBACK, and run all of yours again"):
        await waiting
    await second.caller.rollback()
    await second.caller.begin()
    await second.caller.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    [again] = await enqueueing_on(second, a_request(keys[1], "lane"))()
    await second.caller.commit()
    assert (again.created, again.id == made.id) == ((False, True) if keys[0] == keys[1] else (True, False))
    assert first.db.heads("lane") == [made.id]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_at_a_higher_isolation_level_the_commit_refuses_to_end_the_head_of_a_lane(
    outbox: Outbox, db: PostgresDatabase, shop: str, isolation: str
) -> None:
    """It could not see who stands behind; the caller's own commit fails, says what to use, and nothing has changed."""
    head = db.insert("lane", payload='{"notice":"receipt"}')
    async with BOTH_DRIVERS["psycopg async"](shop) as caller:
        await caller.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        await outbox.enqueue(a_request("new", "lane"), connection=caller.connection, supersede=True)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="use READ COMMITTED"):
            await caller.commit()
    assert (db.state(head), db.one("SELECT COUNT(*) FROM agent_action")) == ("ADMITTED", 1)


async def test_many_lanes_are_locked_in_one_order(two: TwoWorlds) -> None:
    """Enqueues of many that name their lanes in opposite orders wait for one another, and never in a circle."""
    first, second = two
    await first.caller.begin()
    await second.caller.begin()
    await enqueueing_on(first, a_request("a1", "a"))()
    waiting = await blocked(second, enqueueing_on(second, a_request("b2", "b"), a_request("a2", "a"))())
    await asyncio.wait_for(enqueueing_on(first, a_request("b1", "b"), a_request("a3", "a"))(), PATIENCE)
    await first.caller.commit()
    await waiting
    await second.caller.commit()
    assert first.committed() == {"a1", "b1", "a3", "b2", "a2"}


async def test_two_that_take_lanes_in_opposite_orders_deadlock_and_one_is_told_so(two: TwoWorlds) -> None:
    """Postgres ends one of the two; it is told to run its transaction again, and the other one goes on."""
    first, second = two
    await first.caller.begin()
    await second.caller.begin()
    await enqueueing_on(first, a_request("a1", "a"))()
    await enqueueing_on(second, a_request("b2", "b"))()
    waiting = await blocked(second, enqueueing_on(second, a_request("a2", "a"))())
    ends = await asyncio.gather(enqueueing_on(first, a_request("b1", "b"))(), waiting, return_exceptions=True)
    [refused] = [end for end in ends if isinstance(end, BaseException)]
    assert isinstance(refused, TransactionConflict)
    assert "40P01" in str(refused)
    for world, end in zip(two, ends, strict=True):
        await (world.caller.rollback() if end is refused else world.caller.commit())
    assert first.committed() in ({"a1", "b1"}, {"b2", "a2"})


async def test_an_enqueue_that_waits_too_long_is_told_for_what(two: TwoWorlds) -> None:
    """The caller's own lock_timeout bounds the wait for another's transaction."""
    first, second = two
    await first.caller.begin()
    await second.caller.begin()
    await second.caller.execute("SET LOCAL lock_timeout = '50ms'")
    await enqueueing_on(first, a_request("a", "lane"))()
    with pytest.raises(DatabaseBusy, match=r"for too long \(SQLSTATE 55P03\); your transaction is aborted: ROLLBACK"):
        await enqueueing_on(second, a_request("b", "lane"))()
    await first.caller.rollback()
    await second.caller.rollback()


async def test_nothing_comes_into_a_lane_behind_the_back_of_who_supersedes(two: TwoWorlds) -> None:
    """It looks at the lane when it has it to itself: what another transaction was inserting is superseded too."""
    first, second = two
    await first.caller.begin()
    await second.caller.begin()
    [old] = await enqueueing_on(first, a_request("old", "lane"))()
    waiting = await blocked(second, enqueueing_on(second, a_request("new", "lane"), supersede=True)())
    await first.caller.commit()
    [new] = await waiting
    await second.caller.commit()
    assert (new.superseded, first.db.state(old.id)) == ((old.id,), "CANCELLED")
    assert first.db.heads("lane") == [new.id]


async def test_a_claim_that_is_under_way_is_waited_for_and_refused(two: TwoWorlds) -> None:
    """Who must not supersede what runs looks at the lane when the claim is over, and changes nothing."""
    first, second = two
    head = first.db.insert("lane", payload='{"notice":"receipt"}')
    behind = first.db.insert("lane", payload='{"notice":"receipt"}')
    first.db("BEGIN")
    first.db.claim(head)
    await second.caller.begin()
    with PostgresDatabase(first.db.conninfo) as watching:
        second.db = watching
        work = enqueueing_on(second, a_request("new", "lane"), supersede=True, if_running="refuse")
        waiting = await blocked(second, work())
        first.db("COMMIT")
        with pytest.raises(LaneBusy):
            await waiting
    await second.caller.commit()
    assert (first.db.state(head), first.db.state(behind)) == ("EXECUTING", "ADMITTED")


async def test_what_waits_in_a_lane_is_not_claimed_while_it_is_superseded(two: TwoWorlds) -> None:
    """Whoever claims passes over it."""
    first, _ = two
    first.db.insert("lane", payload='{"notice":"receipt"}')
    claimable: list[Any] = []
    steps = interfering(
        enqueueing.enqueue(a_request("new", "lane"), supersede=first.outbox.superseding(True, "enqueue")),
        enqueueing.IN_LANE,
        lambda: claimable.append(first.db("SELECT id FROM agent_action FOR UPDATE SKIP LOCKED")),
    )
    await first.caller.begin()
    await run_async(first.connection, steps, first.outbox.storage, Lanes(("lane",), supersedes=True))
    await first.caller.rollback()
    assert claimable == [[]]


@pytest.mark.parametrize("name", SYNCHRONOUS)
async def test_a_key_that_was_taken_and_is_free_again_is_enqueued(
    conninfo: str, db: PostgresDatabase, name: str
) -> None:
    """Whoever held it was erased before it could be looked at: the enqueue tries again."""
    db.insert(idempotency_key="k")
    steps = interfering(enqueueing.enqueue(a_request("k")), enqueueing.HOLDER, lambda: db("DELETE FROM agent_action"))
    async with SYNCHRONOUS[name](conninfo) as caller:
        await caller.begin()
        answer = run_sync(caller.connection, steps, ANYWHERE)
        await caller.commit()
    assert answer.created
    assert db.one("SELECT id FROM agent_action WHERE idempotency_key = 'k'") == answer.id
