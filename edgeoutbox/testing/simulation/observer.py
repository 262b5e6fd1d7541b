"""Reads, after each commit, what it changed, and tells the model."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from edgeoutbox.testing.simulation.disk import Disk
from edgeoutbox.testing.simulation.model import Model
from edgeoutbox.testing.simulation.seen import Actor, Change, Commit, Logged, Row, Weather

TOUCHED = "SELECT MAX(seq), json_group_array(DISTINCT action_id) FROM simulation_touched WHERE seq > ?"

ACTIONS = """
SELECT id, kind, lane_key, idempotency_key, state, is_head, epoch, attempt, max_attempts, lease_owner, lease_expires_at,
       write_started_at, due_at, expires_at, stop_reason, payload, last_error, subject_account_id, forget_at_end,
       payload_digest
FROM agent_action WHERE id IN (SELECT value FROM json_each(?))
"""

ATTEMPTS = """
SELECT action_id, epoch, owner, write_started_at, settled_at, result, recorded
FROM agent_action_attempt WHERE action_id IN (SELECT value FROM json_each(?)) ORDER BY epoch
"""

OWED = "SELECT action_id, due_at FROM agent_action_ended"

TOLD = "SELECT action_id, times FROM simulation_told WHERE action_id IN (SELECT value FROM json_each(?))"

WEATHER = "SELECT kind, paused_by IS NOT NULL, COALESCE(cooling_until, 0) FROM agent_action_kind"


@dataclass
class Observer:
    """Sees every commit through a connection of its own."""

    disk: Disk
    model: Model
    note: Callable[[str], None]
    moments: list[int] = field(default_factory=list)
    """When something becomes possible by itself, of the database's clock; read anew after each commit."""
    fenced: bool = False
    """Whether the last commit stored a fence."""

    def __post_init__(self) -> None:
        self._connection = self.disk.open()
        self._seen = 0
        self._owed: dict[int, int] = {}
        self._lines: dict[int, str] = {}

    def look(self, actor: Actor) -> None:
        """Judge what the actor has committed, note whether it stored a fence. Raises `Broken`."""
        self.fenced = False
        [(last, touched)] = self._connection.execute(TOUCHED, (self._seen,))
        if last is None:
            return
        self._seen = last
        self.disk.written()
        rows = {
            row[0]: Row._make([*row[:5], bool(row[5]), *row[6:18], bool(row[18]), row[19]])
            for row in self._connection.execute(ACTIONS, (touched,))
        }
        logs: dict[int, dict[int, Logged]] = {}
        for action_id, *attempt, recorded in self._connection.execute(ATTEMPTS, (touched,)):
            logged = Logged._make([*attempt, None if recorded is None else bool(recorded)])
            logs.setdefault(action_id, {})[logged.epoch] = logged
        told: dict[int, int] = {row[0]: row[1] for row in self._connection.execute(TOLD, (touched,))}
        self._owed = {row[0]: row[1] for row in self._connection.execute(OWED)}
        weather = {kind: Weather(bool(paused), until) for kind, paused, until in self._connection.execute(WEATHER)}
        model = self.model
        changes = tuple(
            Change(
                action_id,
                model.rows.get(action_id),
                rows.get(action_id),
                model.logs.get(action_id, {}),
                logs.get(action_id, {}),
                action_id in self._owed,
                told.get(action_id, 0),
            )
            for action_id in sorted(each for each in json.loads(touched) if each is not None)
        )
        for change in changes:
            self._note(actor, change)
        self.fenced = any(True for change in changes for _ in change.fenced)
        model.committed(Commit(actor, self.disk.clock.milliseconds, self.disk.clock.boot(), changes, weather))
        self.moments = [*self._owed.values(), *(one.cooling_until for one in weather.values() if one.cooling_until)]
        for row in model.rows.values():
            if row.open:
                self.moments.append(row.lease_until if row.lease_until is not None else row.due_at)
                if row.expires_at is not None:
                    self.moments.append(row.expires_at)

    def held_by(self, key: str) -> int | None:
        """The action that holds a key."""
        found = self._connection.execute("SELECT id FROM agent_action WHERE idempotency_key = ?", (key,))
        return found[0][0] if found else None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _note(self, actor: Actor, change: Change) -> None:
        row = change.after
        line = f"#{change.id} is gone"
        if row is not None:
            fence = " fenced" if row.fenced_at is not None else ""
            line = f"#{row.id} {row.key} {row.state} {row.stop_reason or ''} e{row.epoch} a{row.attempt}{fence}"
        if change.owed:
            line += " owed"
        line += "".join(f" [e{one.epoch} {one.result}{'' if one.recorded else ', too late'}]" for one in change.settled)
        if self._lines.get(change.id) != line:
            self._lines[change.id] = line
            self.note(f"{actor.name} commits {line}")
