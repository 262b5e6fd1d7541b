"""Kinds: their policy, which only people loosen, and their weather."""

import hashlib
import secrets
from collections.abc import Sequence

from edgeoutbox.errors import LooseningRefused, NotPossible
from edgeoutbox.kinds import Delivery
from edgeoutbox.storage.protocol import KindDeclaration, KindPolicy
from edgeoutbox.storage.statements.steps import Row, Steps

LONG_WAIT = 15 * 60 * 1000
LONGEST_WAIT = 4 * 3600 * 1000

POLICY = """
SELECT kind, delivery, instance_level, requires_approval, retention_days, has_ended_hook, cooling_until, cooling_reason,
       paused_by, settings_digest
FROM agent_action_kind
"""

NEW_KIND = """
INSERT INTO agent_action_kind (
  kind, delivery, instance_level, requires_approval, retention_days, has_ended_hook, settings_digest
)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""

# Delivery and approval become stricter or stay; of the rest the last declaration holds. But only who carries the kind
# out can say that nobody wants to hear of its ends: the last two flags are whether there is a hook, and whether who
# declares carries the kind out.
DECLARE = """
UPDATE agent_action_kind
SET delivery = ?, requires_approval = CASE WHEN ? = 1 THEN 1 ELSE requires_approval END, instance_level = ?,
    retention_days = ?, has_ended_hook = CASE WHEN ? = 1 THEN 1 WHEN ? = 1 THEN 0 ELSE has_ended_hook END
WHERE kind = ?
"""

CHANGED_SETTINGS = """
UPDATE agent_action_kind
SET settings_digest = ?, cooling_since = NULL, cooling_until = NULL, cooling_reason = NULL
WHERE kind = ?
"""

ALLOW = """
UPDATE agent_action_kind
SET delivery = COALESCE(?, delivery), requires_approval = COALESCE(?, requires_approval)
WHERE kind = ?
"""

FENCED = "SELECT COUNT(*) FROM agent_action WHERE kind = ? AND state = 'EXECUTING' AND write_started_at IS NOT NULL"

# A cooling that is under way stays when it is the longer one. Without a wait it is a long one: 15 minutes, and twice as
# long as the last when that ended less than its own length ago, up to 4 hours. The parameters:
# the reason, the wait, the kind, and the wait again.
COOL_DOWN = f"""
UPDATE agent_action_kind
SET cooling_since = edgeoutbox_now(), cooling_reason = ?,
    cooling_until = edgeoutbox_now() + COALESCE(CAST(? AS BIGINT), CASE
      WHEN cooling_until > edgeoutbox_now() - (cooling_until - cooling_since) THEN CASE
        WHEN 2 * (cooling_until - cooling_since) < {LONG_WAIT} THEN {LONG_WAIT}
        WHEN 2 * (cooling_until - cooling_since) > {LONGEST_WAIT} THEN {LONGEST_WAIT}
        ELSE 2 * (cooling_until - cooling_since)
      END
      ELSE {LONG_WAIT}
    END)
WHERE kind = ?
  AND (cooling_until IS NULL OR cooling_until <= edgeoutbox_now()
       OR cooling_until < edgeoutbox_now() + CAST(? AS BIGINT))
"""

COOLING_UNTIL = "SELECT cooling_until FROM agent_action_kind WHERE kind = ?"

# A kind that nobody declared counts as at most once.
KNOW = """
INSERT INTO agent_action_kind (kind)
SELECT CAST(? AS TEXT) WHERE NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = ?)
"""

HELD_BY = "edgeoutbox copy to "
"""How `paused_by` begins while a copy keeps the source from carrying its actions out."""

PAUSED_BY = "SELECT paused_by FROM agent_action_kind WHERE kind = ?"

# What a copy holds stays held, whoever pauses it beside.
PAUSE = f"""
UPDATE agent_action_kind
SET paused_by = CASE WHEN paused_by LIKE '{HELD_BY}%' THEN paused_by ELSE CAST(? AS TEXT) END
WHERE kind = ?
RETURNING kind
"""

RESUME = """
UPDATE agent_action_kind
SET paused_by = NULL, cooling_since = NULL, cooling_until = NULL, cooling_reason = NULL
WHERE kind = ?
RETURNING kind
"""


def policy_of(row: Row) -> KindPolicy:
    """The policy in a row of `POLICY`."""
    return KindPolicy(row[0], Delivery(row[1]), bool(row[2]), bool(row[3]), row[4], bool(row[5]), *row[6:9])


def declare(declarations: Sequence[KindDeclaration]) -> Steps[dict[str, KindPolicy]]:
    """Store what was declared; see `Storage.declare_kinds`."""
    for kind in declarations:
        rows = yield POLICY + "WHERE kind = ?", (kind.name,)
        if not rows:
            yield (
                NEW_KIND,
                (
                    kind.name,
                    kind.delivery.value,
                    int(kind.instance_level),
                    int(kind.requires_approval),
                    kind.retention_days,
                    int(kind.has_ended_hook),
                    None if kind.settings is None else _digest_of(kind.settings, secrets.token_hex(4)),
                ),
            )
            continue
        stored = Delivery(rows[0][1])
        stricter = max(stored, kind.delivery, key=lambda delivery: delivery.strictness)
        yield (
            DECLARE,
            (
                stricter.value,
                int(kind.requires_approval),
                int(kind.instance_level),
                kind.retention_days,
                int(kind.has_ended_hook),
                int(kind.settings is not None),
                kind.name,
            ),
        )
        if kind.settings is not None:
            salt = (rows[0][9] or "").partition(":")[0] or secrets.token_hex(4)
            settings = _digest_of(kind.settings, salt)
            if settings != rows[0][9]:
                yield CHANGED_SETTINGS, (settings, kind.name)
    return (yield from policies())


def policies() -> Steps[dict[str, KindPolicy]]:
    """Every declared kind."""
    rows = yield POLICY, ()
    return {row[0]: policy_of(row) for row in rows}


def allow(kind: str, delivery: Delivery | None, requires_approval: bool | None) -> Steps[KindPolicy]:
    """Set a kind's guarantee on a person's word."""
    yield KNOW, (kind, kind)
    rows = yield POLICY + "WHERE kind = ?", (kind,)
    stored = policy_of(rows[0])
    looser = (delivery is not None and delivery.strictness < stored.delivery.strictness) or (
        requires_approval is False and stored.requires_approval
    )
    [(fenced,)] = yield FENCED, (kind,)
    if looser and fenced:
        raise LooseningRefused(
            f"kind {kind}: {fenced} of its actions may exist at the provider; pause the kind and wait for them to end"
        )
    yield ALLOW, (delivery and delivery.value, None if requires_approval is None else int(requires_approval), kind)
    rows = yield POLICY + "WHERE kind = ?", (kind,)
    return policy_of(rows[0])


def cool_down(kind: str, reason: str, wait: int | None) -> Steps[int]:
    """Put the kind to rest, one that nobody declared too: a settlement must not fail for that."""
    yield KNOW, (kind, kind)
    yield COOL_DOWN, (reason, wait, kind, wait)
    rows = yield COOLING_UNTIL, (kind,)
    return int(rows[0][0])


def pause(kind: str, by: str) -> Steps[bool]:
    """Stop the kind's claims; false when nobody declared it."""
    rows = yield PAUSE, (by, kind)
    return bool(rows)


def resume(kind: str, *, copied: bool) -> Steps[bool]:
    """Let the kind be claimed again, one that a copy holds only with `copied`; false when nobody declared it."""
    rows = yield PAUSED_BY, (kind,)
    for (by,) in rows:
        if by is not None and by.startswith(HELD_BY) and not copied:
            raise NotPossible(
                f"kind {kind} is held by {by}: its actions are carried out there, and would be sent a second time from "
                "here. Only if nothing was carried out there: resume it with copied=True, on the command line --copied"
            )
    rows = yield RESUME, (kind,)
    return bool(rows)


def _digest_of(settings: str, salt: str) -> str:
    return f"{salt}:{hashlib.sha256(f'{salt}:{settings}'.encode()).hexdigest()[:4]}"
