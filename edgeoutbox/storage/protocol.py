"""What a backend must offer: each method is one atomic state change, or one read.

All durations and times are milliseconds; times are on the database's clock. Every method raises `StorageError` when
the database did not carry it out, in which case it changed nothing. `edgeoutbox.testing.conformance` tests what is
promised here; what it does not test is not promised.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol, TypeAlias

from edgeoutbox.adapter import EndedAction, Transaction
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action, ActionRequest, AttemptRecord, Backlog, Enqueued
from edgeoutbox.states import State, StopReason
from edgeoutbox.variants import Condition, selects

Hook: TypeAlias = Callable[[EndedAction, Transaction], Awaitable[None]]
"""An adapter's `ended`; runs inside the transaction that ends the action."""

Hooks: TypeAlias = Mapping[str, Hook]
"""The hooks of a process, by kind."""


@dataclass(frozen=True, slots=True)
class KindDeclaration:
    """What a process declares of a kind."""

    name: str
    delivery: Delivery
    instance_level: bool
    requires_approval: bool
    retention_days: int
    has_ended_hook: bool
    settings: str | None = field(default=None, repr=False)
    """The provider's settings of who carries the kind out; `None` from who only enqueues it."""


@dataclass(frozen=True, slots=True)
class KindPolicy:
    """What the database holds of a kind: the strictest declaration, and its weather."""

    name: str
    delivery: Delivery
    instance_level: bool
    requires_approval: bool
    retention_days: int
    has_ended_hook: bool
    cooling_until: int | None
    cooling_reason: str | None
    paused_by: str | None

    def stricter_than(self, declared: KindDeclaration) -> Mapping[str, str]:
        """What was declared looser than what holds: field -> what holds."""
        found = {}
        if declared.delivery.strictness < self.delivery.strictness:
            found["delivery"] = self.delivery.value
        if self.requires_approval and not declared.requires_approval:
            found["requires_approval"] = "true"
        return found

    def changed_since(self, before: "KindPolicy | None") -> Mapping[str, str]:
        """What the last declaration changed of what it may change freely: field -> what holds now."""
        if before is None:
            return {}
        free = ("retention_days", "instance_level", "has_ended_hook")
        return {name: str(getattr(self, name)) for name in free if getattr(before, name) != getattr(self, name)}


@dataclass(frozen=True, slots=True)
class Served:
    """A kind that an executor carries out: which of its rows it decodes, and the limits of this process."""

    kind: str
    condition: Condition
    lease: int
    max_attempts: int
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """An action that this owner holds, as the claim left it, and when the claim was (database clock)."""

    action: Action
    owner: str
    claimed_at: int

    @property
    def id(self) -> int:
        """The action's id."""
        return self.action.id

    @property
    def epoch(self) -> int:
        """The claim's number; with the owner it says whose every later write is."""
        return self.action.epoch


@dataclass(frozen=True, slots=True)
class Fence:
    """A stored fence: when, and how much of the lease was left at that moment."""

    written_at: int
    lease_left: int


class Refusal(StrEnum):
    """Why a fence was refused; the action is unchanged."""

    NOT_HELD = "another claim took the action, or it ended or was erased"
    LEASE_SHORT = "too little of the lease is left for a write"
    EXPIRED = "the action has expired"


class Settlement(NamedTuple):
    """The write that ends an attempt.

    `state` EXECUTING is a reread: the owner is cleared and the lease ends after `wait`. ADMITTED waits for `wait`.
    `clears_fence` records the proof that nothing was written. `counts` false gives the attempt back. `cools` puts the
    kind to rest, for `wait` or, with `long`, for 15 minutes doubling to 4 hours. `reason` is logged, and becomes the
    action's `last_error`.
    """

    state: State
    result: str
    stop_reason: StopReason | None = None
    wait: int = 0
    clears_fence: bool = False
    counts: bool = True
    cools: Literal["no", "wait", "long"] = "no"
    reason: str = ""
    readback_ref: str | None = None
    evidence: str = "{}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person or program decided about an action that has not started, or that was lost."""

    verdict: Literal["admit", "refuse", "withdraw", "withdraw_lost"]
    by: str | None = None
    note: str | None = None
    payload_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """Which actions to list; `None` means any. `after` is the cursor of the page before, newest first."""

    state: State | None = None
    kind: str | None = None
    lane_key: str | None = None
    run_id: str | None = None
    subject_account_id: str | None = None
    after: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Supersede:
    """How an enqueue treats what waits in its lane."""

    if_running: Literal["enqueue", "refuse"] = "enqueue"
    decodable: Mapping[str, Condition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutorRecord:
    """An executor that was seen: the kinds and conditions it carries out, and when it was last there."""

    owner: str
    version: str
    kinds: Mapping[str, Condition]
    started_at: int
    seen_at: int

    def carries_out(self, action: Action) -> bool:
        """Whether the executor knows the action's kind and variant."""
        condition = self.kinds.get(action.kind)
        return condition is not None and selects(condition, action.payload or "{}", action.idempotency_key)


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that decides what an action waits for; parts of it may have been read a moment apart.

    `executors` are those that are there. `owner_seen_at` is when the executor that holds the lease was last seen,
    `None` when nobody holds it or the holder never said that it is there. `lane_head` is what holds the lane back.
    """

    now: int
    action: Action
    policy: KindPolicy | None
    executors: Sequence[ExecutorRecord]
    owner_seen_at: int | None
    lane_head: "Situation | None"


@dataclass(frozen=True, slots=True)
class SqliteFacts:
    """What a connection to SQLite said of itself: its library's copy of SQLite, its file and the file's schema."""

    copy: Literal["stdlib", "apsw"]
    file: str
    version: int
    readable_from: int


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """What a connection to Postgres said of itself: its database, the Postgres schema of our tables, its version.

    `database` is the cluster's system identifier and the database's oid, as text.
    """

    database: str
    schema: str
    version: int
    readable_from: int


ConnectionFacts: TypeAlias = SqliteFacts | PostgresFacts
"""What a caller's connection said of itself."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """The version of a schema before and after its migration; `before` is `None` where there was none.

    `grants` is the SQL that lets another role work with the tables, in databases that have roles.
    """

    before: int | None
    after: int
    grants: str | None = None


class Storage(Protocol):
    """A database that keeps actions. One method is one state change."""

    @property
    def url(self) -> str:
        """Where the actions are; holds no secret."""

    @property
    def schema(self) -> str | None:
        """The Postgres schema of our tables; `None` in a database of another kind."""

    async def open(self) -> None:
        """Connect, and migrate the schema. Raises `SchemaTooNew`, `UnsupportedSqlite` or `MixedSqliteCopies`."""

    async def close(self) -> None:
        """Let what was submitted finish, and release every connection and thread."""

    async def migrate(self) -> None:
        """Bring the schema to this build's version in one transaction; a newer readable one is left as it is."""

    async def declare_kinds(self, declarations: Sequence[KindDeclaration]) -> dict[str, KindPolicy]:
        """Store what was declared and return what holds: `delivery` and `requires_approval` only become stricter.

        A declaration with other settings than the last ends the kind's cooling; one without settings leaves both.
        """

    async def allow(self, kind: str, delivery: Delivery | None, requires_approval: bool | None) -> KindPolicy:
        """Set a kind's guarantee on a person's word. Raises `LooseningRefused` while one of its actions is fenced."""

    async def enqueue(
        self,
        requests: Sequence[ActionRequest],
        *,
        proposed: bool = False,
        supersede: Supersede | None = None,
    ) -> list[Enqueued]:
        """Insert every request whose key is new, all in one transaction, in order.

        Raises `KeyOfAnotherKind`; with `supersede` also `LaneBusy` and `UndecodableInLane`. Then nothing is stored.
        """

    async def claim(self, served: Sequence[Served], limit: int, owner: str, *, reclaim: bool = True) -> list[Claim]:
        """Take due heads, oldest due first: EXECUTING, epoch + 1, attempt + 1, a lease for the owner.

        With `reclaim` also actions whose lease was lost.
        Never takes a row that the conditions do not select, one whose kind is paused or cooling, an expired one, nor
        an at-most-once one whose write started. Never reclaims from the same owner.
        """

    async def claim_one(self, served: Served, action_id: int, owner: str) -> Claim | None:
        """Claim this admitted head like any other, ignoring `due_at` and nothing else; `None` when it cannot be."""

    async def begin_write(self, action_id: int, epoch: int, owner: str, window: int) -> Fence | Refusal:
        """Store the fence durably: when it returned a `Fence`, `write_started_at` survives a loss of power."""

    async def settle(self, claim: Claim, settlement: Settlement, hook: Hook | None = None) -> bool:
        """End the claim's attempt and fill its row of the dispatch log; false when it no longer holds the action.

        The hook runs in the same transaction; when it raises, its changes alone are undone and it stays owed. A
        refused settlement still fills the log, with `recorded` false.
        """

    async def let_go(self, claim: Claim, settlement: Settlement) -> None:
        """Give up a settlement that the database refuses: log it with `recorded` false, and clear the lease's owner."""

    async def reap(self, served: Sequence[Served], owner: str, hooks_: Hooks, limit: int = 100) -> list[Action]:
        """End what expired, and lost leases that nobody may claim again; also shorten leases from the future.

        Leaves rows alone that the conditions do not select, and the owner's own.
        """

    async def sweep(self, kinds_: Sequence[str], limit: int = 500) -> int:
        """Delete actions that ended longer ago than their kind's retention, and those to be forgotten."""

    async def decide(self, action_id: int, decision: Decision) -> Action:
        """Admit, refuse or withdraw.

        Raises `NoSuchAction`, `ActionRunning`, `DigestMismatch` or `NotPossible`.
        """

    async def withdraw_run(self, run_id: str, decision: Decision) -> Sequence[Action]:
        """Withdraw every action of a run that has not started, latest first; returns them as they ended."""

    async def cool_down(self, kind: str, reason: str, wait: int | None) -> int:
        """Put a kind to rest for `wait`, or for a long wait, and return until when; a longer cooling stays."""

    async def pause(self, kind: str, by: str) -> bool:
        """Stop claims of the kind in every process until `resume`; false when nobody declared the kind."""

    async def resume(self, kind: str, *, copied: bool = False) -> bool:
        """End the kind's pause and its cooling; false when nobody declared the kind.

        What a copy to another database holds is resumed only with `copied`; raises `NotPossible`.
        """

    async def erase(self, subject_account_id: str) -> int:
        """Delete the subject's actions in every state, with what was logged of them; returns how many."""

    async def forget(self, idempotency_key: str) -> bool:
        """Delete an ended action now (its owed hook first), a live one when it ends; false when there is none."""

    async def get(self, *, action_id: int | None = None, key: str | None = None) -> Action | None:
        """One action by id or by idempotency key."""

    async def list(self, query: Query) -> Sequence[Action]:
        """Actions that fit, newest first."""

    async def lane(self, lane_key: str) -> Sequence[Action]:
        """The open actions of a lane, in their order."""

    async def attempts(self, action_id: int) -> Sequence[AttemptRecord]:
        """The dispatch log of an action, oldest first."""

    async def situation(self, action_id: int) -> Situation | None:
        """What decides what the action waits for."""

    async def backlog(self, served: Mapping[str, Condition]) -> Sequence[Backlog]:
        """What waits, by kind. Rows of a served kind that its condition does not select are not counted."""

    async def kinds(self) -> Mapping[str, KindPolicy]:
        """Every declared kind."""

    async def next_due(self, served: Sequence[Served], owner: str) -> int | None:
        """Milliseconds until something can be claimed or a hook is owed; `None` when nothing is foreseen."""

    async def owed_hooks(self, hooks_: Hooks, limit: int = 20) -> int:
        """Run hooks that are owed and due; returns how many ran. One that raises is owed again, with backoff."""

    async def heartbeat(self, owner: str, version: str, kinds_: Mapping[str, Condition]) -> None:
        """Say that the executor is there, and drop executors that have not been seen for a day."""

    async def leave(self, owner: str) -> None:
        """Say that the executor is gone."""

    def mark(self) -> int:
        """Where the database stands now, to be compared by `changed`."""

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until a commit after the mark `since`, at most `timeout` seconds; true when there may have been one."""

    async def now(self) -> int:
        """The database's clock."""

    def require_connection(self, facts: ConnectionFacts) -> None:
        """Refuse a connection of the caller's: of another database or kind of database, or another copy of SQLite.

        Raises `WrongDatabase`, `MixedSqliteCopies`, `NoSchema` or `SchemaTooNew`.
        """
