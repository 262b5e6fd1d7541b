"""Kinds: their policy, which only people loosen, and their weather."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from edgeoutbox.errors import LooseningRefused
from edgeoutbox.kinds import Delivery
from edgeoutbox.storage.protocol import KindDeclaration, KindPolicy
from edgeoutbox.storage.sqlite.steps import NOW, Row, Steps

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
# out can say that nobody wants to hear of its ends.
DECLARE = """
UPDATE agent_action_kind
SET delivery = ?, requires_approval = MAX(requires_approval, ?), instance_level = ?, retention_days = ?,
    has_ended_hook = CASE WHEN ? THEN ? ELSE MAX(has_ended_hook, ?) END
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
# long as the last when that ended less than its own length ago, up to 4 hours.
COOL_DOWN = f"""
UPDATE agent_action_kind
SET cooling_since = {NOW}, cooling_reason = ?1,
    cooling_until = {NOW} + COALESCE(?2, CASE
      WHEN cooling_until > {NOW} - (cooling_until - cooling_since)
        THEN MIN({LONGEST_WAIT}, MAX({LONG_WAIT}, 2 * (cooling_until - cooling_since)))
      ELSE {LONG_WAIT}
    END)
WHERE kind = ?3
  AND (cooling_until IS NULL OR cooling_until <= {NOW} OR (?2 IS NOT NULL AND cooling_until < {NOW} + ?2))
"""

COOLING_UNTIL = "SELECT cooling_until FROM agent_action_kind WHERE kind = ?"

# A kind that nobody declared counts as at most once.
KNOW = """
INSERT INTO agent_action_kind (kind) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = ?1)
"""

PAUSE = "UPDATE agent_action_kind SET paused_by = ? WHERE kind = ? RETURNING kind"

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
                int(kind.settings is not None),
                int(kind.has_ended_hook),
                int(kind.has_ended_hook),
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
    yield KNOW, (kind,)
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
    yield KNOW, (kind,)
    yield COOL_DOWN, (reason, wait, kind)
    rows = yield COOLING_UNTIL, (kind,)
    return int(rows[0][0])


def pause(kind: str, by: str) -> Steps[bool]:
    """Stop the kind's claims; false when nobody declared it."""
    rows = yield PAUSE, (by, kind)
    return bool(rows)


def resume(kind: str) -> Steps[bool]:
    """Let the kind be claimed again; false when nobody declared it."""
    rows = yield RESUME, (kind,)
    return bool(rows)


def looser_than(policy: KindPolicy, declared: KindDeclaration) -> Mapping[str, str]:
    """What was declared looser than what holds, for a warning: field -> what holds."""
    found = {}
    if declared.delivery.strictness < policy.delivery.strictness:
        found["delivery"] = policy.delivery.value
    if policy.requires_approval and not declared.requires_approval:
        found["requires_approval"] = "true"
    return found


def changes(before: KindPolicy | None, after: KindPolicy) -> Mapping[str, str]:
    """What the last declaration changed of what it may change freely: field -> what holds now."""
    if before is None:
        return {}
    free = ("retention_days", "instance_level", "has_ended_hook")
    return {name: str(getattr(after, name)) for name in free if getattr(before, name) != getattr(after, name)}


def _digest_of(settings: str, salt: str) -> str:
    return f"{salt}:{hashlib.sha256(f'{salt}:{settings}'.encode()).hexdigest()[:4]}"
