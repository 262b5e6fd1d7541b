"""What will happen in a simulation, all of it drawn from one seed before it begins.

A plan is data: leaving events out of it gives a smaller plan, which is how a failure is shrunk. Times and waits are
seconds.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from edgeoutbox.kinds import Delivery

Does: TypeAlias = Literal[
    # before the fence
    "fails early", "rests", "defers", "cools", "is down", "skips", "hangs early", "is cancelled early", "gives up",
    # behind it: the effect exists, and the answer says so, is lost, or comes too late
    "delivers", "delivers, answer lost", "delivers, no answer", "delivers late", "delivers, cancelled",
    "delivers, doubts", "delivers, ignores its end", "delivers, babbles",
    # behind it: no effect exists, and the answer proves it or is lost
    "refuses", "is busy", "limits", "loses it", "hangs",
]  # fmt: skip
"""What one attempt comes to: what the adapter does, and what the provider does to it."""

Via: TypeAlias = Literal["outbox", "proposal", "commit", "rollback"]
"""How an action is enqueued: by the outbox, as a proposal, or in an application's own transaction."""

Moment: TypeAlias = Literal["now", "before a commit", "after a commit", "calling", "called"]
"""When an executor dies: now, or when it next commits or calls the provider."""


@dataclass(frozen=True)
class KindPlan:
    """A kind of the simulated application. `since` is the first build that knows it; no build is the 9th."""

    name: str
    delivery: Delivery
    hooked: bool = False
    requires_approval: bool = False
    since: int = 1


KINDS = (
    KindPlan("letter", Delivery.AT_MOST_ONCE, hooked=True),
    KindPlan("contract", Delivery.AT_MOST_ONCE, requires_approval=True),
    KindPlan("post", Delivery.READS_BACK, hooked=True),
    KindPlan("call", Delivery.REPEATABLE),
    KindPlan("draft", Delivery.WRITES_NOTHING, hooked=True),
    KindPlan("news", Delivery.AT_MOST_ONCE, since=2),
    KindPlan("ghost", Delivery.AT_MOST_ONCE, since=9),
)

NOTICES = {"plain": 1, "fancy": 2}
"""The variants of every kind, and the first build that knows each."""

OLD, NEW = 1, 2
"""The two builds of the application."""


@dataclass(frozen=True)
class Turn:
    """One attempt: it thinks, fences, calls, and waits for the answer."""

    does: Does = "delivers"
    think: float = 0.0
    takes: float = 0.0
    wait: float = 5.0
    raises: bool = False


@dataclass(frozen=True)
class Enqueue:
    """A program wants an effect. Its attempts take the turns in order; what comes after them is delivered."""

    key: str
    kind: str
    notice: str = "plain"
    lane: str | None = None
    subject: str | None = None
    due_in: float | None = None
    expires_in: float | None = None
    max_attempts: int | None = None
    supersede: bool = False
    via: Via = "outbox"
    hook_fails: int = 0
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class Decide:
    """A person decides about an action."""

    key: str
    verdict: Literal["admit", "refuse", "withdraw", "withdraw_lost", "forget"]


@dataclass(frozen=True)
class Erase:
    """A person is to be forgotten."""

    subject: str


@dataclass(frozen=True)
class Pause:
    """A person pauses a kind; without `by`, resumes it."""

    kind: str
    by: str | None


@dataclass(frozen=True)
class RunNow:
    """A person wants an action carried out at once, by this executor, and may lose interest."""

    executor: str
    key: str
    patience: float


@dataclass(frozen=True)
class Crash:
    """An executor dies, now or at its next such moment, and another is started in its place."""

    executor: str
    moment: Moment
    back_after: float


@dataclass(frozen=True)
class Stop:
    """An executor is stopped in good order, and started again."""

    executor: str
    back_after: float


@dataclass(frozen=True)
class Suspend:
    """The machine sleeps: now, or between the next fence's commit and its answer."""

    seconds: float
    fencing: bool = False


@dataclass(frozen=True)
class SetClock:
    """The wall clock is set."""

    seconds: float


@dataclass(frozen=True)
class Disturb:
    """For some time another program holds the write lock, the disk is full, or each commit takes `latency`."""

    how: Literal["locked", "full", "slow"]
    seconds: float
    latency: float = 0.0


What: TypeAlias = Enqueue | Decide | Erase | Pause | RunNow | Crash | Stop | Suspend | SetClock | Disturb


@dataclass(frozen=True)
class Event:
    """Something that happens some seconds after the start. `number` is its place in the whole plan."""

    number: int
    at: float
    what: What


@dataclass(frozen=True)
class Plan:
    """Everything that a simulation does not compute. `tick` is how often executors look again, in seconds.

    `drawn` is how many events the seed has, also when some were left out.
    """

    seed: int
    driver: str
    executors: dict[str, int]
    lease: float
    window: float
    max_attempts: int
    tick: float
    drawn: int
    events: tuple[Event, ...]
    kinds: tuple[KindPlan, ...]

    def only(self, numbers: Sequence[int]) -> "Plan":
        """The same plan with only these events."""
        kept = frozenset(numbers)
        return replace(self, events=tuple(event for event in self.events if event.number in kept))


_MOMENTS: tuple[Moment, ...] = ("now", "before a commit", "after a commit", "calling", "called")
_BORING: tuple[Does, ...] = ("delivers",)
_EARLY: tuple[Does, ...] = (
    "fails early", "rests", "defers", "cools", "cools", "is down", "skips", "hangs early", "is cancelled early",
    "gives up",
)  # fmt: skip
_CERTAIN: tuple[Does, ...] = ("refuses", "is busy", "is busy", "limits")
_DOUBTFUL: tuple[Does, ...] = (
    "delivers, answer lost", "delivers, no answer", "delivers late", "delivers, cancelled", "delivers, doubts",
    "delivers, ignores its end", "delivers, babbles", "loses it", "hangs",
)  # fmt: skip


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    return _Drawing(seed).plan()


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.any = random.Random(seed)  # noqa: S311 - no secret
        self.kinds = self.any.sample(KINDS, self.any.choice((1, 2, 2, 3)))
        self.lanes = [None, *(f"lane{number}" for number in range(self.any.choice((1, 1, 2, 3))))]
        self.executors = self.any.choice(
            ({"A": NEW}, {"A": NEW, "B": NEW}, {"A": NEW, "B": OLD}, {"A": OLD, "B": NEW}, {"A": OLD})
        )
        self.window = self.any.choice((5.0, 20.0, 60.0))
        self.lease = self.window * self.any.choice((1.2, 2.0, 3.0))
        self.trouble = self.any.choice((0.2, 0.5, 0.8))
        """How much of what can go wrong does."""
        self.enqueued: list[Enqueue] = []

    def plan(self) -> Plan:
        events = []
        at = 0.0
        for number in range(self.any.choice((5, 10, 15, 22))):
            at += self.any.choice((0.0, 0.0, 0.05, 1.0, 4.0, self.window, 2 * self.lease)) * self.any.random()
            events.append(Event(number, round(at, 3), self._what()))
        return Plan(
            self.seed,
            self.any.choice(("stdlib", "stdlib", "apsw")),
            self.executors,
            self.lease,
            self.window,
            self.any.choice((2, 4, 6)),
            self.any.choice((1.0, 10.0, 30.0)),
            len(events),
            tuple(events),
            tuple(self.kinds),
        )

    def _what(self) -> What:
        if not self.enqueued or self.any.random() < 0.55:  # noqa: PLR2004 - about half
            return self._enqueue()
        choices: tuple[tuple[int, Callable[[], What]], ...] = (
            (4, self._crash),
            (1, lambda: Stop(self._executor(), self._seconds())),
            (4, self._decide),
            (1, lambda: Erase(self.any.choice(("jane", "joe")))),
            (2, lambda: Pause(self._kind().name, self.any.choice(("ann", None)))),
            (2, lambda: RunNow(self._executor(), self._key(), self.any.choice((0.0, 0.5, 1e6)))),
            (2, lambda: Suspend(self._seconds(), self.any.choice((False, True)))),
            (2, lambda: SetClock(self._seconds() * self.any.choice((-1, 1, 1)))),
            (2, self._disturb),
        )
        return self.any.choices([make for _, make in choices], [weight for weight, _ in choices])[0]()

    def _enqueue(self) -> Enqueue:
        repeats = self.any.random()
        if self.enqueued and repeats < 0.1:  # noqa: PLR2004 - some keys come twice, half of them with the same content
            earlier = self.any.choice(self.enqueued)
            kind = next(known for known in KINDS if known.name == earlier.kind)
            again = earlier if repeats < 0.05 else self._request(earlier.key, kind)  # noqa: PLR2004 - half
        else:
            kind = self._kind()
            again = self._request(f"{kind.name}:{len(self.enqueued)}", kind)
        self.enqueued.append(again)
        return again

    def _request(self, key: str, kind: KindPlan) -> Enqueue:
        drawn: Via = self.any.choice(
            ("outbox", "outbox", "outbox", "outbox", "commit", "commit", "rollback", "proposal")
        )
        via: Via = "proposal" if kind.requires_approval else drawn
        lane = self.any.choice(self.lanes)
        return Enqueue(
            key,
            kind.name,
            notice=self.any.choice(("plain", "plain", "plain", "fancy")),
            lane=lane,
            subject=self.any.choice((None, "jane", "joe")),
            due_in=self.any.choice((None, None, None, self._seconds())),
            expires_in=self.any.choice((None, None, self._seconds())),
            max_attempts=self.any.choice((None, None, None, 1, 2)),
            supersede=via == "outbox" and lane is not None and self.any.random() < 0.25,  # noqa: PLR2004 - a quarter
            via=via,
            hook_fails=self.any.choice((0, 0, 0, 1, 3)) if kind.hooked else 0,
            turns=tuple(self._turn() for _ in range(self.any.choice((0, 1, 3, 5)))),
        )

    def _turn(self) -> Turn:
        of = self.any.choice((_EARLY, _CERTAIN, _DOUBTFUL)) if self.any.random() < self.trouble else _BORING
        return Turn(
            self.any.choice(of),
            think=self.any.choice((0.0, 0.0, 0.5, self.window * 0.9)) * self.any.random(),
            takes=self.any.choice((0.01, 0.5, self.window * 0.9)) * self.any.random(),
            wait=self._seconds(),
            raises=self.any.random() < 0.5,  # noqa: PLR2004 - half
        )

    def _decide(self) -> Decide:
        return Decide(
            self._key(),
            self.any.choice(("admit", "admit", "admit", "refuse", "withdraw", "withdraw_lost", "forget")),
        )

    def _crash(self) -> Crash:
        return Crash(self._executor(), self.any.choice(_MOMENTS), self._seconds())

    def _disturb(self) -> Disturb:
        latency = self.any.choice((0.05, 2.0, self.window)) * self.any.random()
        return Disturb(self.any.choice(("locked", "full", "slow")), self._seconds(), latency)

    def _key(self) -> str:
        return self.any.choice(self.enqueued).key

    def _executor(self) -> str:
        return self.any.choice(tuple(self.executors))

    def _kind(self) -> KindPlan:
        return self.any.choice(self.kinds)

    def _seconds(self) -> float:
        return round(self.any.choice((2.0, self.window, self.lease, 3 * self.lease)) * self.any.random(), 3)
