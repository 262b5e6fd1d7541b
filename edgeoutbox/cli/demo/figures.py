"""What became of the demo's emails, from the database and from the relay's own record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeoutbox.cli.demo.performance import Found
from edgeoutbox.cli.demo.producer import recipient_of
from edgeoutbox.states import State


@dataclass(frozen=True, slots=True)
class Sent:
    """One action as it stands in the database."""

    id: int
    key: str
    lane: str
    state: State


@dataclass(frozen=True, slots=True)
class Figures(Found):
    """The result of the demo of email. `kills` and `seconds` come from the stage, everything else from the two records.

    `delivered` counts DONE, `uncertain` UNCERTAIN, `uncertain_arrived` those of them that the relay holds, `duplicates`
    messages beyond the first of an action, `lost` actions that are DONE and not in the relay's record, or that have
    not ended, `out_of_order` messages that came after a later one of their lane.
    """

    delivered: int
    uncertain: int
    uncertain_arrived: int
    duplicates: int
    lost: int
    out_of_order: int
    kills: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether nothing was sent twice, lost or out of order, and everything was sent or said to be uncertain."""
        told = self.delivered + self.uncertain == self.actions > 0
        return told and not (self.duplicates or self.lost or self.out_of_order)

    def rows(self) -> Sequence[tuple[str, int, str]]:
        """The figures for people."""
        arrived = f"in the relay's hands at the kill; {self.uncertain_arrived} had arrived"
        return [
            ("sent once", self.delivered, "the relay said that it has them"),
            ("sent twice", self.duplicates, "copies beyond the first in the relay's record"),
            ("uncertain", self.uncertain, arrived),
            ("lost", self.lost, "done but not in the relay's record, or not ended"),
            ("order broken", self.out_of_order, "came after a later one of their lane"),
        ]

    def verdict(self, *, good: bool) -> str:
        """One sentence."""
        said = "Nothing was sent twice, lost or out of order" if good else "This is not what was promised"
        return f"{said}: {self.actions} emails, {self.kills} kill, {self.seconds:.1f} s."


def figures(actions: Sequence[Sent], arrivals: Sequence[str], *, kills: int, seconds: float) -> Figures:
    """Count; `arrivals` are the recipients of the relay's messages, in the order in which it took them."""
    times = Counter(arrivals)
    of = {recipient_of(action.key): action for action in actions}
    uncertain = [action for action in actions if action.state is State.UNCERTAIN]
    done = [action for action in actions if action.state is State.DONE]
    return Figures(
        actions=len(actions),
        delivered=len(done),
        uncertain=len(uncertain),
        uncertain_arrived=sum(1 for action in uncertain if times[recipient_of(action.key)]),
        duplicates=sum(count - 1 for count in times.values()),
        lost=sum(1 for action in done if not times[recipient_of(action.key)])
        + sum(1 for action in actions if not action.state.ended),
        out_of_order=out_of_order(of, arrivals),
        kills=kills,
        seconds=round(seconds, 2),
    )


def out_of_order(of: Mapping[str, Sent], arrivals: Sequence[str]) -> int:
    """How many arrivals came after a later one of their lane; `of` says which action each is of."""
    latest: dict[str, int] = {}
    bent = 0
    for recipient in dict.fromkeys(arrivals):
        action = of.get(recipient)
        if action is None:
            continue
        bent += action.id < latest.get(action.lane, 0)
        latest[action.lane] = max(action.id, latest.get(action.lane, 0))
    return bent
