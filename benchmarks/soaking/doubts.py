"""Why emails are UNCERTAIN: each needs a cause that happened, or the soak would let doubts through that nobody has."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.soaking.kinds import LIMITS

WINDOW = round(LIMITS["write_window"] * 1000)

# What the last attempt of each email that is UNCERTAIN says. Times are milliseconds.
DOUBTS = """
SELECT a.idempotency_key, a.stop_reason, t.owner, t.write_started_at, t.settled_at, t.recorded
FROM agent_action AS a LEFT JOIN agent_action_attempt AS t ON t.action_id = a.id AND t.epoch = a.epoch
WHERE a.state = 'UNCERTAIN' AND a.kind = 'email' AND a.ended_at >= {began}
"""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An email that is UNCERTAIN, and its last attempt."""

    key: str
    stop_reason: str
    owner: str | None
    fenced: int | None
    settled: int | None
    recorded: int | None


@dataclass
class Causes:
    """What happened that leaves a doubt: emails that the relay did not answer, and when which executor was killed.

    `asked` counts the emails that the relay was to answer, `share` is how many of them it does not, by its weather.
    """

    share: float
    asked: int = 0
    unanswered: list[str] = field(default_factory=list)
    killed: dict[str, int] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """How many emails bad weather may leave without an answer: five standard deviations beyond its share."""
        usual = self.asked * self.share
        return round(usual + 5 * math.sqrt(usual)) + 1


def unexplained(doubts: Iterable[Doubt], causes: Causes) -> dict[str, list[str]]:
    """The emails that are UNCERTAIN without a cause, by what is wrong with them."""
    every = list(doubts)
    lost = len(causes.unanswered)
    return {
        "UNCERTAIN, and nothing that happened explains it": [
            doubt.key for doubt in every if not _EXPLAINS.get(doubt.stop_reason, _nothing)(doubt, causes)
        ],
        "left without an answer by the relay, and not UNCERTAIN": sorted(
            set(causes.unanswered) - {doubt.key for doubt in every}
        ),
        f"left without an answer by the relay, which is more than {causes.most} of {causes.asked}": (
            causes.unanswered if lost > causes.most else []
        ),
    }


def _nothing(_: Doubt, __: Causes) -> bool:
    return False


def _not_answered(doubt: Doubt, causes: Causes) -> bool:
    """The relay took the email and did not say so, or not within the window."""
    if doubt.fenced is None or doubt.settled is None or not doubt.recorded:
        return False
    return doubt.key in causes.unanswered or doubt.settled - doubt.fenced >= WINDOW


def _lease_lost(doubt: Doubt, causes: Causes) -> bool:
    """Its executor was killed while the email was fenced, or came too late to say how it ended."""
    if doubt.fenced is None or doubt.owner is None:
        return False
    if doubt.settled is not None:
        return doubt.recorded == 0
    return causes.killed.get(name_of(doubt.owner), 0) >= doubt.fenced


def name_of(owner: str) -> str:
    """The executor's own name in what the database calls an owner."""
    return owner.partition(":")[0]


_EXPLAINS: Mapping[str, Callable[[Doubt, Causes], bool]] = {
    "NO_CONFIRMATION": _not_answered,
    "ERROR_AFTER_WRITE": _not_answered,
    "LEASE_LOST_AFTER_WRITE": _lease_lost,
}
