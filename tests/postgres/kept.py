"""The promises, as far as they can be seen from outside: each function gives what breaks one, in words."""

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeAlias

from tests.postgres.application import SECRET, Transaction
from tests.postgres.chaos import Host, Story, killed
from tests.postgres.hosts import NOVEL, UNHEARD
from tests.postgres.provider import TAKEN, WRITES

AT_MOST_ONCE = frozenset({"once", NOVEL})

Check: TypeAlias = Callable[[Story, list[Transaction]], Iterator[str]]


def p1_atomic(story: Story, plan: list[Transaction]) -> Iterator[str]:
    """There is what was committed, all of it, and nothing else; and each once (P2)."""
    meant = {
        request.idempotency_key: transaction
        for transaction in plan
        if not transaction.rolls_back
        for request in transaction.requests
    }
    there = Counter(row["idempotency_key"] for row in story.actions)
    yield from (f"{key} is there {there[key]} times" for key in meant if there[key] != 1)
    yield from (f"{key} was rolled back, or enqueued by nobody" for key in there.keys() - meant.keys())
    orders = {transaction.number for transaction in plan if transaction.own and not transaction.rolls_back}
    yield from (f"order {number} without its actions, or the reverse" for number in orders ^ story.orders)


def p4_one_per_lane(story: Story, _: list[Transaction]) -> Iterator[str]:
    """No two calls are with the provider in one lane at the same time."""
    for call in story.provider.calls:
        if call.beside is not None:
            yield f"{call.key} called while {call.beside} was with the provider, in {call.lane}"


def p5_in_order(story: Story, _: list[Transaction]) -> Iterator[str]:
    """In each lane, whatever concerns an action comes after all that concerned those before it."""
    called: dict[str, list[int]] = defaultdict(list)
    for call in story.provider.calls:
        called[call.lane].append(call.id)
    attempted: dict[str, list[int]] = defaultdict(list)
    lanes = {row["id"]: row["lane_key"] for row in story.actions}
    for row in story.attempts:
        attempted[lanes[row["action_id"]]].append(row["action_id"])
    for what, by_lane in (("called", called), ("attempted", attempted)):
        for lane, ids in by_lane.items():
            if ids != sorted(ids):
                yield f"{lane} was {what} in the order {ids}"


def p6_stale(story: Story, _: list[Transaction]) -> Iterator[str]:
    """Each call is of the claim that holds its action, and none comes once another holds it."""
    attempts = {(row["action_id"], row["epoch"]): row for row in story.attempts}
    for call in story.provider.calls:
        mine, next_ = attempts.get((call.id, call.epoch)), attempts.get((call.id, call.epoch + 1))
        if mine is None or mine["owner"] != call.owner:
            yield f"{call.key} was called by {call.owner} under epoch {call.epoch}, which is not its claim"
        if next_ is not None and next_["started_at"] < call.sent:
            yield f"{call.key} was called under epoch {call.epoch}, {call.sent - next_['started_at']} ms after the next"


def p6_epochs(story: Story, _: list[Transaction]) -> Iterator[str]:
    """Epochs rise by one with each claim, and each claim begins when the one before has ended."""
    by_action: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(story.attempts, key=lambda row: (row["action_id"], row["epoch"])):
        by_action[row["action_id"]].append(row)
    for action in story.actions:
        rows = by_action[action["id"]]
        if [row["epoch"] for row in rows] != list(range(1, action["epoch"] + 1)):
            yield f"{action['idempotency_key']} has epochs {[row['epoch'] for row in rows]}, and says {action['epoch']}"
        for row, after in pairwise(rows):
            # A result that came too late is logged, and ends nothing.
            if after["started_at"] < row["settled_at" if row["recorded"] else "lease_expires_at"]:
                yield f"{action['idempotency_key']}: epoch {after['epoch']} began before epoch {row['epoch']} was over"


def p7_fenced(story: Story, _: list[Transaction]) -> Iterator[str]:
    """Each write was announced durably before."""
    attempts = {(row["action_id"], row["epoch"]): row for row in story.attempts}
    for call in story.provider.calls:
        fence = attempts[call.id, call.epoch]["write_started_at"]
        if call.do == "write" and (fence is None or fence > call.sent):
            yield f"{call.key} was called at {call.sent}, and its fence is of {fence}"


def p8_at_most_once(story: Story, _: list[Transaction]) -> Iterator[str]:
    """The provider is called at most once more for what it may have; only what it deduplicates is sent again."""
    kinds = {row["idempotency_key"]: row["kind"] for row in story.actions}
    may_exist: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for call in story.provider.calls:
        if call.do == "write" and call.came != "busy":
            may_exist[call.key] += 1
            taken[call.key] += call.came in TAKEN
    for key, kind in kinds.items():
        if kind in AT_MOST_ONCE and may_exist[key] > 1:
            yield f"{key} is at most once, and was called {may_exist[key]} times"
        if kind == "readable" and taken[key] > 1:
            yield f"{key} can be read back, and was taken {taken[key]} times"


def p9_done_is_done(story: Story, _: list[Transaction]) -> Iterator[str]:
    """What is DONE the provider has; and what a living process heard that it has is DONE."""
    state = {row["idempotency_key"]: row["state"] for row in story.actions}
    late = {(row["action_id"], row["epoch"]) for row in story.attempts if row["recorded"] == 0}
    for key, was in state.items():
        if was == "DONE" and not story.provider.has(key):
            yield f"{key} is DONE, and the provider has it not"
    for call in story.provider.calls:
        heard = call.came == "taken" and killed(story.hosts, call.owner) is None and (call.id, call.epoch) not in late
        if heard and state[call.key] != "DONE":
            yield f"{call.key} is {state[call.key]}, and {call.owner} heard that it was taken"


def p9_late_is_late(story: Story, _: list[Transaction]) -> Iterator[str]:
    """A result is refused only because the lease was over when the database could be told."""
    for row in story.attempts:
        if row["recorded"] == 0 and row["settled_at"] < row["lease_expires_at"]:
            yield f"the result of {row} was refused, and came in time"


def ended_as_explained(story: Story, _: list[Transaction]) -> Iterator[str]:
    """Everything ended DONE, or UNCERTAIN for a reason that happened."""
    last: dict[int, dict[str, Any]] = {}
    for row in sorted(story.attempts, key=lambda row: (row["action_id"], row["epoch"])):
        last[row["action_id"]] = row
    came = {(call.id, call.epoch): call.came for call in story.provider.calls if call.do in WRITES}
    for action in story.actions:
        if action["state"] == "DONE":
            continue
        attempt = last[action["id"]]
        answer = came.get((action["id"], attempt["epoch"]))
        explains = _EXPLAINS.get(action["stop_reason"], _nothing)
        if action["kind"] not in AT_MOST_ONCE or not explains(answer, attempt, killed(story.hosts, attempt["owner"])):
            yield f"{action} ended so, and nothing explains it: {answer}, {attempt}"


def _nothing(*_: object) -> bool:
    return False


def _no_confirmation(answer: str | None, attempt: dict[str, Any], _: Host | None) -> bool:
    return attempt["recorded"] == 1 and answer in {"lost", "vanished"}


def _error_after_write(answer: str | None, attempt: dict[str, Any], host: Host | None) -> bool:
    stopped = host is not None and host.by is signal.SIGTERM
    return attempt["recorded"] == 1 and (answer == "hung" or stopped)


def _lease_lost(_: str | None, attempt: dict[str, Any], host: Host | None) -> bool:
    """Its host was ended before it could say how the attempt ended, or could say it to no server in time."""
    died = host is not None and host.ended is not None and host.ended >= attempt["started_at"]
    return died if attempt["settled_at"] is None else attempt["recorded"] == 0


_EXPLAINS = {
    "NO_CONFIRMATION": _no_confirmation,
    "ERROR_AFTER_WRITE": _error_after_write,
    "LEASE_LOST_AFTER_WRITE": _lease_lost,
}


def p10_run(story: Story, _: list[Transaction]) -> Iterator[str]:
    """What a host claimed it ran, unless it died or could not know that it had claimed."""
    for row in story.lost():
        if story.outlived(row) and f"{UNHEARD} {row['owner']}\n" not in story.said:
            yield f"{row['owner']} lived on, and never ran what it had claimed: {row}"


def p11_unknown_left_alone(story: Story, plan: list[Transaction]) -> Iterator[str]:
    """No host of the first build touched what it does not know."""
    builds = {host.name: host.build for host in story.hosts}
    unknown = {
        request.idempotency_key
        for transaction in plan
        for request in transaction.requests
        if request.kind == NOVEL or '"memo"' in request.payload_text
    }
    keys = {row["id"]: row["idempotency_key"] for row in story.actions}
    for row in story.attempts:
        if keys[row["action_id"]] in unknown and builds[row["owner"].rpartition(":")[0]] == 1:
            yield f"{keys[row['action_id']]} was claimed by {row['owner']}, which does not know it"


def p12_private(story: Story, _: list[Transaction]) -> Iterator[str]:
    """No payload is in any log or stored text, and none is kept at the end."""
    if SECRET in story.said:
        yield "a log shows a payload"
    for row in (*story.actions, *story.attempts):
        if SECRET in str(row) or row.get("payload") is not None:
            yield f"a payload is left in {row}"


EVERY: tuple[Check, ...] = (
    p1_atomic,
    p4_one_per_lane,
    p5_in_order,
    p6_stale,
    p6_epochs,
    p7_fenced,
    p8_at_most_once,
    p9_done_is_done,
    p9_late_is_late,
    ended_as_explained,
    p10_run,
    p11_unknown_left_alone,
    p12_private,
)


def broken(story: Story, plan: list[Transaction]) -> list[str]:
    """What breaks any of them."""
    return [f"{check.__name__}: {what}" for check in EVERY for what in check(story, plan)]
