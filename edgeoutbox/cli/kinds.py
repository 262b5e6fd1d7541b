"""`pause`, `resume` and `kind`: what holds for all actions of a kind, in every process."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from edgeoutbox.cli.commands import JsonOption, Place, command
from edgeoutbox.cli.opening import opened, somebody
from edgeoutbox.cli.output import moment, say, write, write_fields, write_json, write_table
from edgeoutbox.errors import InvalidRequest, NoSuchAction
from edgeoutbox.kinds import Delivery

PANEL = "Kinds"

Name = Annotated[str, typer.Argument(metavar="KIND", help="The kind's name", show_default=False)]


class Allowance(StrEnum):
    """What `kind --allow` can set."""

    AT_MOST_ONCE = "at_most_once"
    READS_BACK = "reads_back"
    REPEATABLE = "repeatable"
    WRITES_NOTHING = "writes_nothing"
    NO_APPROVAL = "no-approval"
    APPROVAL = "approval"


_ALLOW_HELP = f"Loosen the kind; only people can: {', '.join(Allowance)}"

_APPROVALS = {Allowance.NO_APPROVAL: False, Allowance.APPROVAL: True}


@command("pause", panel=PANEL, example="edgeoutbox pause email --by anna")
async def pause(
    place: Place,
    name: Name,
    by: Annotated[str | None, typer.Option("--by", help="Who pauses it; backlog and why say so")] = None,
) -> None:
    """Start no more actions of a kind, in any process, until somebody resumes it."""
    by = by or somebody()
    async with opened(place) as outbox:
        await outbox.pause(name, by)
    write(f"Kind {name} is paused by {by}. What is executing goes on.")


@command("resume", panel=PANEL, example="edgeoutbox resume email")
async def resume(
    place: Place,
    name: Name,
    copied: Annotated[
        bool,
        typer.Option("--copied", help="Also a kind that was copied to another database, where nothing was carried out"),
    ] = False,
) -> None:
    """End a kind's pause, and its cooling down after a failure."""
    async with opened(place) as outbox:
        await outbox.resume(name, copied=copied)
    write(f"Kind {name} goes on.")


@command("kind", panel=PANEL, example="edgeoutbox kind email --allow no-approval")
async def kind(
    place: Place,
    name: Annotated[
        str | None, typer.Argument(metavar="KIND", help="The kind's name; without one, all", show_default=False)
    ] = None,
    allow: Annotated[
        list[Allowance] | None,
        typer.Option("--allow", metavar="WHAT", help=_ALLOW_HELP, show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a kind promises, or loosen it.

    Programs can only make a kind stricter. Loosening is refused while one of its actions may exist at the provider.
    """
    if allow and name is None:
        raise InvalidRequest("kind: name the one to loosen")
    async with opened(place) as outbox:
        if name is not None and allow:
            for each in allow:
                if each in _APPROVALS:
                    await outbox.allow(name, requires_approval=_APPROVALS[each])
                else:
                    await outbox.allow(name, delivery=Delivery(each.value))
                    say("a program whose adapter declares less makes it stricter again when it starts")
        known = await outbox.kinds()
    if name is None:
        _write_all([asdict(policy) for policy in known.values()], as_json=as_json)
        return
    if name not in known:
        raise NoSuchAction(
            f"no program has declared a kind {name} in this database; known are: {', '.join(known) or '-'}"
        )
    policy = asdict(known[name])
    if as_json:
        write_json(policy)
    else:
        write_fields({**policy, "cooling_until": moment(policy["cooling_until"])})


def _write_all(policies: list[dict[str, object]], *, as_json: bool) -> None:
    if as_json:
        write_json(policies)
        return
    columns = ("name", "delivery", "requires_approval", "retention_days", "paused_by", "cooling_reason")
    rows = [[policy[column] for column in columns] for policy in policies]
    write_table(
        [column.replace("_", " ") for column in columns], rows, none="no kind is declared", folds=("cooling reason",)
    )
