"""Decisions and declarations, which look before they act: here others act at the same time, so they lock first."""

from collections.abc import Sequence

from edgeoutbox.kinds import Delivery
from edgeoutbox.model import Action
from edgeoutbox.storage.postgres.running import Ahead
from edgeoutbox.storage.protocol import Decision, KindDeclaration, KindPolicy
from edgeoutbox.storage.statements import deciding, kinds
from edgeoutbox.storage.statements.steps import Steps

LOCK_ONE = "SELECT id FROM agent_action WHERE id = ? FOR NO KEY UPDATE"

LOCK_RUN = """
SELECT id FROM agent_action WHERE run_id = ? AND state IN ('PROPOSED', 'ADMITTED') ORDER BY id FOR NO KEY UPDATE
"""

# Two that declare a kind at the same time would each compare with what was there before the other.
LOCK_KINDS = "SELECT pg_advisory_xact_lock(hashtextextended('edgeoutbox kinds', 0))"


def decide(action_id: int, decision: Decision) -> Steps[Action]:
    """Take the decision, or raise why it cannot be taken."""
    yield Ahead(LOCK_ONE, (action_id,))
    return (yield from deciding.decide(action_id, decision))


def withdraw_run(run_id: str, decision: Decision) -> Steps[list[Action]]:
    """Withdraw what of a run has not started."""
    yield Ahead(LOCK_RUN, (run_id,))
    return (yield from deciding.withdraw_run(run_id, decision))


def declare(declarations: Sequence[KindDeclaration]) -> Steps[dict[str, KindPolicy]]:
    """Store what was declared and return what holds."""
    yield Ahead(LOCK_KINDS)
    return (yield from kinds.declare(declarations))


def allow(kind: str, delivery: Delivery | None, requires_approval: bool | None) -> Steps[KindPolicy]:
    """Set a kind's guarantee on a person's word."""
    yield Ahead(LOCK_KINDS)
    return (yield from kinds.allow(kind, delivery, requires_approval))
