"""The outbox in plain Python, as a reader of the promises would write it: no SQL and no concurrency."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from edgeoutbox.states import State, StopReason
from edgeoutbox.storage.protocol import Settlement

LEASE = 120_000
ONCE, BACK, STRANGER = "once", "back", "stranger"
SERVED = (ONCE, BACK)
ATTEMPTS = 3


@dataclass
class Row:
    """One action."""

    id: int
    key: str
    kind: str
    lane: str | None
    payload: int
    subject: str | None
    max_attempts: int | None
    due_at: int
    expires_at: int | None
    state: State
    epoch: int = 0
    attempt: int = 0
    owner: str | None = None
    lease_ends: int | None = None
    fence: int | None = None
    stop_reason: StopReason | None = None
    forget: bool = False

    @property
    def open(self) -> bool:
        """Whether it holds its lane."""
        return not self.state.ended

    @property
    def last(self) -> bool:
        """Whether no attempt is left."""
        return self.attempt >= (self.max_attempts or ATTEMPTS)

    def expired(self, now: int) -> bool:
        """Whether it should not be made any more."""
        return self.expires_at is not None and self.expires_at <= now

    def end(self, state: State, reason: StopReason) -> None:
        """It is over."""
        self.state, self.stop_reason = state, reason
        self.owner = self.lease_ends = None


@dataclass
class Reference:
    """All actions, and what was settled of each attempt (`None`: nothing yet)."""

    rows: dict[int, Row] = field(default_factory=dict)
    log: dict[tuple[int, int], bool | None] = field(default_factory=dict)

    def by_key(self, key: str) -> Row | None:
        """Who holds a key."""
        return next((row for row in self.rows.values() if row.key == key), None)

    def lane(self, lane: str) -> list[Row]:
        """What holds a lane, in order."""
        return [row for row in sorted(self.rows.values(), key=lambda row: row.id) if row.open and row.lane == lane]

    def is_head(self, row: Row) -> bool:
        """Whether nothing earlier of its lane is open."""
        return row.open and (row.lane is None or self.lane(row.lane)[0] is row)

    def claimable(self, owner: str, now: int, *, reclaim: bool) -> list[int]:
        """What a claim takes, oldest first."""
        found = []
        for row in self.rows.values():
            if row.kind not in SERVED:
                continue
            if row.state is State.ADMITTED and self.is_head(row) and row.due_at <= now and not row.expired(now):
                found.append((row.due_at, row.id))
            if not reclaim or not self._lost(row, owner, now) or row.last:
                continue
            if not row.expired(now) if row.fence is None else row.kind != ONCE:
                found.append((row.lease_ends or 0, row.id))
        return [row_id for _, row_id in sorted(found)]

    def _lost(self, row: Row, owner: str, now: int) -> bool:
        return row.state is State.EXECUTING and (row.lease_ends or 0) <= now and row.owner != owner

    def claim(self, row_id: int, owner: str, now: int) -> None:
        """An owner takes an action."""
        row = self.rows[row_id]
        row.state, row.owner, row.lease_ends = State.EXECUTING, owner, now + LEASE
        row.epoch += 1
        row.attempt += 1
        self.log[row_id, row.epoch] = None

    def holds(self, row_id: int, epoch: int, owner: str) -> Row | None:
        """The action, if this claim still holds it."""
        row = self.rows.get(row_id)
        held = row is not None and (row.state, row.epoch, row.owner) == (State.EXECUTING, epoch, owner)
        return row if held else None

    def settle(self, row_id: int, epoch: int, owner: str, settlement: Settlement, now: int) -> bool:
        """An attempt ends."""
        row = self.holds(row_id, epoch, owner)
        if (row_id, epoch) in self.log and self.log[row_id, epoch] is None:
            self.log[row_id, epoch] = row is not None
        if row is None:
            return False
        if settlement.clears_fence or settlement.state is State.ADMITTED:
            row.fence = None
        if settlement.state.ended:
            assert settlement.stop_reason is not None
            row.end(settlement.state, settlement.stop_reason)
            self._forget(row)
            return True
        row.attempt -= not settlement.counts
        row.owner = None
        row.state = settlement.state
        if settlement.state is State.ADMITTED:
            row.lease_ends, row.due_at = None, now + settlement.wait
        else:
            row.lease_ends = now + settlement.wait
        return True

    def reap(self, owner: str, now: int) -> set[int]:
        """What expired or was lost ends."""
        ended = set()
        for row in list(self.rows.values()):
            if row.kind not in SERVED:
                continue
            if row.state in {State.PROPOSED, State.ADMITTED} and row.expired(now):
                row.end(State.CANCELLED, StopReason.EXPIRED)
            elif self._lost(row, owner, now) and row.fence is not None and (row.kind == ONCE or row.last):
                reason = StopReason.LEASE_LOST_AFTER_WRITE if row.kind == ONCE else StopReason.READBACK_EXHAUSTED
                row.end(State.UNCERTAIN, reason)
            elif self._lost(row, owner, now) and row.fence is None and row.expired(now):
                row.end(State.CANCELLED, StopReason.EXPIRED)
            elif self._lost(row, owner, now) and row.fence is None and row.last:
                row.end(State.FAILED, StopReason.ATTEMPTS_EXHAUSTED)
            else:
                continue
            ended.add(row.id)
            self._forget(row)
        return ended

    def cancel(self, rows: Iterable[Row], reason: StopReason) -> None:
        """What has not started is ended by somebody."""
        for row in rows:
            row.end(State.CANCELLED, reason)
            if reason is not StopReason.SUPERSEDED:
                self._forget(row)

    def delete(self, row: Row) -> None:
        """Nothing is left of it."""
        del self.rows[row.id]
        self.log = {key: value for key, value in self.log.items() if key[0] != row.id}

    def _forget(self, row: Row) -> None:
        if row.forget:
            self.delete(row)
