"""The balance: what the producer was told, what the database says, and what the relay and the provider have.

Nothing here asks the product what it thinks: the rows are read, and compared with the two records outside of it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soaking.past import DAY, Moment
from edgeoutbox.cli.demo.figures import Sent, out_of_order
from edgeoutbox.states import State

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One action as the run left it."""

    id: int
    key: str
    kind: str
    lane: str | None
    state: str
    stop_reason: str | None


@dataclass
class Told:
    """What the producer was told: of each key whether it was committed, and how some have to end."""

    committed: dict[str, bool] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)

    @property
    def there(self) -> set[str]:
        """The keys that must be in the database, and no others."""
        return {key for key, committed in self.committed.items() if committed}


def read_told(path: Path) -> Told:
    """The producer's ledger. A later line of a key counts more than an earlier one."""
    told = Told()
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "ends" in entry:
            told.ends[entry["key"]] = entry["ends"]
        else:
            told.committed[entry["key"]] = entry["committed"]
    return told


def unbalanced(rows: Sequence[Row], told: Told, order: Sequence[str]) -> list[str]:
    """What does not hold, a line each. `order` has the key of each thing that arrived, in its order."""
    by_key = {row.key: row for row in rows}
    times = Counter(order)
    there = told.there
    findings = {
        "committed, and not in the database": there - set(by_key),
        "in the database, and not committed": set(by_key) - there,
        "not ended": [row.key for row in rows if row.stop_reason is None],
        "ended in another way than was answered": [
            key for key, ends in told.ends.items() if key in there and key in by_key and by_key[key].stop_reason != ends
        ],
        "arrived more than once": [key for key, count in times.items() if count > 1],
        "arrived, and not committed": set(times) - there,
        "DONE, and never arrived": [
            r.key for r in rows if r.state == "DONE" and r.kind != "draft" and not times[r.key]
        ],
        "FAILED or CANCELLED, and arrived": [
            row.key for row in rows if row.state in {"FAILED", "CANCELLED"} and times[row.key]
        ],
        "UNCERTAIN, though not at most once": [r.key for r in rows if r.state == "UNCERTAIN" and r.kind != "email"],
    }
    bent = out_of_order(_in_lanes(rows), order)
    return [*lines(findings), *([f"{bent} arrived after a later one of their lane"] if bent else [])]


def unswept(moments: Iterable[Moment], left: Mapping[int, int], swept_at: Sequence[int]) -> list[str]:
    """What the sweep did wrong: `left` counts the rows of each moment that are left.

    `swept_at` has the time before which everything due must be gone, and the latest at which anything could be swept.
    """
    must, could = swept_at
    found = []
    for moment in moments:
        due = moment.ended_at + DAY * 1000
        there = left.get(moment.ended_at, 0)
        if due <= must and there:
            found.append(f"{there} actions, due to be swept {(could - due) / 1000:.0f} s ago, are there")
        if due > could and there != moment.count:
            found.append(f"{moment.count - there} actions were swept {(due - could) / 1000:.0f} s too early")
    return found[:SHOWN]


def _in_lanes(rows: Iterable[Row]) -> dict[str, Sent]:
    return {row.key: Sent(row.id, row.key, row.lane, State(row.state)) for row in rows if row.lane is not None}


def lines(findings: Mapping[str, Iterable[str]]) -> list[str]:
    """A line for each finding that has keys."""
    return [_line(what, keys) for what, keys in findings.items() if keys]


def never(counts: Mapping[str, int]) -> list[str]:
    """A line for each thing that was planned and did not happen: what it would have broken nobody saw."""
    return [f"{what}: not once in the whole run" for what, count in counts.items() if count < 1]


def _line(what: str, keys: Iterable[str]) -> str:
    listed = sorted(keys)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{len(listed)} {what}: {', '.join(listed[:SHOWN])}{more}"


def by_state(rows: Iterable[Row]) -> Iterator[tuple[str, int]]:
    """How many ended in which way, most first."""
    yield from Counter(f"{row.state} {row.stop_reason}" for row in rows).most_common()
