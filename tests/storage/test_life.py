"""Random lives: two owners, a clock that moves, people, restarts, against a reference in plain Python."""

import asyncio
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from edgeoutbox.errors import (
    ActionRunning,
    DigestMismatch,
    KeyOfAnotherKind,
    LaneBusy,
    NoSuchAction,
    NotPossible,
    UndecodableInLane,
)
from edgeoutbox.kinds import Delivery
from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Claim, Decision, Fence, Refusal, Served, Settlement, Supersede
from edgeoutbox.storage.sqlite.backend import SqliteStorage
from edgeoutbox.storage.sqlite.committer import InlineRunner
from edgeoutbox.storage.sqlite.drivers import ApswDriver, Driver, StdlibDriver
from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.conformance.story import a_request, declare
from edgeoutbox.variants import ALWAYS
from tests.storage.reference import ATTEMPTS, BACK, LEASE, ONCE, SERVED, STRANGER, Reference, Row

DECODED = dict.fromkeys(SERVED, ALWAYS)
SERVING = [Served(kind, ALWAYS, LEASE, ATTEMPTS, 100) for kind in SERVED]

kinds = st.sampled_from([ONCE, BACK, BACK, STRANGER])
lanes = st.sampled_from([None, "a", "a", "b"])
numbers = st.integers(0, 40)
keys = numbers.map(lambda number: f"key:{number}")
owners = st.sampled_from(["one", "two"])
waits = st.sampled_from([0, 10_000, 200_000])
SETTLEMENTS = {
    "done": Settlement(State.DONE, "Done", StopReason.CONFIRMED),
    "uncertain": Settlement(State.UNCERTAIN, "Uncertain", StopReason.NO_CONFIRMATION),
    "failed": Settlement(State.FAILED, "Failed", StopReason.REJECTED),
    "exhausted": Settlement(State.FAILED, "Retry", StopReason.ATTEMPTS_EXHAUSTED, clears_fence=True),
    "cancelled": Settlement(State.CANCELLED, "Cancelled", StopReason.NOT_NEEDED),
}
answers = st.sampled_from([*SETTLEMENTS, "retry", "retry", "defer", "reread", "reread"])
rarely = st.sampled_from([False, False, True])
COLUMNS = (
    "id, idempotency_key, kind, lane_key, state, epoch, attempt, lease_owner, lease_expires_at, write_started_at, "
    "stop_reason, is_head, due_at, payload IS NULL, forget_at_end"
)


class Lives(RuleBasedStateMachine):
    """Every operation is done to the storage and to the reference, and then everything is compared."""

    driver: type[StdlibDriver | ApswDriver]

    @initialize()
    def begin(self) -> None:
        """An empty database with two declared kinds and a third that nobody knows."""
        self.folder = Path(tempfile.mkdtemp(prefix="edgeoutbox-lives-"))
        self.clock = MovableClock(1_800_000_000.0)
        self.reference = Reference()
        self.started: dict[str, list[int]] = {}
        self.claims: list[Claim] = []
        self.unproven: set[int] = set()
        self.own_fence: set[tuple[int, int]] = set()
        self.runner = asyncio.Runner()
        self.storage = self._open()
        self.run(declare(self.storage, ONCE, Delivery.AT_MOST_ONCE))
        self.run(declare(self.storage, BACK, Delivery.READS_BACK))
        path = str(self.folder / "app.db")
        apart = self.driver is ApswDriver
        self.plain: Any = apsw.Connection(path) if apart else sqlite3.connect(path, isolation_level=None)

    def _open(self) -> SqliteStorage:
        driver: Driver = self.driver()
        storage = SqliteStorage(self.folder / "app.db", driver, on_connect=self.clock.register, runner=InlineRunner)
        self.run(storage.open())
        return storage

    def teardown(self) -> None:
        """Nothing stays."""
        if hasattr(self, "plain"):
            self.plain.close()
            self.run(self.storage.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    def run(self, operation: Any) -> Any:
        """Run one operation of the storage to its end."""
        return self.runner.run(operation)

    @property
    def now(self) -> int:
        """The database's time."""
        return self.clock.milliseconds

    def some(self, number: int) -> int:
        """An id, mostly of an action that exists."""
        ids = sorted(self.reference.rows)
        return ids[number % len(ids)] if ids else 999

    def held(self, number: int, *, stale: bool) -> Claim | None:
        """A claim: one that holds its action, or any that there ever was."""
        live = [one for one in self.claims if self.reference.holds(one.id, one.epoch, one.owner)]
        among = self.claims if stale else live
        return among[-1 - number % len(among)] if among else None

    # --- enqueue -----------------------------------------------------------------------------------------------------

    @rule(
        key=keys,
        kind=kinds,
        lane=lanes,
        payload=st.integers(1, 2),
        delay=st.sampled_from([0, 0, 0, 10_000]),
        lives=st.sampled_from([None, None, None, 60_000, 400_000]),
        max_attempts=st.sampled_from([None, None, None, 1]),
        subject=st.sampled_from([None, None, None, "ann"]),
        proposed=st.sampled_from([False, False, False, True]),
        supersede=st.sampled_from([None] * 6 + ["enqueue", "refuse"]),
    )
    def enqueue(  # noqa: PLR0917 - hypothesis gives each by name
        self,
        key: str,
        kind: str,
        lane: str | None,
        payload: int,
        delay: int,
        lives: int | None,
        max_attempts: int | None,
        subject: str | None,
        proposed: bool,
        supersede: Any,
    ) -> None:
        """P2: one action per key; a supersede ends what waits in the lane, or refuses and changes nothing."""
        row = Row(
            0, key, kind, lane, payload, subject, max_attempts, self.now + delay,
            None if lives is None else self.now + lives, State.PROPOSED if proposed else State.ADMITTED,
        )  # fmt: skip
        self._enqueue(row, supersede)

    def _enqueue(self, row: Row, supersede: Any = None) -> None:
        lane = row.lane
        request = a_request(
            row.key, lane, kind=row.kind, payload={"n": row.payload}, due_at=row.due_at, expires_at=row.expires_at,
            max_attempts=row.max_attempts, subject_account_id=row.subject,
        )  # fmt: skip
        wanted = None if supersede is None or lane is None else Supersede(supersede, DECODED)
        holder = self.reference.by_key(row.key)
        in_lane = self.reference.lane(lane) if lane is not None else []
        expected: type[Exception] | None = None
        if holder is not None and holder.kind != row.kind:
            expected = KeyOfAnotherKind
        elif holder is None and wanted is not None:
            for other in in_lane:
                if other.kind == STRANGER:
                    expected = UndecodableInLane
                elif other.state is State.EXECUTING and supersede == "refuse":
                    expected = LaneBusy
                if expected is not None:
                    break
        operation = self.storage.enqueue([request], proposed=row.state is State.PROPOSED, supersede=wanted)
        if expected is not None:
            with pytest.raises(expected):
                self.run(operation)
            return
        [answer] = self.run(operation)
        if holder is not None:
            same = (holder.lane, holder.payload) == (lane, row.payload)
            assert (answer.id, answer.created, answer.same_content, answer.state) == (
                holder.id,
                False,
                same,
                holder.state,
            )
            return
        if wanted is not None:
            waiting = [other for other in in_lane if other.state is not State.EXECUTING]
            assert answer.superseded == tuple(other.id for other in waiting)
            self.reference.cancel(waiting, StopReason.SUPERSEDED)
        assert answer.created
        assert answer.id not in self.reference.rows
        row.id = answer.id
        self.reference.rows[row.id] = row

    @rule(number=numbers, kind=st.sampled_from([ONCE, BACK]), lane=lanes, count=st.integers(1, 4))
    def enqueue_some(self, number: int, kind: str, lane: str | None, count: int) -> None:
        """Plain, due work, so that there is something to do."""
        for n in range(count):
            self._enqueue(Row(0, f"some:{number}:{n}", kind, lane, 1, None, None, self.now, None, State.ADMITTED))

    # --- claim, fence, settle ----------------------------------------------------------------------------------------

    @rule(owner=owners, limit=st.integers(1, 4), reclaim=st.sampled_from([True, True, False]), fences=st.booleans())
    def claim(self, owner: str, limit: int, reclaim: bool, fences: bool) -> None:
        """P4, P5, P8: exactly what the reference allows, oldest first."""
        expected = self.reference.claimable(owner, self.now, reclaim=reclaim)[:limit]
        taken: list[Claim] = self.run(self.storage.claim(SERVING, limit, owner, reclaim=reclaim))
        assert sorted(one.id for one in taken) == sorted(expected)
        for one in taken:
            self._claimed(one)
            if fences:
                self._begin_write(one, 0)

    @rule(owner=owners, number=numbers)
    def claim_one(self, owner: str, number: int) -> None:
        """A head, whatever its due time, and nothing that a claim would not take then."""
        row_id = self.some(number)
        row = self.reference.rows.get(row_id)
        allowed = (
            row is not None and row.kind in SERVED and row.state is State.ADMITTED
            and self.reference.is_head(row) and not row.expired(self.now)
        )  # fmt: skip
        served = SERVING[SERVED.index(row.kind)] if row is not None and row.kind in SERVED else SERVING[0]
        taken = self.run(self.storage.claim_one(served, row_id, owner))
        assert (taken is not None) is allowed
        if taken is not None:
            self._claimed(taken)

    def _claimed(self, one: Claim) -> None:
        row = self.reference.rows[one.id]
        assert not (row.kind == ONCE and one.id in self.unproven), "P8: claimed again after a write"
        self.reference.claim(one.id, one.owner, self.now)
        assert (one.epoch, one.action.attempt, one.action.write_started_at) == (row.epoch, row.attempt, row.fence)
        self.claims.append(one)
        if row.lane is not None and row.epoch == 1:
            self.started.setdefault(row.lane, []).append(row.id)

    @rule(number=numbers, stale=st.booleans(), window=st.sampled_from([0, 0, 60_000, 100_000]))
    def begin_write(self, number: int, stale: bool, window: int) -> None:
        """P6, P8: only the holder fences, with enough of its lease left, before the expiry; the first fence stays."""
        held = self.held(number, stale=stale)
        if held is not None:
            self._begin_write(held, window)

    def _begin_write(self, held: Claim, window: int) -> None:
        row = self.reference.holds(held.id, held.epoch, held.owner)
        if row is not None and row.kind == ONCE and (held.id, held.epoch) in self.own_fence:
            return  # an executor refuses the second write of such an attempt itself
        answer = self.run(self.storage.begin_write(held.id, held.epoch, held.owner, window))
        if row is None:
            assert answer is Refusal.NOT_HELD
        elif row.expired(self.now):
            assert answer is Refusal.EXPIRED
        elif (row.lease_ends or 0) - self.now < window:
            assert answer is Refusal.LEASE_SHORT
        else:
            assert answer == Fence(self.now, (row.lease_ends or 0) - self.now)
            row.fence = row.fence or self.now
            if row.kind == ONCE:
                assert row.id not in self.unproven, "P8: a second write that was not proven empty"
            self.unproven.add(row.id)
            self.own_fence.add((held.id, held.epoch))

    @rule(number=numbers, stale=st.booleans(), name=answers, wait=waits)
    def settle(self, number: int, stale: bool, name: str, wait: int) -> None:
        """P6: every kind of end, by holders and by those who lost the action."""
        held = self.held(number, stale=stale)
        if held is not None:
            self._settle_together([(held, name)], wait)

    @rule(chosen=st.lists(st.tuples(numbers, st.booleans(), answers), min_size=2, max_size=4), wait=waits)
    def settle_together(self, chosen: list[tuple[int, bool, str]], wait: int) -> None:
        """P6: several in one commit, some of them perhaps of one action or of one claim: each in its turn."""
        claims = [(self.held(number, stale=stale), name) for number, stale, name in chosen]
        self._settle_together([(held, name) for held, name in claims if held is not None], wait)

    def _settle_together(self, settled: list[tuple[Claim, str]], wait: int) -> None:
        batch = [(held, self._settlement(held, name, wait)) for held, name in settled]
        expected = []
        for held, settlement in batch:
            recorded = self.reference.settle(held.id, held.epoch, held.owner, settlement, self.now)
            if recorded and settlement.clears_fence:
                self.unproven.discard(held.id)
            expected.append(recorded)

        async def together() -> list[bool]:
            return list(await asyncio.gather(*(self.storage.settle(*each) for each in batch)))

        assert self.run(together()) == expected

    def _settlement(self, held: Claim, name: str, wait: int) -> Settlement:
        # An executor records a reread of an at-most-once kind as Uncertain.
        if name == "reread" and held.action.kind != ONCE:
            return Settlement(State.EXECUTING, "Reread", wait=wait)
        if name == "defer" and held.action.write_started_at is not None:
            return Settlement(State.EXECUTING, "Defer", wait=wait, counts=False)
        if name in {"retry", "defer"}:
            return Settlement(State.ADMITTED, name, wait=wait, counts=name == "retry", clears_fence=True)
        return SETTLEMENTS["uncertain" if name == "reread" else name]

    # --- time and upkeep ---------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 15, 70, 130, 500]))
    def time_passes(self, seconds: int) -> None:
        """Leases end, actions become due and expire."""
        self.clock.advance(seconds)

    @rule(owner=owners, what=st.sampled_from(["reap", "reap", "reap", "sweep", "restart"]))
    def upkeep(self, owner: str, what: str) -> None:
        """What executors do beside their attempts, and another process that goes on with the file."""
        match what:
            case "reap":
                expected = self.reference.reap(owner, self.now)
                assert {action.id for action in self.run(self.storage.reap(SERVING, owner, {}))} == expected
            case "sweep":
                # Nothing is old enough; what was to be forgotten goes, whoever ended it.
                gone = [row for row in self.reference.rows.values() if row.forget and not row.open]
                assert self.run(self.storage.sweep(list(SERVED))) == len(gone)
                for row in gone:
                    self.reference.delete(row)
            case _:
                self.run(self.storage.close())
                self.storage = self._open()

    # --- people ------------------------------------------------------------------------------------------------------

    @rule(
        number=numbers,
        verdict=st.sampled_from(["admit", "refuse", "withdraw", "withdraw", "withdraw_lost"]),
        right=st.booleans(),
    )
    def decide(self, number: int, verdict: Any, right: bool) -> None:
        """Each decision in the states that allow it, and a refusal in all others."""
        row_id = self.some(number)
        row = self.reference.rows.get(row_id)
        digest = a_request(payload={"n": row.payload if row and right else 7}).payload_digest
        expected = self._refusal(row, verdict, right=right)
        operation = self.storage.decide(row_id, Decision(verdict, "ann", None, digest))
        if expected is not None:
            with pytest.raises(expected):
                self.run(operation)
            return
        assert row is not None
        self.run(operation)
        if verdict == "admit":
            row.state = State.ADMITTED
        elif verdict == "withdraw_lost" and row.fence is not None:
            row.end(State.UNCERTAIN, StopReason.LEASE_LOST_AFTER_WRITE)
            if row.forget:
                self.reference.delete(row)
        else:
            self.reference.cancel([row], StopReason.REFUSED if verdict == "refuse" else StopReason.WITHDRAWN)

    def _refusal(  # noqa: PLR0911 - one return for each verdict
        self, row: Row | None, verdict: str, *, right: bool
    ) -> type[Exception] | None:
        if row is None:
            return NoSuchAction
        if verdict in {"admit", "refuse"} and row.state is not State.PROPOSED:
            return NotPossible
        if verdict == "admit":
            return DigestMismatch if not right else NotPossible if row.expired(self.now) else None
        if verdict == "withdraw":
            return ActionRunning if row.state is State.EXECUTING else NotPossible if not row.open else None
        if verdict == "withdraw_lost":
            if row.state is not State.EXECUTING:
                return NotPossible
            return ActionRunning if (row.lease_ends or 0) > self.now else None
        return None

    @rule(key=keys, erase=rarely)
    def erase_or_forget(self, key: str, erase: bool) -> None:
        """P13: a person in every state, with everything that was logged; an ended action now, a live one at its end."""
        if erase:
            gone = [row for row in self.reference.rows.values() if row.subject == "ann"]
            assert self.run(self.storage.erase("ann")) == len(gone)
            for row in gone:
                self.reference.delete(row)
            return
        found = self.reference.by_key(key)
        assert self.run(self.storage.forget(key)) is (found is not None)
        if found is not None and found.open:
            found.forget = True
        elif found is not None:
            self.reference.delete(found)

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def the_database_is_as_the_reference_says(self) -> None:
        """Every row and every attempt."""
        if not hasattr(self, "plain"):
            return
        stored = self.plain.execute(f"SELECT {COLUMNS} FROM agent_action ORDER BY id").fetchall()
        expected = [
            (
                row.id, row.key, row.kind, row.lane, row.state.value, row.epoch, row.attempt, row.owner, row.lease_ends,
                row.fence, row.stop_reason and row.stop_reason.value, int(self.reference.is_head(row)), row.due_at,
                int(not row.open), int(row.forget),
            )
            for row in sorted(self.reference.rows.values(), key=lambda row: row.id)
        ]  # fmt: skip
        assert stored == expected
        logged = self.plain.execute("SELECT action_id, epoch, recorded FROM agent_action_attempt").fetchall()
        assert {
            (action, epoch): None if recorded is None else bool(recorded) for action, epoch, recorded in logged
        } == self.reference.log

    @invariant()
    def p4_no_lane_runs_twice(self) -> None:
        """Asked of the database itself."""
        if hasattr(self, "plain"):
            running = "SELECT lane_key FROM agent_action WHERE state = 'EXECUTING' AND lane_key IS NOT NULL"
            twice = f"{running} GROUP BY 1 HAVING COUNT(*) > 1"
            assert self.plain.execute(twice).fetchall() == []

    @invariant()
    def p5_first_attempts_of_a_lane_are_in_order(self) -> None:
        """Over everything that ever started."""
        for lane in getattr(self, "started", {}).values():
            assert lane == sorted(lane)


@pytest.mark.timeout(600)  # when it fails, hypothesis looks for the shortest life that does
@pytest.mark.parametrize("driver", [StdlibDriver, ApswDriver], ids=["stdlib", "apsw"])
def test_p2_p3_p4_p5_p6_p8_p13_hold_in_random_lives(driver: type[StdlibDriver | ApswDriver]) -> None:
    """Whatever happens in whatever order, the database agrees with the reference after every step."""
    machine = type("Lives", (Lives,), {"driver": driver})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=90,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
