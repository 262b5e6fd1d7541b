"""Copying actions from one database to another: what is said to the source, and what to the destination.

An action is known at the destination by its idempotency key. What was carried over once is also noted there, by the
digest of its key: an action may end and be deleted at the destination before a copy is repeated, and must then not come
back.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, TypeAlias

from edgeoutbox.errors import NotPossible, StorageError
from edgeoutbox.keys import digest_of_stored
from edgeoutbox.storage.protocol import KindPolicy
from edgeoutbox.storage.statements.executors import SEEN_WITHIN
from edgeoutbox.storage.statements.kinds import HELD_BY, POLICY, policy_of
from edgeoutbox.storage.statements.rows import FREE_TEXT, NAMES, column
from edgeoutbox.storage.statements.steps import Row, Statement, Steps

_OPEN = ("PROPOSED", "ADMITTED", "EXECUTING")

_CARRIED = {
    False: "(edgeoutbox_open(agent_action)"
    " OR EXISTS (SELECT 1 FROM agent_action_ended WHERE action_id = agent_action.id))",
    True: "1 = 1",
}
"""Which actions are carried: those that have not ended or whose hook is owed, or all."""

ACTION = tuple(name for name in NAMES if name not in {"id", "is_head"})
"""The columns of an action that are carried as they are."""

ATTEMPT = (
    "epoch", "attempt", "owner", "started_at", "lease_expires_at", "write_started_at", "settled_at", "result", "reason",
    "evidence", "readback_ref", "recorded",
)  # fmt: skip
"""The same for its rows of the dispatch log."""

OWED = ("kind", "due_at", "tries", "forget")
"""The same for the hook that is owed."""

_IS_HELD = """
CASE WHEN state = 'EXECUTING' AND lease_owner IS NOT NULL AND lease_expires_at > edgeoutbox_now() THEN 1 ELSE 0 END
"""

_TEXT_OF_ATTEMPT = frozenset({"owner", "result", "reason", "evidence", "readback_ref"})
_JSON = frozenset({"payload", "evidence"})

# Who may still be at work, and how long ago it was seen.
THERE = f"""
SELECT owner, version, edgeoutbox_now() - seen_at FROM agent_action_executor
WHERE seen_at >= edgeoutbox_now() - {SEEN_WITHIN} ORDER BY owner LIMIT 1
"""

# Whose lease has not ended: its holder could still begin its write. Served by ix_agent_action_lease.
HELD = """
SELECT id, kind, lease_expires_at - edgeoutbox_now() FROM agent_action
WHERE state = 'EXECUTING' AND lease_owner IS NOT NULL AND lease_expires_at > edgeoutbox_now()
ORDER BY lease_expires_at DESC LIMIT 1
"""

# A kind that nobody declared counts as at most once.
KNOW_ALL = """
INSERT INTO agent_action_kind (kind)
SELECT DISTINCT kind FROM agent_action AS action
WHERE NOT EXISTS (SELECT 1 FROM agent_action_kind AS known WHERE known.kind = action.kind)
"""

_AFTER = "; before paused by "

# Whom it was paused by already stands behind, and goes over: resumed here by that name, it would be sent twice.
HOLD = f"""
UPDATE agent_action_kind SET paused_by = CAST(? AS TEXT) || COALESCE('{_AFTER}' || paused_by, '')
WHERE paused_by IS NULL OR paused_by NOT LIKE '{HELD_BY}%'
"""

HELD_KIND = f"SELECT paused_by FROM agent_action_kind WHERE paused_by LIKE '{HELD_BY}%' LIMIT 1"

LAST = "SELECT COALESCE(MAX(id), 0) FROM agent_action"

HAS_ACTIONS = "SELECT 1 FROM agent_action WHERE kind = ? LIMIT 1"

NEW_KIND = """
INSERT INTO agent_action_kind (
  kind, delivery, instance_level, requires_approval, retention_days, has_ended_hook, paused_by
)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""

STRICTER_KIND = """
UPDATE agent_action_kind
SET delivery = ?, instance_level = ?, requires_approval = ?, has_ended_hook = ?, paused_by = COALESCE(paused_by, ?)
WHERE kind = ?
"""

# Which keys were carried over; it stays, so that a repeated copy knows also what was deleted since.
NOTES = "CREATE TABLE IF NOT EXISTS agent_action_copied (key_digest TEXT NOT NULL PRIMARY KEY)"

NOTE = "INSERT INTO agent_action_copied (key_digest) VALUES (?)"

Text: TypeAlias = str | bytes | None
"""Free text; bytes where it is not UTF-8, which SQLite stores and Postgres does not."""


class Unfit(StorageError):
    """The destination does not take one of these actions; it took none."""


class Outcome(StrEnum):
    """What became of an action; anything but the first two leaves it at the source, and what follows in its lane."""

    COPIED = "copied"
    PRESENT = "it is at the destination"
    OTHER = "the destination has an action of another kind or payload with its idempotency key"
    EXECUTING = "it is executing at the source; copy again once that has ended"
    LANE_BUSY = "it had started, and actions of its lane wait at the destination; copy again once these have ended"
    BEHIND = "an action ahead of it in its lane was not copied"
    UNFIT = (
        "the destination does not take it: its text is not UTF-8 or has a NUL, its JSON is not read there, or a "
        "trigger of your own refuses it"
    )

    @property
    def at_destination(self) -> bool:
        """Whether the destination has it, or had it."""
        return self in {Outcome.COPIED, Outcome.PRESENT}


@dataclass(frozen=True, slots=True)
class Carried:
    """An action on its way: its id at the source, its columns, its dispatch log, and the hook that it is owed.

    `held` is whether somebody at the source may still call its provider.
    """

    id: int
    held: bool
    values: Mapping[str, Any]
    attempts: Sequence[Row]
    owed: Row | None

    @property
    def key(self) -> Text:
        """The idempotency key."""
        key: Text = self.values["idempotency_key"]
        return key

    @property
    def key_digest(self) -> str:
        """The digest that the key is noted by."""
        key = self.key
        return hashlib.sha256(key if isinstance(key, bytes) else (key or "").encode()).hexdigest()

    @property
    def everything(self) -> Iterator[Any]:
        """Every value that is carried."""
        return chain(self.values.values(), *self.attempts, self.owed or ())

    @property
    def waits_in(self) -> Text:
        """The lane in which it holds a place, if any."""
        lane: Text = self.values["lane_key"] if self.values["state"] in _OPEN else None
        return lane


def hold(by: str) -> Steps[tuple[dict[str, KindPolicy], int]]:
    """Pause every kind of the source, unless somebody is at work there; returns the kinds and the last id.

    To be run while nobody else writes: then whoever claims afterwards sees the pause.
    Raises `NotPossible`, having changed nothing.
    """
    there = yield THERE, ()
    for owner, version, ago in there:
        raise NotPossible(
            f"an executor works on the source: {owner} ({version}), seen {ago // 1000} s ago; stop it first. One that "
            f"died is forgotten {SEEN_WITHIN // 1000} s after it was last seen. The source was not changed"
        )
    held = yield HELD, ()
    for action_id, kind, left in held:
        raise NotPossible(
            f"action {action_id} of kind {kind} is executing at the source, and who started it may still call the "
            f"provider; its lease ends in {left // 1000 + 1} s: try again then. The source was not changed"
        )
    policies = yield from hold_more(by)
    [(last,)] = yield LAST, ()
    return policies, last


def hold_more(by: str) -> Steps[dict[str, KindPolicy]]:
    """Pause also the kinds that came up since."""
    yield KNOW_ALL, ()
    yield HOLD, (by,)
    rows = yield POLICY, ()
    return {row[0]: policy_of(row) for row in rows}


def make_ready() -> Steps[None]:
    """Make what only a destination needs. Raises `NotPossible` when its own actions were copied elsewhere.

    These would count as present, and know nothing of what became of them since.
    """
    held = yield HELD_KIND, ()
    for (by,) in held:
        raise NotPossible(
            f"the destination is on hold: {by}. Its own actions are older than what became of them there, so a copy "
            "back would carry them out again: name a new database"
        )
    yield NOTES, ()


def count(*, everything: bool) -> Steps[int]:
    """How many actions there are to carry."""
    rows = yield f"SELECT COUNT(*) FROM agent_action WHERE {_CARRIED[everything]}", ()
    return int(rows[0][0])


def read(after: int, limit: int, *, everything: bool) -> Steps[list[Carried]]:
    """The next actions by id. To be run on one snapshot."""
    listed = ", ".join(map(column, ACTION))
    sql = f"SELECT id, {_IS_HELD}, {listed} FROM agent_action WHERE id > ? AND {_CARRIED[everything]}"
    actions = yield f"{sql} ORDER BY id LIMIT ?", (after, limit)
    if not actions:
        return []
    ids = [row[0] for row in actions]
    listed = ", ".join(f"edgeoutbox_text({name})" if name in _TEXT_OF_ATTEMPT else name for name in ATTEMPT)
    sql = f"SELECT action_id, {listed} FROM agent_action_attempt WHERE action_id IN ({_places(ids)})"
    log = yield f"{sql} ORDER BY action_id, epoch", ids
    attempts: dict[int, list[Row]] = {}
    for action_id, *values in log:
        attempts.setdefault(action_id, []).append(tuple(map(_text, values)))
    hooks = yield (
        f"SELECT action_id, {', '.join(OWED)} FROM agent_action_ended WHERE action_id IN ({_places(ids)})",
        ids,
    )
    owed = {action_id: tuple(values) for action_id, *values in hooks}
    return [
        Carried(
            row[0],
            bool(row[1]),
            dict(zip(ACTION, map(_text, row[2:]), strict=True)),
            attempts.get(row[0], ()),
            owed.get(row[0]),
        )
        for row in actions
    ]


def declare(policies: Iterable[KindPolicy]) -> Steps[None]:
    """Let the source's kinds hold at the destination, the stricter of both where it knows them already.

    A pause is carried over when it is a person's.
    """
    for kind in policies:
        paused_by = _person(kind.paused_by)
        rows = yield f"{POLICY} WHERE kind = ?", (kind.name,)
        if rows:
            there = policy_of(rows[0])
            yield (
                STRICTER_KIND,
                (
                    max(kind.delivery, there.delivery, key=lambda delivery: delivery.strictness).value,
                    int(kind.instance_level or there.instance_level),
                    int(kind.requires_approval or there.requires_approval),
                    int(kind.has_ended_hook or there.has_ended_hook),
                    paused_by,
                    kind.name,
                ),
            )
            continue
        # Actions of a kind that nobody declared were promised the strictest.
        undeclared = yield HAS_ACTIONS, (kind.name,)
        yield (
            NEW_KIND,
            (
                kind.name,
                "at_most_once" if undeclared else kind.delivery.value,
                int(kind.instance_level),
                int(kind.requires_approval),
                kind.retention_days,
                int(kind.has_ended_hook),
                paused_by,
            ),
        )


def _person(paused_by: str | None) -> str | None:
    held = paused_by is not None and paused_by.startswith(HELD_BY)
    return (paused_by or "").partition(_AFTER)[2] or None if held else paused_by


def plan(
    actions: Sequence[Carried], blocked: Collection[Text], new_id: str
) -> Steps[tuple[list[Outcome], list[Statement]]]:
    """What becomes of each action, and the statements that make it so; `blocked` lanes stay at the source.

    To be run while nobody else writes. `new_id` is an SQL expression. Ids are given in the order of the source's, so
    what is at the destination already stays ahead in its lane, and the rest follows in its order.
    """
    keys = [action.key for action in actions]
    listed = ", ".join(map(column, ("idempotency_key", "kind", "payload_digest", "payload")))
    found = yield f"SELECT {listed} FROM agent_action WHERE idempotency_key IN ({_texts(keys)})", keys
    holders = {_text(key): (kind, _content(_text(stored), _text(payload))) for key, kind, stored, payload in found}
    digests = [action.key_digest for action in actions]
    rows = yield (
        f"SELECT key_digest FROM agent_action_copied WHERE key_digest IN ({_texts(digests)})",
        digests,
    )
    noted = {row[0] for row in rows}
    busy = yield from _waiting(actions)
    closed = set(blocked)
    outcomes, statements = [], []
    for action in actions:
        lane = action.waits_in
        outcome = _outcome(action, holders.get(action.key), action.key_digest in noted, lane in busy, lane in closed)
        outcomes.append(outcome)
        if outcome is Outcome.COPIED:
            statements += _insert(action, new_id, is_head=action.values["state"] in _OPEN and lane not in busy)
            if lane is not None:
                busy.add(lane)
        elif lane is not None and not outcome.at_destination:
            closed.add(lane)
    return outcomes, statements


def copied(actions: Sequence[Carried], outcomes: Sequence[Outcome]) -> list[Carried]:
    """Those that a plan copies."""
    return [action for action, outcome in zip(actions, outcomes, strict=True) if outcome is Outcome.COPIED]


def require_heads(actions: Sequence[Carried]) -> Steps[None]:
    """Raise `StorageError` unless these stand in their lanes as the guard would have it: the earliest is the head."""
    if not actions:
        return
    keys = [action.key for action in actions]
    sql = f"""
    SELECT COUNT(*) FROM agent_action
    WHERE idempotency_key IN ({_texts(keys)})
      AND is_head <> CASE WHEN edgeoutbox_open(agent_action) AND NOT EXISTS (
        SELECT 1 FROM agent_action AS earlier
        WHERE earlier.lane_key = agent_action.lane_key AND earlier.id < agent_action.id AND edgeoutbox_open(earlier)
      ) THEN 1 ELSE 0 END
    """
    [(wrong,)] = yield sql, keys
    if wrong:
        raise StorageError("the heads of the copied lanes would be wrong; nothing of this batch was copied")


def _outcome(
    action: Carried, holder: tuple[str, Text] | None, noted: bool, lane_busy: bool, lane_closed: bool
) -> Outcome:
    if holder is not None:
        kind, theirs = holder
        ours = _content(action.values["payload_digest"], action.values["payload"])
        same = kind == action.values["kind"] and (theirs == ours or theirs is None or ours is None)
        return Outcome.PRESENT if same else Outcome.OTHER
    if noted:
        return Outcome.PRESENT
    if action.held:
        return Outcome.EXECUTING
    if lane_closed:
        return Outcome.BEHIND
    # Behind another it could be neither claimed nor ended, and the other not claimed beside it.
    if lane_busy and action.values["state"] == "EXECUTING":
        return Outcome.LANE_BUSY
    return Outcome.COPIED


def _waiting(actions: Sequence[Carried]) -> Steps[set[Text]]:
    lanes = list({action.waits_in: None for action in actions if action.waits_in is not None})
    if not lanes:
        return set()
    given = ", ".join("(CAST(? AS TEXT))" for _ in lanes)
    sql = f"""
    SELECT edgeoutbox_text(given.column1) FROM (VALUES {given}) AS given
    WHERE EXISTS (SELECT 1 FROM agent_action WHERE lane_key = given.column1 AND edgeoutbox_open(agent_action))
    """
    rows = yield sql, lanes
    return {_text(row[0]) for row in rows}


def _insert(action: Carried, new_id: str, *, is_head: bool) -> list[Statement]:
    values = ", ".join(_parameter(name, name in FREE_TEXT) for name in ACTION)
    statements: list[Statement] = [
        (
            f"INSERT INTO agent_action (id, is_head, {', '.join(ACTION)}) VALUES ({new_id}, ?, {values})",
            (int(is_head), *action.values.values()),
        )
    ]
    its_id = "(SELECT id FROM agent_action WHERE idempotency_key = CAST(? AS TEXT))"
    values = ", ".join(_parameter(name, name in _TEXT_OF_ATTEMPT) for name in ATTEMPT)
    statements += [
        (
            f"INSERT INTO agent_action_attempt (action_id, {', '.join(ATTEMPT)}) VALUES ({its_id}, {values})",
            (action.key, *attempt),
        )
        for attempt in action.attempts
    ]
    if action.owed is not None:
        statements.append(
            (
                f"INSERT INTO agent_action_ended (action_id, {', '.join(OWED)}) VALUES ({its_id}, {_places(OWED)})",
                (action.key, *action.owed),
            )
        )
    return [*statements, (NOTE, (action.key_digest,))]


def _parameter(name: str, is_text: bool) -> str:
    if name in _JSON:
        return "CAST(CAST(? AS TEXT) AS JSON)"
    return "CAST(? AS TEXT)" if is_text else "?"


def _places(values: Sequence[Any]) -> str:
    return ", ".join("?" for _ in values)


def _texts(values: Sequence[Any]) -> str:
    return ", ".join("CAST(? AS TEXT)" for _ in values)


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _content(stored: Text, payload: Text) -> Text:
    """The digest of a payload: the stored one, else of what is there, else unknown."""
    return digest_of_stored(payload) if stored is None and isinstance(payload, str) else stored
