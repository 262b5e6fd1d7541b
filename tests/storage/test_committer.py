"""Group commit: who shares a transaction, and what a failure of one costs the others."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeoutbox.errors import DatabaseBusy, DatabaseUnavailable, StorageError
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.committer import TURNS, Committer, InlineRunner, Runner, ThreadRunner
from edgeoutbox.storage.sqlite.drivers import Driver
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.storage.statements.steps import Steps
from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.conformance.story import DONE, WINDOW, a_request, claim_all, enqueue
from tests.storage.tapped import Tapped

INSERT = "INSERT INTO words (word) VALUES (?)"


def write(word: str) -> Callable[[Connection], str]:
    """An operation of one statement."""

    def operation(connection: Connection) -> str:
        connection.execute(INSERT, (word,))
        return word

    return operation


def write_all(words: Sequence[str]) -> Steps[Sequence[str]]:
    """An operation that many share."""
    for word in words:
        yield INSERT, (word,)
    return words


def write_twice(word: str, fault: Exception | None = None) -> Callable[[Connection], str]:
    """An operation of two statements that may fail in between."""

    def operation(connection: Connection) -> str:
        connection.execute(INSERT, (word,))
        if fault is not None:
            raise fault
        connection.execute(INSERT, (f"{word}!",))
        return word

    return operation


def roll_back(connection: Connection) -> None:
    """An operation that loses its transaction, as a full disk makes SQLite do."""
    connection.execute(INSERT, ("lost",))
    connection.execute("ROLLBACK")
    raise sqlite3.OperationalError("disk I/O error")


class Between:
    """What the writer does between batches, as a test says."""

    def __init__(self) -> None:
        self.wanted = False
        self.looked: Callable[[], None] = lambda: None
        self.may_end = threading.Event()

    def due(self) -> bool:
        """Whether the test wants upkeep now."""
        self.looked()
        return self.wanted

    def run(self, _connection: Connection) -> None:
        """Take long."""
        self.wanted = False
        self.may_end.wait(10)


class Bench:
    """A committer on a table of words, whose statements are heard."""

    def __init__(self, path: Path, driver: Driver, runner: Runner, busy_timeout: int = 50) -> None:
        self.heard: list[str] = []
        self.fails: dict[str, list[Exception]] = {}
        self.between = driver.open(str(path), 0, None)
        self.between.execute("CREATE TABLE words (word TEXT UNIQUE)")
        self.upkeep = Between()
        self.committer = Committer(
            lambda: Tapped(driver.open(str(path), 50, None), self.heard, self.fails),
            self.upkeep,
            runner,
            busy_timeout=busy_timeout,
        )

    def words(self) -> list[str]:
        """What is committed."""
        return [row[0] for row in self.between.execute("SELECT word FROM words ORDER BY rowid")]

    async def all(self, *operations: Callable[[Connection], Any], single: bool = False) -> list[Any]:
        """Submit operations in one turn of the loop and gather answers and errors."""
        waiting = [self.committer.submit(operation, single=single) for operation in operations]
        return await asyncio.gather(*waiting, return_exceptions=True)


class Held:
    """An operation that runs until it may end."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self, _connection: Connection) -> None:
        """Begin, and wait."""
        self.began.set()
        self.may_end.wait(10)


async def handed_over() -> None:
    """What tasks have submitted is with the writer."""
    for _ in range(TURNS + 1):
        await asyncio.sleep(0)


@pytest.fixture
async def threaded(database: Path, driver: Driver) -> AsyncIterator[Bench]:
    """A started committer with a thread, which waits long for the write lock."""
    made = Bench(database, driver, ThreadRunner(), busy_timeout=10_000)
    made.committer.start()
    made.heard.clear()
    yield made
    await made.committer.stop()
    made.between.close()


@pytest.fixture(params=[ThreadRunner, InlineRunner], ids=["thread", "inline"])
async def bench(database: Path, driver: Driver, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A started committer, with either runner."""
    made = Bench(database, driver, request.param())
    made.committer.start()
    made.heard.clear()
    yield made
    await made.committer.stop()
    made.between.close()


async def test_operations_of_one_turn_share_one_commit(bench: Bench) -> None:
    """A hundred waiting writes cost one transaction, and each gets its own answer."""
    answers = await bench.all(*(write(f"w{n}") for n in range(100)), single=True)
    assert answers == [f"w{n}" for n in range(100)]
    assert (bench.heard.count("BEGIN"), bench.heard.count("COMMIT")) == (1, 1)
    assert len(bench.words()) == 100


async def test_an_answer_comes_after_its_commit(bench: Bench) -> None:
    """When submit returned, another connection sees what was written."""
    for n in range(5):
        await bench.committer.submit(write(f"w{n}"))
        assert bench.words()[-1] == f"w{n}"


@pytest.mark.parametrize("shared", [True, False])
async def test_nobody_is_answered_while_the_commit_is_under_way(
    threaded: Bench, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """What is written is not yet stored: the answer waits for COMMIT to come back."""
    began, may_end = threading.Event(), threading.Event()
    execute = Tapped.execute

    def slow(tapped: Tapped, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        if sql == "COMMIT":
            began.set()
            may_end.wait(10)
        return execute(tapped, sql, parameters)

    monkeypatch.setattr(Tapped, "execute", slow)
    committer = threaded.committer
    asked = asyncio.ensure_future(committer.submit_to(write_all, "a") if shared else committer.submit(write("a")))
    await asyncio.to_thread(began.wait, 10)
    await handed_over()
    answered_early = asked.done()
    may_end.set()
    assert (await asked, threaded.words(), answered_early) == ("a", ["a"], False)


async def test_the_last_of_a_batch_finds_what_the_others_wrote(bench: Bench) -> None:
    """A claim sees the lanes that were opened and the actions that were enqueued beside it."""

    def count(items: Sequence[None]) -> Steps[list[int]]:
        rows = yield "SELECT COUNT(*) FROM words", ()
        return [rows[0][0] for _ in items]

    counted = bench.committer.submit_to(count, None, last=True)
    written = bench.committer.submit(write("a")), bench.committer.submit_to(write_all, "b")
    assert (await asyncio.gather(counted, *written))[0] == 2
    assert bench.heard.count("COMMIT") == 1


async def test_a_failing_single_statement_costs_nobody_else_anything(bench: Bench) -> None:
    """It undoes itself; the others commit together with it."""
    first, second, third = await bench.all(write("a"), write("a"), write("b"), single=True)
    assert (first, third, bench.words()) == ("a", "b", ["a", "b"])
    assert isinstance(second, StorageError)
    assert bench.heard.count("COMMIT") == 1


async def test_an_operation_that_fails_half_way_makes_each_run_alone(bench: Bench) -> None:
    """Nothing of it stays, everything of the others does, and it alone gets its error."""
    fault = RuntimeError("half way")
    a, bad, b = await bench.all(write_twice("a"), write_twice("bad", fault), write_twice("b"))
    assert (a, b, bench.words()) == ("a", "b", ["a", "a!", "b", "b!"])
    assert bad is fault


async def test_an_operation_that_loses_the_transaction_makes_each_run_alone(bench: Bench) -> None:
    """What ran before it in the batch is not lost with it, whatever it promised to be."""
    for single in (True, False):
        a, bad, b = await bench.all(write(f"a{single}"), roll_back, write(f"b{single}"), single=single)
        assert (a, b) == (f"a{single}", f"b{single}")
        assert isinstance(bad, StorageError)
    assert bench.words() == ["aTrue", "bTrue", "aFalse", "bFalse"]


async def test_a_commit_that_fails_is_answered_with_its_error(bench: Bench) -> None:
    """Each runs again alone; what cannot be committed then is told so, and is not stored."""
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = 13
    bench.fails["COMMIT"] = [full, full]
    a, b = await bench.all(write("a"), write("b"))
    assert isinstance(a, DatabaseUnavailable)
    assert (b, bench.words()) == ("b", ["b"])


async def test_a_database_that_is_locked_answers_everybody(bench: Bench) -> None:
    """After the busy timeout, with the likely cause; nothing is stored, and the next operation works."""
    bench.between.execute("BEGIN IMMEDIATE")
    answers = await bench.all(write("a"), write("b"))
    assert [type(answer) for answer in answers] == [DatabaseBusy, DatabaseBusy]
    assert "give it as connection=" in str(answers[0])
    bench.between.execute("COMMIT")
    assert await bench.committer.submit(write("c")) == "c"
    assert bench.words() == ["c"]


async def test_nobody_waits_for_the_batch_behind(threaded: Bench) -> None:
    """A committed operation is answered while the next one still runs."""
    first, second = Held(), Held()
    answered = asyncio.ensure_future(threaded.committer.submit(first))
    await asyncio.to_thread(first.began.wait, 10)
    behind = asyncio.ensure_future(threaded.committer.submit(second))
    await handed_over()
    first.may_end.set()
    await asyncio.wait_for(answered, 5)
    assert not behind.done()
    second.may_end.set()
    await behind
    assert threaded.heard.count("COMMIT") == 2


async def test_nobody_waits_for_upkeep(threaded: Bench) -> None:
    """What is committed is answered before the writer looks after its file."""
    threaded.upkeep.wanted = True
    assert await asyncio.wait_for(threaded.committer.submit(write("a")), 5) == "a"
    threaded.upkeep.may_end.set()


async def test_nobody_waits_for_the_lock_that_the_next_batch_needs(
    database: Path, driver: Driver, threaded: Bench
) -> None:
    """When somebody else takes the write lock, what was committed before that is answered at once."""
    take, taken, release = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        connection = driver.open(str(database), 0, None)
        take.wait(10)
        connection.execute("BEGIN IMMEDIATE")
        taken.set()
        release.wait(10)
        connection.execute("COMMIT")
        connection.close()

    def looked() -> None:
        take.set()
        taken.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    first = Held()
    answered = asyncio.ensure_future(threaded.committer.submit(first))
    await asyncio.to_thread(first.began.wait, 10)
    behind = asyncio.ensure_future(threaded.committer.submit(write("behind")))
    await handed_over()
    threaded.upkeep.looked = looked
    first.may_end.set()
    await asyncio.wait_for(answered, 5)
    release.set()
    assert await behind == "behind"
    thread.join()


async def test_stopping_commits_what_was_submitted(bench: Bench) -> None:
    """Nothing that was handed over is dropped; afterwards there is an error."""
    waiting = [asyncio.ensure_future(bench.committer.submit(write(f"w{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    await bench.committer.stop()
    assert await asyncio.gather(*waiting) == ["w0", "w1", "w2"]
    with pytest.raises(StorageError, match="closed"):
        await bench.committer.submit(write("late"))


async def test_cancelling_a_waiter_does_not_cancel_its_operation(threaded: Bench) -> None:
    """What was submitted happens, and the others of its batch are answered."""
    slow = Held()

    def slow_write(connection: Connection) -> None:
        slow(connection)
        connection.execute(INSERT, ("slow",))

    cancelled = asyncio.ensure_future(threaded.committer.submit(slow_write))
    other = asyncio.ensure_future(threaded.committer.submit(write("other")))
    await asyncio.to_thread(slow.began.wait, 10)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    slow.may_end.set()
    assert await other == "other"
    assert threaded.words() == ["slow", "other"]


async def test_what_arrives_during_a_commit_shares_the_next(threaded: Bench) -> None:
    """While one batch is written, everything that comes in is collected for one more."""
    slow = Held()
    first = asyncio.ensure_future(threaded.committer.submit(slow))
    await asyncio.to_thread(slow.began.wait, 10)
    later = []
    for n in range(20):
        later.append(asyncio.ensure_future(threaded.committer.submit(write(f"w{n}"), single=True)))
        await handed_over()
    slow.may_end.set()
    await asyncio.gather(first, *later)
    assert threaded.heard.count("COMMIT") == 2


async def test_claims_fences_and_settles_in_flight_share_their_commits(
    database: Path, driver: Driver, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty lanes, each fenced and settled, cost a few commits and not a hundred."""
    heard: list[str] = []
    opening = driver.open
    monkeypatch.setattr(driver, "open", lambda *given: Tapped(opening(*given), heard, {}))
    storage = SqliteStorage(database, driver, on_connect=clock.register)
    await storage.open()
    for n in range(50):
        await enqueue(storage, f"k{n}", f"lane:{n}")
    claims = await claim_all(storage)
    heard.clear()
    await asyncio.gather(*(storage.begin_write(held.id, held.epoch, held.owner, WINDOW) for held in claims))
    assert heard.count("COMMIT") == 1
    heard.clear()
    assert await asyncio.gather(*(storage.settle(held, DONE) for held in claims)) == [True] * 50
    assert heard.count("COMMIT") == 1
    await storage.close()


async def test_one_bad_enqueue_does_not_undo_the_others_of_its_batch(storage: SqliteStorage) -> None:
    """Of requests that were committed together, only the refused one raises."""
    requests = [a_request("a"), a_request("b", workspace_id=None), a_request("c")]
    answers = await asyncio.gather(*(storage.enqueue([one]) for one in requests), return_exceptions=True)
    assert isinstance(answers[1], StorageError)
    assert [await storage.get(key=key) is not None for key in "abc"] == [True, False, True]
