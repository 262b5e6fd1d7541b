"""What goes together in one transaction on Postgres, and what must not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from edgeoutbox.errors import ForbiddenByGuard
from edgeoutbox.keys import canonical_json
from edgeoutbox.storage.postgres import committer
from edgeoutbox.storage.postgres.backend import PostgresStorage
from edgeoutbox.storage.postgres.committer import Committer, Operation
from edgeoutbox.storage.postgres.spelling import is_several, positional
from edgeoutbox.storage.protocol import Refusal
from edgeoutbox.testing.conformance.story import (
    DONE,
    WINDOW,
    a_request,
    both,
    claim,
    claim_all,
    declare,
    enqueue,
    read,
    served,
    started,
)
from edgeoutbox.testing.postgres import as_url


@pytest.fixture
async def storage(conninfo: str) -> AsyncIterator[PostgresStorage]:
    """An open storage."""
    opened = PostgresStorage(as_url(conninfo))
    await opened.open()
    yield opened
    await opened.close()


async def test_p5_a_settlement_makes_way_for_the_claim_beside_it(storage: PostgresStorage) -> None:
    """The next of the lane is claimed in the transaction that ends the one before it."""
    held = await started(storage, "first", "lane")
    await enqueue(storage, "second", "lane")
    recorded, claims = await both(storage.settle(held, DONE), claim_all(storage))
    assert recorded is True
    assert [one.action.idempotency_key for one in claims] == ["second"]


async def test_a_failure_costs_no_other_operation_now_or_later(storage: PostgresStorage) -> None:
    """Each of a batch gets its own answer, and the statements behind a failed one can still be prepared."""
    await declare(storage, "guarded", approval=True)
    for n in range(20):
        good, bad = await asyncio.gather(
            storage.enqueue([a_request(f"good:{n}")]),
            storage.enqueue([a_request(f"bad:{n}", kind="guarded")]),
            return_exceptions=True,
        )
        assert isinstance(good, list)
        assert good[0].created
        assert isinstance(bad, ForbiddenByGuard)
    claims = await storage.claim([served()], 100, "one")
    assert await asyncio.gather(*(storage.settle(held, DONE) for held in claims)) == [True] * 20


async def test_many_that_enqueue_into_the_same_lanes_do_not_deadlock(
    storage: PostgresStorage, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of their requests: the lanes are locked in one order, and no batch has to run again."""
    again: list[object] = []
    alone = Committer._alone

    async def counted(self: Committer, operation: Operation, lock_timeout: int, tries: int) -> Any:
        again.append(operation)
        return await alone(self, operation, lock_timeout, tries)

    monkeypatch.setattr(Committer, "_alone", counted)
    monkeypatch.setattr(committer, "YIELDING", 10_000)
    other = PostgresStorage(as_url(conninfo))
    await other.open()
    try:
        lanes = [f"lane:{n:02}" for n in range(100)]
        batches = [
            one.enqueue([a_request(f"{turn}:{who}:{lane}", lane) for lane in order])
            for turn in range(5)
            for who, (one, order) in enumerate(((storage, lanes), (other, lanes[::-1])))
        ]
        async with asyncio.timeout(20.0):
            answers = await asyncio.gather(*batches)
        assert sum(answer.created for batch in answers for answer in batch) == 1000
        with psycopg.connect(conninfo) as connection:
            [(heads,)] = connection.execute("SELECT COUNT(*) FROM agent_action WHERE is_head = 1").fetchall()
        assert heads == 100
        assert again == []
    finally:
        await other.close()


async def test_thousands_are_enqueued_in_their_order(storage: PostgresStorage) -> None:
    """In a few statements; repeats among them are answered with the first."""
    requests = [a_request(f"k{n % 2000}", f"lane:{n % 7}", payload={"n": n % 2000}) for n in range(2100)]
    answers = await storage.enqueue(requests)
    ids = [answer.id for answer in answers[:2000]]
    assert ids == sorted(set(ids))
    assert [answer.id for answer in answers[2000:]] == ids[:100]
    assert not any(answer.created for answer in answers[2000:])
    last = await read(storage, ids[-1])
    assert (last.idempotency_key, last.payload) == ("k1999", canonical_json({"n": 1999}))


async def test_two_that_declare_at_once_come_to_the_stricter(storage: PostgresStorage, conninfo: str) -> None:
    """One waits for the other, so neither compares with what was there before, and neither fails."""
    with psycopg.connect(conninfo) as application:
        application.execute("SELECT pg_advisory_xact_lock(hashtextextended('edgeoutbox kinds', 0))")
        declaring = asyncio.create_task(declare(storage))
        while not await asyncio.to_thread(keeps_waiting, application):
            assert not declaring.done()
        application.rollback()
        await declaring
    other = PostgresStorage(as_url(conninfo))
    await other.open()
    try:
        for n in range(10):
            await asyncio.gather(*(declare(one, f"kind{n}") for one in (storage, other) for _ in range(3)))
        assert len(await storage.kinds()) == 11
    finally:
        await other.close()


async def test_p7_a_fence_that_waited_for_its_row_is_judged_by_the_time_after_that(
    storage: PostgresStorage, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ran on while another transaction held the row."""
    monkeypatch.setattr(committer, "YIELDING", 10_000)
    await enqueue(storage)
    held = await claim(storage, lease=WINDOW + 300)
    lease = held.action.lease_expires_at or 0
    with psycopg.connect(conninfo) as application:
        application.execute("SELECT 1 FROM agent_action FOR UPDATE")
        fencing = asyncio.create_task(storage.begin_write(held.id, held.epoch, held.owner, WINDOW))
        while not await asyncio.to_thread(keeps_waiting, application):
            assert not fencing.done()
        while lease - await storage.now() >= WINDOW:
            assert not fencing.done()
        application.rollback()
    assert await fencing is Refusal.LEASE_SHORT
    assert (await read(storage, held.id)).write_started_at is None


def keeps_waiting(application: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Whether another session waits for this one."""
    sql = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
    return bool(application.execute(sql.encode()).fetchall()[0][0])


async def test_a_claim_passes_over_what_is_held_and_is_told_to_look_again(
    storage: PostgresStorage, conninfo: str
) -> None:
    """A row that another transaction holds delays no claim, and when it is let go nobody has to say so."""
    held, free = await enqueue(storage, "held"), await enqueue(storage, "free")
    with psycopg.connect(conninfo) as application:
        application.execute("SELECT 1 FROM agent_action WHERE id = %s FOR UPDATE", (held,))
        assert [one.id for one in await claim_all(storage)] == [free]
        assert 0 <= (await storage.next_due([served()], "one") or -1) <= 20
        application.rollback()
    assert (await claim(storage)).id == held
    assert await storage.next_due([served()], "one") is None


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("SELECT ?, '?', \"?\", 5 % 2", "SELECT %s, '?', \"?\", 5 %% 2"),
        (r"SELECT E'\'?', ?", r"SELECT E'\'?', %s"),
        ("SELECT $$?$$, $a$ $$ ? $a$, ? -- ?\n, ?", "SELECT $$?$$, $a$ $$ ? $a$, %s -- ?\n, %s"),
        ("/* ? /* ? */ ? */ SELECT ?", "/* ? /* ? */ ? */ SELECT %s"),
        ("SELECT '100%', ?", "SELECT '100%%', %s"),
    ],
)
def test_a_hooks_parameters_are_found_where_they_are(given: str, taken: str) -> None:
    """And not in values, names and remarks."""
    assert positional(given) == taken


@pytest.mark.parametrize(
    ("sql", "several"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", False),
        (" ; SELECT ';' ; -- and; that is all", False),
        ("SELECT $$;$$, E'\\';' /* ; */", False),
        ("SELECT 1; SELECT 2", True),
        ("SELECT ';'; /* x */ COMMIT", True),
    ],
)
def test_a_second_statement_is_noticed(sql: str, several: bool) -> None:
    """Also behind a remark, and not in a value."""
    assert is_several(sql) is several


def test_every_shared_word_is_spelled_for_both_drivers() -> None:
    """A name of ours gets its schema, a column of a table of ours does not, and quoted words stay."""
    from edgeoutbox.storage.postgres.spelling import spell, spell_numbered  # noqa: PLC0415 - beside what it says

    shared = (
        "SELECT edgeoutbox_text(a.b), edgeoutbox_now(), 'agent_action ?%' FROM agent_action AS a, agent_action_kind"
    )
    shared += " WHERE agent_action.id = ? AND x = ? AND y % 2 = 1 AND edgeoutbox_open(a)"
    spelled: Any = "SELECT CAST(a.b AS text), {0}edgeoutbox_now(), 'agent_action ?{1}' FROM {0}agent_action AS a, "
    spelled += "{0}agent_action_kind WHERE agent_action.id = {2} AND x = {3} AND y {1} 2 = 1"
    spelled += " AND a.state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')"
    assert spell(shared, 'a"b%') == spelled.format('"a""b%%".', "%%", "%s", "%s")
    assert spell_numbered(shared, None) == spelled.format("", "%", "$1", "$2")
