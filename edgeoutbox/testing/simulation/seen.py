"""What the model sees: rows as commits leave them, and calls of the provider."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from edgeoutbox.model import ActionRequest

WAITING = frozenset({"PROPOSED", "ADMITTED"})
OPEN = WAITING | {"EXECUTING"}


class Row(NamedTuple):
    """An action, as it stands in the database. Times are milliseconds."""

    id: int
    kind: str
    lane: str | None
    key: str
    state: str
    is_head: bool
    epoch: int
    attempt: int
    max_attempts: int | None
    owner: str | None
    lease_until: int | None
    fenced_at: int | None
    due_at: int
    expires_at: int | None
    stop_reason: str | None
    payload: str | None
    last_error: str | None
    subject: str | None
    forget: bool
    digest: str | None

    @property
    def given(self) -> tuple[str | int | None, ...]:
        """What stands from the enqueue on, whatever becomes of the action."""
        return (self.kind, self.lane, self.key, self.subject, self.max_attempts, self.expires_at, self.digest)

    @property
    def waits(self) -> bool:
        """Whether the action has not started, or waits between attempts."""
        return self.state in WAITING

    @property
    def open(self) -> bool:
        """Whether the action has not ended."""
        return self.state in OPEN

    def expired(self, now: int) -> bool:
        """Whether its time is over."""
        return self.expires_at is not None and self.expires_at <= now


class Logged(NamedTuple):
    """One attempt in the dispatch log."""

    epoch: int
    owner: str
    fenced_at: int | None
    settled_at: int | None
    result: str | None
    recorded: bool | None


class Weather(NamedTuple):
    """What a kind suffers: paused by somebody, cooling down until a time."""

    paused: bool
    cooling_until: int

    def forbids(self, now: int) -> bool:
        """Whether no action of the kind may be claimed."""
        return self.paused or self.cooling_until > now


@dataclass(frozen=True)
class Actor:
    """Who commits: an executor of some build, or a program that only enqueues and decides. `since` is boot time."""

    name: str
    build: int | None = None
    since: float = 0.0


@dataclass(frozen=True)
class Change:
    """What one commit did to one action. `log` is its dispatch log by epoch; `told` counts its hook's own writes."""

    id: int
    before: Row | None
    after: Row | None
    log_before: Mapping[int, Logged]
    log: Mapping[int, Logged]
    owed: bool
    told: int

    @property
    def made(self) -> bool:
        """Whether it is new."""
        return self.before is None and self.after is not None

    @property
    def superseded(self) -> bool:
        """Whether another was put in its place here."""
        return self.ended and self.after is not None and self.after.stop_reason == "SUPERSEDED"

    @property
    def claimed(self) -> bool:
        """Whether somebody took the action."""
        return self.after is not None and self.before is not None and self.after.epoch > self.before.epoch

    @property
    def ended(self) -> bool:
        """Whether it ended here."""
        return self.after is not None and not self.after.open and (self.before is None or self.before.open)

    @property
    def fenced(self) -> Iterator[Logged]:
        """The attempts whose fence was stored here."""
        for epoch, now in self.log.items():
            before = self.log_before.get(epoch)
            if now.fenced_at is not None and (before is None or before.fenced_at is None):
                yield now

    @property
    def settled(self) -> Iterator[Logged]:
        """The attempts whose result was stored here."""
        for epoch, now in self.log.items():
            before = self.log_before.get(epoch)
            if now.settled_at is not None and (before is None or before.settled_at is None):
                yield now


@dataclass(frozen=True)
class Commit:
    """One transaction, at the moment `now` of the database's clock (milliseconds); `boot` is boot time (seconds)."""

    actor: Actor
    now: int
    boot: float
    changes: tuple[Change, ...]
    weather: Mapping[str, Weather]


@dataclass(eq=False)
class Call:
    """One call of the provider, in seconds of boot time. `came_to` is what is *true*; the adapter may never learn it.

    A call that is `open` may still take effect. A call that is `absent` was proven to have come to nothing.
    """

    id: int
    epoch: int
    lane: str | None
    executor: str
    began: float
    until: float
    came_to: Literal["open", "effect", "absent"] = "open"
    over: bool = False
    """Whether the executor has stopped waiting for it, or died."""


@dataclass(eq=False)
class Asked:
    """One enqueue of a program, from its question to its answer.

    `holders` are the actions that held its key meanwhile, `fits` those that were made meanwhile just as it asks.
    """

    request: ActionRequest
    proposed: bool
    supersede: bool
    holders: set[int]
    fits: set[int] = field(default_factory=set)

    def wants(self, row: Row, now: int) -> bool:
        """Whether it asks for this row, when it is made now."""
        asks = self.request
        given = (
            *(asks.kind, asks.lane_key, asks.idempotency_key, asks.subject_account_id),
            *(asks.max_attempts, asks.expires_at, asks.payload_digest),
        )
        if row.given != given or row.due_at != (now if asks.due_at is None else asks.due_at):
            return False
        as_made = ("PROPOSED" if self.proposed else "ADMITTED", asks.payload_text)
        return not row.open or (row.state, row.payload) == as_made


class Broken(AssertionError):
    """A promise was broken."""

    def __init__(self, promise: str, complaint: str) -> None:
        super().__init__(f"{promise}: {complaint}")
        self.promise = promise
