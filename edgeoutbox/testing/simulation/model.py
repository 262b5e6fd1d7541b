"""What edgeoutbox promises, as a small model to read. It knows nothing of how the product keeps a promise.

The model sees two things. After every commit of anybody it sees which rows changed, from what to what; and it sees each
call of the provider begin, take effect and be answered, as only a simulation can see it. From the two it says, step by
step, whether a promise is broken. The promises have the numbers of `docs/guarantees.md`.

Read `Model` from the top: each method whose name begins with `p` is one promise, and complains in a sentence.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from edgeoutbox.kinds import Delivery
from edgeoutbox.model import ActionRequest, Enqueued
from edgeoutbox.testing.simulation.plan import NOTICES, KindPlan
from edgeoutbox.testing.simulation.seen import Asked, Broken, Call, Change, Commit, Logged, Row, Weather

SECRET = "s3cr3t"  # noqa: S105 - what must be found nowhere
"""Stands in every payload and every exception of the simulated application."""

STEPS: Mapping[str | None, frozenset[str]] = {
    None: frozenset({"PROPOSED", "ADMITTED", "CANCELLED"}),  # one commit may hold several steps
    "PROPOSED": frozenset({"PROPOSED", "ADMITTED", "CANCELLED"}),
    "ADMITTED": frozenset({"ADMITTED", "EXECUTING", "CANCELLED"}),
    "EXECUTING": frozenset({"EXECUTING", "ADMITTED", "DONE", "UNCERTAIN", "FAILED", "CANCELLED"}),
}
"""Where an action can be after a commit, by where it was before. An ended action is nowhere else ever after."""

CERTAIN: Mapping[str, str] = {"Done": "DONE", "Failed": "FAILED", "Cancelled": "CANCELLED", "Uncertain": "UNCERTAIN"}
"""What an action has become when its adapter's word was recorded."""


UNDER_WAY = 0.005
"""Seconds within which a commit may still carry out what was asked for before the clock was set."""

Complaints: TypeAlias = Iterator[str]


@dataclass
class Model:
    """The promises. `window` and `lease` are milliseconds."""

    kinds: Mapping[str, KindPlan]
    window: int
    lease: int
    max_attempts: int
    drift_is_seen: bool
    """Whether an executor must have seen that the clock was set: it was set once, far, and commits take no time."""
    rows: dict[int, Row] = field(default_factory=dict)
    logs: dict[int, Mapping[int, Logged]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    """Enqueues that have not been answered."""
    made_by: dict[int, ActionRequest] = field(default_factory=dict)
    untold: set[int] = field(default_factory=set)
    """Actions that were made, and nobody was told of them yet."""
    fleeting: set[int] = field(default_factory=set)
    """Actions that were made and erased in one commit, so that nobody saw them."""
    displaced: dict[int, set[int]] = field(default_factory=dict)
    """What each superseding action superseded."""
    owed: set[int] = field(default_factory=set)
    told: dict[int, int] = field(default_factory=dict)
    weather: Mapping[str, Weather] = field(default_factory=dict)
    calls: dict[int, list[Call]] = field(default_factory=dict)
    returned: dict[tuple[int, int], str] = field(default_factory=dict)
    notices: dict[int, str] = field(default_factory=dict)
    hurried: set[int] = field(default_factory=set)
    """Actions that somebody asked to run now, before they are due."""
    forgotten: set[int] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    """Subjects that are being erased in the commit to come."""
    clock_set: float = float("-inf")
    """When the wall clock was last set, on the boot clock. Leases are on the wall clock, and end early or late."""

    # ---- what the database shows ------------------------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """Judge one commit and remember it. Raises `Broken`."""
        lanes = set()
        for change in commit.changes:
            if change.after is None:
                self.rows.pop(change.id, None)
            else:
                self.rows[change.id] = change.after
                if change.id not in self.notices:
                    self.notices[change.id] = json.loads(change.after.payload or "{}").get("notice", "plain")
            row = change.after or change.before
            if row is not None and row.lane is not None:
                lanes.add(row.lane)
            self._appeared(commit, change)
        self._superseded(commit)
        for change in commit.changes:
            for promise in self.OF_CHANGES:
                _raise_any(promise.__name__, promise(self, commit, change))
        for lane in lanes:
            members = sorted(row for row in self.rows.values() if row.lane == lane and row.open)
            _raise_any("p4_one_per_lane", self.p4_one_per_lane(members))
            _raise_any("p5_in_order", self.p5_in_order(members))
        for change in commit.changes:
            self.logs[change.id] = change.log
            self.told[change.id] = change.told
            (self.owed.add if change.owed else self.owed.discard)(change.id)
        self.weather = commit.weather

    def p1_atomic(self, _commit: Commit, change: Change) -> Complaints:
        """What is there was asked for, just so: its kind, lane, payload, times and all that was given."""
        if change.made and change.after is not None and change.id not in self.made_by:
            yield f"action {change.id} ({change.after.key}) is there, and nobody asked for it like that"

    def p3_guarded(self, _commit: Commit, change: Change) -> Complaints:
        """Only the lifecycle's steps; what ended is over, and what was given at enqueue stays."""
        before, after = change.before, change.after
        if after is None:
            return
        if before is not None and not before.open:
            if after != before:
                yield f"action {after.id} had ended {before.state} and changed"
            return
        if after.state not in STEPS[before.state if before else None]:
            yield f"action {after.id} went from {before.state if before else 'nowhere'} to {after.state}"
        if (after.stop_reason is None) is not after.open:
            yield f"action {after.id} is {after.state} with the stop reason {after.stop_reason}"
        if before is not None and (after.epoch < before.epoch or after.given != before.given):
            yield f"action {after.id} lost its epoch, or something that was given at enqueue"
        if before is not None and after.open and after.payload != before.payload:
            yield f"action {after.id} has another payload"
        if before is not None and after.due_at != before.due_at and not any(True for _ in change.settled):
            yield f"action {after.id} was put off, and no attempt of it has ended"
        if set(change.log) != set(range(1, after.epoch + 1)):
            yield f"action {after.id} has epoch {after.epoch} and the attempts {sorted(change.log)}"

    def p4_one_per_lane(self, members: Iterable[Row]) -> Complaints:
        """Never two executing actions in a lane."""
        executing = [row.id for row in members if row.state == "EXECUTING"]
        if len(executing) > 1:
            yield f"actions {executing} of one lane execute at once"

    def p5_in_order(self, members: list[Row]) -> Complaints:
        """Only a lane's earliest open action executes, and it is known as the head."""
        for place, row in enumerate(members):
            if row.is_head is not (place == 0):
                yield f"action {row.id} is number {place + 1} of its lane, and is_head is {row.is_head}"
            if row.state == "EXECUTING" and place > 0:
                yield f"action {row.id} executes before action {members[0].id} of its lane has ended"

    def p6_only_the_holder_fences(self, commit: Commit, change: Change) -> Complaints:
        """A fence is stored for the attempt that holds the action, with enough of its lease left for a write."""
        after = change.after
        for attempt in change.fenced:
            if attempt.settled_at is not None:
                continue  # it was cancelled meanwhile, and ended in this very commit: nobody is told of its fence
            if after is None or not _holds(after, attempt):
                yield f"action {change.id} was fenced by attempt {attempt.epoch}, which does not hold it"
            elif (after.lease_until or 0) - commit.now < self.window:
                yield f"action {change.id} was fenced with less lease left than a write may take"

    def p6_only_the_holder_settles(self, _commit: Commit, change: Change) -> Complaints:
        """A result changes the action exactly when its attempt still holds it; one that comes too late is noted."""
        before = change.before
        for attempt in change.settled:
            held = before is not None and _holds(before, attempt)
            if attempt.recorded is not held:
                what = "held it, and its result came to nothing" if held else "had lost it, and its result counts"
                yield f"attempt {attempt.epoch} of action {change.id} {what}"

    def p6_nobody_is_robbed(self, commit: Commit, change: Change) -> Complaints:
        """Without its holder's word an action moves on after its lease only: to others, who know what time it is."""
        before, after = change.before, change.after
        if before is None or before.state != "EXECUTING" or after is None:
            return
        moved = (after.state, after.epoch, after.owner) != (before.state, before.epoch, before.owner)
        if not moved or any(attempt.recorded and attempt.epoch == before.epoch for attempt in change.settled):
            return
        what = f"action {after.id} was taken from attempt {before.epoch} by {commit.actor.name}"
        if (before.lease_until or 0) > commit.now:
            yield f"{what}: its lease had not ended"
        if _name(before.owner) == commit.actor.name:
            yield f"{what}: from itself"
        since_set = commit.boot - self.clock_set
        executor = commit.actor.build is not None and commit.actor.since < self.clock_set
        if self.drift_is_seen and executor and since_set > UNDER_WAY and since_set < self.lease / 1000:
            yield f"{what}: it saw the clock being set {since_set:.3f} s before"

    def p8_nothing_is_given_back_that_may_exist(self, _commit: Commit, change: Change) -> Complaints:
        """An action waits, has failed or was cancelled only when every call is proven to have come to nothing."""
        row = change.after
        if row is None:
            return
        delivery = self.kinds[row.kind].delivery
        if row.state in {"ADMITTED", "FAILED", "CANCELLED"} and self._may_exist(row.id):
            yield f"action {row.id} is {row.state} ({row.stop_reason}), and a call of it may have come to something"
        before = change.before
        if change.claimed and before is not None and delivery is Delivery.AT_MOST_ONCE and before.fenced_at is not None:
            proven = any(attempt.epoch == before.epoch for attempt in change.settled)
            if not proven:
                yield f"action {row.id} is at most once, and was claimed again after its write had started"

    def p9_no_lost_certainty(self, _commit: Commit, change: Change) -> Complaints:
        """What the adapter said is what is recorded, and an action is what was recorded of it."""
        row = change.after
        for attempt in change.settled:
            said = self.returned.get((change.id, attempt.epoch))
            if said is not None and attempt.result != said:
                yield f"attempt {attempt.epoch} of action {change.id} returned {said}, recorded was {attempt.result}"
            meant = CERTAIN.get(attempt.result or "")
            if attempt.recorded and meant is not None and row is not None and row.state != meant:
                yield f"attempt {attempt.epoch} of action {change.id} was recorded as {attempt.result}: {row.state}"
        if row is None or not change.ended:
            return
        writes = self.kinds[row.kind].delivery is not Delivery.WRITES_NOTHING
        if row.state == "DONE" and writes and not self._exists(row.id):
            yield f"action {row.id} is DONE, and the provider holds nothing of it"
        if row.state == "UNCERTAIN" and row.fenced_at is None:
            yield f"action {row.id} is UNCERTAIN, although no write had started"

    def p10_attempts_are_bounded(self, _commit: Commit, change: Change) -> Complaints:
        """A claim counts, so that an action that kills its executor ends."""
        row = change.after
        if row is not None and change.claimed and row.attempt > (row.max_attempts or self.max_attempts):
            yield f"action {row.id} is in attempt {row.attempt}, of {row.max_attempts or self.max_attempts}"

    def p11_unknown_rows_are_left_alone(self, commit: Commit, change: Change) -> Complaints:
        """An executor moves only what its build decodes."""
        before, after, build = change.before, change.after, commit.actor.build
        if build is None or before is None or after is None or self.knows(build, after):
            return
        if after._replace(is_head=before.is_head) != before:
            yield f"action {after.id} ({after.kind}) was changed by {commit.actor.name}, which does not know it"

    def p12_private(self, _commit: Commit, change: Change) -> Complaints:
        """An ended action has no payload, and nothing stored repeats one."""
        row = change.after
        if row is not None and (row.payload is None) is row.open:
            yield f"action {row.id} is {row.state} and its payload is {'there' if row.payload else 'gone'}"
        if row is not None and SECRET in (row.last_error or ""):
            yield f"last_error of action {row.id} repeats what an exception said"

    def p13_only_what_is_to_be_forgotten_goes(self, _commit: Commit, change: Change) -> Complaints:
        """Rows go when somebody asked for it, with everything that was logged of them."""
        before = change.before
        if change.after is not None:
            return
        if before is not None and change.id not in self.forgotten and before.subject not in self.erased:
            yield f"action {change.id} is gone, and nobody asked to forget it"
        if change.log or change.owed:
            yield f"action {change.id} is gone, and its attempts or its owed hook are still there"

    def only_what_waits_is_superseded(self, commit: Commit, change: Change) -> Complaints:
        """A new action that is to supersede ends all that waits before it in its lane; a repeat ends nothing."""
        row, before = change.after, change.before
        if row is None:
            return
        if change.superseded:
            if before is not None and not before.waits:
                yield f"action {row.id} was superseded while it was {before.state}"
            erased = any(other.id in self.fleeting for other in commit.changes)
            if not erased and not any(new.lane == row.lane and new.id > row.id for new in self._superseding(commit)):
                yield f"action {row.id} was superseded, and nothing new is to supersede what waits in {row.lane}"
        if change.made and all(asked.supersede for asked in self.asked if row.id in asked.fits):
            for other in self.rows.values():
                if other.lane == row.lane and other.id < row.id and other.waits:
                    yield f"action {other.id} waits before action {row.id}, which supersedes what waits in {row.lane}"

    def starts_only_when_it_may(self, commit: Commit, change: Change) -> Complaints:
        """No claim before its time, after its expiry, or of a kind that rests; no fence after the expiry."""
        before, row = change.before, change.after
        if row is None or before is None:
            return
        for attempt in change.fenced:
            if row.expired(commit.now):
                yield f"attempt {attempt.epoch} of action {row.id} was fenced after it had expired"
        if not change.claimed:
            return
        if before.state == "ADMITTED" and before.due_at > commit.now and row.id not in self.hurried:
            yield f"action {row.id} was claimed before it was due"
        if before.fenced_at is None and row.expired(commit.now):
            yield f"action {row.id} was claimed after it had expired"
        was, now = self.weather.get(row.kind), commit.weather.get(row.kind)
        if was is not None and now is not None and was.forbids(commit.now) and now.forbids(commit.now):
            yield f"action {row.id} was claimed while its kind {'was paused' if now.paused else 'cooled down'}"

    def hooks_are_owed_until_they_ran_once(self, _commit: Commit, change: Change) -> Complaints:
        """An end and the news of it are one commit: the hook has run in it, or is owed. It takes effect once."""
        row = change.after
        if change.told > 1:
            yield f"the ended hook of action {change.id} took effect {change.told} times"
        if row is None or not self.kinds[row.kind].hooked:
            return
        if row.open and change.told:
            yield f"the ended hook of action {row.id} took effect, and the action has not ended"
        if not row.open and bool(change.told) is change.owed:
            yield f"action {row.id} has ended, and its hook {'ran and is owed' if change.owed else 'is not owed'}"

    OF_CHANGES: ClassVar[tuple[Callable[["Model", Commit, Change], Complaints], ...]] = (
        p1_atomic,
        p3_guarded,
        p6_only_the_holder_fences,
        p6_only_the_holder_settles,
        p6_nobody_is_robbed,
        p8_nothing_is_given_back_that_may_exist,
        p9_no_lost_certainty,
        p10_attempts_are_bounded,
        p11_unknown_rows_are_left_alone,
        p12_private,
        p13_only_what_is_to_be_forgotten_goes,
        only_what_waits_is_superseded,
        starts_only_when_it_may,
        hooks_are_owed_until_they_ran_once,
    )

    # ---- what the provider sees -------------------------------------------------------------------------------------

    def call_begins(self, call: Call, now: int, *, in_transaction: bool) -> None:
        """Judge a call as it begins, and remember it. `now` is the database's clock."""
        for promise in self.OF_CALLS:
            _raise_any(promise.__name__, promise(self, call, now, in_transaction))
        self.calls.setdefault(call.id, []).append(call)

    def p7_no_call_without_its_stored_fence(self, call: Call, now: int, _: bool) -> Complaints:
        """A committed fence of this very attempt stands behind each call, and its lease outlasts the write window."""
        row, log = self.rows.get(call.id), self.logs.get(call.id, {})
        if row is None:
            return  # erased a moment ago
        if call.epoch not in log or log[call.epoch].fenced_at is None:
            yield f"attempt {call.epoch} of action {call.id} calls the provider, and no fence of it is stored"
        holds = (row.state, row.epoch) == ("EXECUTING", call.epoch) and (row.lease_until or 0) - now >= self.window - 1
        if not holds and self.clock_set == float("-inf"):
            yield f"attempt {call.epoch} of action {call.id} calls the provider, and may lose the action meanwhile"

    def p8_at_most_once(self, call: Call, _now: int, __: bool) -> Complaints:
        """Only what the provider deduplicates is called again while an earlier call may have come to something."""
        row = self.rows.get(call.id)
        if row is not None and self.kinds[row.kind].delivery is not Delivery.REPEATABLE and self._may_exist(call.id):
            yield f"attempt {call.epoch} of action {call.id} calls, and an earlier call may have taken effect"

    def p5_one_call_per_lane(self, call: Call, _now: int, __: bool) -> Complaints:
        """Within a lane no call begins while another is under way within its window."""
        for other in (other for calls in self.calls.values() for other in calls):
            if (
                call.lane is not None
                and other.lane == call.lane
                and other.id in self.rows  # an erased one's lane goes on at once
                and not other.over
                and other.until > call.began
                and self.clock_set < other.began
            ):
                yield f"action {call.id} calls the provider while action {other.id} of its lane does"

    def p14_no_transaction_across_a_call(self, call: Call, _now: int, in_transaction: bool) -> Complaints:
        """No transaction is open around a call."""
        if in_transaction:
            yield f"attempt {call.epoch} of action {call.id} calls the provider inside a transaction"

    OF_CALLS: ClassVar[tuple[Callable[["Model", Call, int, bool], Complaints], ...]] = (
        p7_no_call_without_its_stored_fence,
        p8_at_most_once,
        p5_one_call_per_lane,
        p14_no_transaction_across_a_call,
    )

    # ---- what programs are told -------------------------------------------------------------------------------------

    def asks(self, request: ActionRequest, *, proposed: bool = False, supersede: bool = False) -> Asked:
        """Somebody enqueues; `answered` must follow."""
        held_by = {row.id for row in self.rows.values() if row.key == request.idempotency_key}
        asked = Asked(request, proposed, supersede, held_by)
        self.asked.append(asked)
        return asked

    def answered(self, asked: Asked, answer: Enqueued | None, *, rolled_back: bool = False) -> None:
        """Judge an answer; `None` means that it was refused. Raises `Broken`."""
        self.asked.remove(asked)
        if answer is not None:
            _raise_any("p2_once_per_key", self.p2_once_per_key(asked, answer))
            if answer.created and not rolled_back:
                _raise_any("p1_what_is_answered_is_there", self.p1_what_is_answered_is_there(asked, answer))
                self.untold.discard(answer.id)
        _raise_any("p1_what_is_refused_is_not_there", self.p1_what_is_refused_is_not_there(asked))

    def p1_what_is_answered_is_there(self, asked: Asked, answer: Enqueued) -> Complaints:
        """An action that was answered as made was made, once, and ended what the answer says."""
        key = asked.request.idempotency_key
        if answer.id not in self.untold & asked.fits | self.fleeting:
            yield f"{key} was answered as made, as action {answer.id}, which was not made for it"
        ended = self.displaced.get(answer.id, set())
        if not (asked.supersede and self.fleeting) and (ended ^ set(answer.superseded)) & self.rows.keys():
            yield f"{key} superseded {sorted(ended)}, and was answered {list(answer.superseded)}"

    def p1_what_is_refused_is_not_there(self, asked: Asked) -> Complaints:
        """What was made was answered as made, to somebody who asked for it."""
        for made in asked.fits & self.untold:
            if not any(made in other.fits for other in self.asked):
                yield f"action {made} ({asked.request.idempotency_key}) is there, and nobody was told that it was made"

    def p2_once_per_key(self, asked: Asked, answer: Enqueued) -> Complaints:
        """A key that exists returns its action, changes nothing, and says whether it is about the same."""
        wants = asked.request
        if answer.created:
            held_by = self.rows.keys() & asked.holders - asked.fits
            if held_by:
                yield f"{wants.idempotency_key} was held by {sorted(held_by)}, and answered as made: {answer.id}"
            return
        first = self.made_by.get(answer.id)
        if answer.id not in asked.holders | self.fleeting or answer.superseded:
            yield f"{wants.idempotency_key} was held by {sorted(asked.holders)}, and the answer is {answer}"
        elif first is not None:
            same = (first.lane_key, first.payload_digest) == (wants.lane_key, wants.payload_digest)
            if answer.same_content is not same:
                yield f"{wants.idempotency_key} was answered as {'another' if same else 'the same'}, and is not"

    def logged(self, line: str) -> None:
        """P12: no log line repeats a payload."""
        if SECRET in line:
            raise Broken("p12_private", "a log line repeats a payload or an exception's message")

    # ---- how it ends ------------------------------------------------------------------------------------------------

    def waiting(self, now: int, builds: Iterable[int]) -> list[Row]:
        """What should still be moved by executors of these builds, whatever happened before. Empty when all is over."""
        known = tuple(builds)
        stuck: set[str | None] = set()
        found = []
        for row in sorted(self.rows.values()):
            if not row.open:
                if row.forget and row.id not in self.owed:
                    found.append(row)
                continue
            served = any(self.knows(build, row) for build in known)
            paused = row.kind in self.weather and self.weather[row.kind].paused
            waits = row.state == "PROPOSED" or paused or (row.lane is not None and row.lane in stuck)
            if served and (not waits or self._must_end(row, now)):
                found.append(row)
            elif row.lane is not None:
                stuck.add(row.lane)
        return found

    def finished(self, now: int, builds: Iterable[int], survivors: Iterable[str]) -> None:
        """Judge how all of it ended, after faults have stopped and enough time has passed."""
        known = tuple(builds)
        for row in self.waiting(now, known):
            raise Broken("liveness", f"action {row.id} ({row.kind}) is still {row.state}, and nothing hinders it")
        for owed in self.owed:
            row_or_none = self.rows.get(owed)
            if row_or_none is not None and any(self.knows(build, row_or_none, any_notice=True) for build in known):
                raise Broken("liveness", f"the ended hook of action {owed} is still owed")
        alive = frozenset(survivors)
        for (action_id, epoch), said in self.returned.items():
            logged = self.logs.get(action_id, {}).get(epoch)
            if logged is not None and logged.settled_at is None and _name(logged.owner) in alive:
                raise Broken("p9_no_lost_certainty", f"attempt {epoch} of action {action_id} returned {said}: lost")

    # ---- words ------------------------------------------------------------------------------------------------------

    def _appeared(self, commit: Commit, change: Change) -> None:
        if change.before is None and change.after is None and change.id not in self.made_by:
            self.fleeting.add(change.id)
        if not change.made or change.after is None:
            return
        for asked in self.asked:
            if asked.request.idempotency_key == change.after.key:
                asked.holders.add(change.id)
                if asked.wants(change.after, commit.now):
                    asked.fits.add(change.id)
                    self.untold.add(change.id)
                    self.made_by[change.id] = asked.request

    def _superseded(self, commit: Commit) -> None:
        """Note what each new superseding action superseded: in its lane, what came after the one before it."""
        since: dict[str | None, int] = {}
        ended = [change.after for change in commit.changes if change.superseded and change.after is not None]
        for new in self._superseding(commit):
            mine = {row.id for row in ended if row.lane == new.lane and since.get(new.lane, 0) <= row.id < new.id}
            self.displaced[new.id] = mine
            since[new.lane] = new.id

    def _superseding(self, commit: Commit) -> Iterator[Row]:
        """The new actions that are to supersede, in the order of their ids."""
        for change in commit.changes:
            if change.made and any(asked.supersede for asked in self.asked if change.id in asked.fits):
                yield self.rows[change.id]

    def knows(self, build: int, row: Row, *, any_notice: bool = False) -> bool:
        """Whether a build decodes a row."""
        return self.kinds[row.kind].since <= build and (any_notice or NOTICES[self.notices[row.id]] <= build)

    def _must_end(self, row: Row, now: int) -> bool:
        """Whether an action ends although its kind is paused: it has expired, is running, or was lost for good."""
        if row.state != "EXECUTING":
            return row.expired(now)
        running = (row.lease_until or 0) > now
        last = row.attempt >= (row.max_attempts or self.max_attempts)
        once = self.kinds[row.kind].delivery is Delivery.AT_MOST_ONCE
        return running or last or (once if row.fenced_at is not None else row.expired(now))

    def _may_exist(self, action_id: int) -> bool:
        return any(call.came_to != "absent" for call in self.calls.get(action_id, ()))

    def _exists(self, action_id: int) -> bool:
        return any(call.came_to == "effect" for call in self.calls.get(action_id, ()))


def _holds(row: Row, attempt: Logged) -> bool:
    return (row.state, row.epoch, row.owner) == ("EXECUTING", attempt.epoch, attempt.owner)


def _name(owner: str | None) -> str:
    return (owner or "").partition(":")[0]


def _raise_any(promise: str, complaints: Complaints) -> None:
    for complaint in complaints:
        raise Broken(promise, complaint)
