"""`list`, `show`, `why`, `lane` and `backlog`: what is there, and what it waits for."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from edgeoutbox.cli.commands import JsonOption, Place, command
from edgeoutbox.cli.opening import find, opened
from edgeoutbox.cli.output import (
    action_json,
    local,
    moment,
    say,
    short_moment,
    write,
    write_fields,
    write_json,
    write_table,
)
from edgeoutbox.model import Action, AttemptRecord
from edgeoutbox.outbox import Outbox
from edgeoutbox.states import State, StopReason
from edgeoutbox.waiting import sentence

PANEL = "Look"

IdOrKey = Annotated[
    str, typer.Argument(metavar="ID|KEY", help="The action's id, or its idempotency key", show_default=False)
]
ByKey = Annotated[bool, typer.Option("--key", help="Take it as a key although it is a number")]


@command("list", panel=PANEL, example="edgeoutbox list --state UNCERTAIN")
async def list_(  # noqa: PLR0917 - each is an option
    place: Place,
    state: Annotated[
        State | None, typer.Option("--state", metavar="STATE", case_sensitive=False, help="Only in this state")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only of this kind")] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="Only of this lane, ended ones too")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Only of this agent's run")] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="Only about this account")] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many", min=1, max=10_000)] = 50,
    after: Annotated[
        int | None, typer.Option("--after", metavar="CURSOR", help="The page after this one", min=1, max=10**18)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List actions, newest first."""
    async with opened(place) as outbox:
        page = await outbox.list(
            state=state, kind=kind, lane_key=lane, run_id=run, subject_account_id=subject, limit=limit, after=after
        )
    if as_json:
        write_json({"actions": [action_json(action) for action in page.actions], "cursor": page.cursor})
        return
    _write_actions(page.actions, none="no action fits")
    if page.cursor is not None:
        say(f"more: --after {page.cursor}")


@command("show", panel=PANEL, example="edgeoutbox show order:42:receipt")
async def show(
    place: Place,
    action: IdOrKey,
    payload: Annotated[bool, typer.Option("--payload", help="Show the payload too; an ended action has none")] = False,
    by_key: ByKey = False,
    as_json: JsonOption = False,
) -> None:
    """Show one action with everything that was tried, and why it is where it is."""
    async with opened(place) as outbox:
        found = await find(outbox, action, by_key=by_key)
        attempts = await outbox.attempts(found.id)
        why = await _sentence(outbox, found.id, as_json=as_json)
    if as_json:
        records = [{**asdict(attempt), "evidence": dict(attempt.evidence)} for attempt in attempts]
        write_json({**action_json(found, payload=payload), "why": why, "attempts": records})
        return
    shown = action_json(found)
    times = {name: moment(value) for name, value in shown.items() if name.endswith("_at")}
    flags = {name: "yes" if value else None for name, value in shown.items() if isinstance(value, bool)}
    write_fields({**shown, **times, **flags, "payload": found.payload if payload else None})
    write("")
    _write_attempts(found, attempts)
    write(why)


@command("why", panel=PANEL, example="edgeoutbox why 42")
async def why(place: Place, action: IdOrKey, by_key: ByKey = False, as_json: JsonOption = False) -> None:
    """Say in one sentence what an action waits for, or how it ended."""
    async with opened(place) as outbox:
        found = await find(outbox, action, by_key=by_key)
        why = await _sentence(outbox, found.id, as_json=as_json)
    if as_json:
        write_json({"id": found.id, "state": found.state, "why": why})
    else:
        write(why)


@command("lane", panel=PANEL, example="edgeoutbox lane mail:acc-7")
async def lane(
    place: Place,
    lane_key: Annotated[str, typer.Argument(metavar="LANE", help="The lane's key", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """List what has not ended in a lane, in its order: the first holds back the others."""
    async with opened(place) as outbox:
        actions = await outbox.lane(lane_key)
    if as_json:
        write_json([action_json(action) for action in actions])
    else:
        _write_actions(actions, none="nothing waits in this lane")


@command("backlog", panel=PANEL, example="edgeoutbox backlog --json")
async def backlog(place: Place, as_json: JsonOption = False) -> None:
    """Count what waits and what went wrong, by kind, and say whether a running executor serves it."""
    async with opened(place) as outbox:
        kinds = await outbox.backlog()
    if as_json:
        write_json([asdict(kind) for kind in kinds])
        return
    rows = [
        (
            kind.kind,
            "yes" if kind.served else "no",
            kind.proposed or None,
            kind.admitted or None,
            kind.executing or None,
            kind.uncertain or None,
            kind.failed or None,
            short_moment(kind.oldest_due_at),
            _weather(kind.paused_by, kind.cooling_until, kind.cooling_reason),
        )
        for kind in kinds
    ]
    columns = ("kind", "served", "proposed", "admitted", "executing", "uncertain", "failed", "oldest due", "at rest")
    none = "nothing waits, and no kind is declared"
    write_table(columns, rows, none=none, folds=("oldest due",), below="at rest")


def _weather(paused_by: str | None, cooling_until: int | None, reason: str | None) -> str | None:
    if paused_by is not None:
        return f"paused by {paused_by}"
    return f"cooling until {short_moment(cooling_until)}: {reason}" if cooling_until is not None else None


def _write_actions(actions: Iterable[Action], *, none: str) -> None:
    rows = [
        (
            action.id,
            action.kind,
            action.state,
            action.stop_reason if action.stop_reason is not StopReason.CONFIRMED else None,  # DONE says it
            action.attempt,
            short_moment(action.ended_at or action.due_at),
            action.lane_key,
            action.idempotency_key,
        )
        for action in actions
    ]
    columns = ("id", "kind", "state", "reason", "tries", "due/ended", "lane", "key")
    write_table(columns, rows, none=none, folds=("lane", "key"), below="reason")


async def _sentence(outbox: Outbox, action_id: int, *, as_json: bool) -> str:
    """Why, with times for whom it is: in UTC for programs, else as the reader's clock shows them."""
    situation = None if as_json else await outbox.storage.situation(action_id)
    return await outbox.why(action_id) if situation is None else sentence(situation, local)


def _write_attempts(action: Action, attempts: Sequence[AttemptRecord]) -> None:
    # An attempt that does not count gives its number back, to the next one.
    counted = [*(following.attempt - 1 for following in attempts[1:]), action.attempt]
    rows = [
        (
            attempt.epoch,
            local(attempt.started_at),
            _after(attempt.started_at, attempt.write_started_at),
            _after(attempt.started_at, attempt.settled_at),
            _result(attempt, counts=until >= attempt.attempt),
            attempt.owner,
        )
        for attempt, until in zip(attempts, counted, strict=False)
    ]
    columns = ("claim", "started", "wrote", "settled", "result", "executor")
    write_table(columns, rows, none="nothing was tried yet", folds=("result", "executor"))
    for attempt in attempts:
        told = [f"{name}={value}" for name, value in attempt.evidence.items() if value is not None]
        if attempt.reason or told:
            write(f"claim {attempt.epoch}: {' '.join([attempt.reason or '', *told]).strip()}")


def _result(attempt: AttemptRecord, *, counts: bool) -> str | None:
    notes = [note for note, holds in (("too late", attempt.recorded is False), ("not counted", not counts)) if holds]
    return f"{attempt.result} ({', '.join(notes)})" if notes else attempt.result


def _after(start: int, then: int | None) -> str | None:
    return None if then is None else f"+{(then - start) / 1000:.3f} s"
