"""`admit`, `refuse` and `withdraw`: what people decide about actions."""

import json
from typing import Annotated

import typer

from edgeoutbox.cli.commands import JsonOption, Place, command
from edgeoutbox.cli.exits import Exit
from edgeoutbox.cli.opening import at_terminal, find, opened, somebody, with_adapters
from edgeoutbox.cli.output import action_json, say, visible, write, write_json
from edgeoutbox.cli.reading import ByKey, IdOrKey
from edgeoutbox.errors import InvalidRequest, NotPossible
from edgeoutbox.keys import digest_of_json
from edgeoutbox.model import Action
from edgeoutbox.outbox import Outbox
from edgeoutbox.states import State

PANEL = "Decide"

By = Annotated[str | None, typer.Option("--by", help="Who decides; kept with the action")]
Note = Annotated[str | None, typer.Option("--note", help="Why; kept with the action, so no personal data")]


@command("admit", panel=PANEL, example="edgeoutbox admit 42 --by anna")
async def admit(
    place: Place,
    action: IdOrKey,
    by: Annotated[str, typer.Option("--by", help="Who admits it; kept with the action", show_default=False)],
    digest_: Annotated[
        str | None, typer.Option("--digest", metavar="sha256:...", help="The digest of what you saw: asks no question")
    ] = None,
    note: Note = None,
    by_key: ByKey = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a proposal would do, and admit exactly that.

    Without --digest it asks, when there is a terminal to answer; else it only shows.
    """
    async with with_adapters(place) as outbox:
        found = await find(outbox, action, by_key=by_key)
        if found.state is not State.PROPOSED:
            what = f"action {found.id} of kind {found.kind} is {found.state}"
            raise NotPossible(f"{what}, not PROPOSED; only a proposal can be admitted")
        shown = digest_of_json(found.payload or "")
        out = say if as_json else write
        out(await _preview(outbox, found))
        out("")
        out(f"digest: {shown}")
        if digest_ is None and not _confirmed(found):
            say(f"nothing was admitted; to admit what is shown: --digest {shown}")
            raise typer.Exit(Exit.USAGE)
        admitted = await outbox.admit(found.id, by, digest_ or shown, note=note)
    _say_decided(admitted, as_json=as_json)


@command("refuse", panel=PANEL, example='edgeoutbox refuse 42 --by anna --note "wrong customer"')
async def refuse(
    place: Place, action: IdOrKey, by: By = None, note: Note = None, by_key: ByKey = False, as_json: JsonOption = False
) -> None:
    """Refuse a proposal: it ends CANCELLED and is never carried out."""
    async with opened(place) as outbox:
        found = await find(outbox, action, by_key=by_key)
        refused = await outbox.refuse(found.id, by or somebody(), note=note)
    _say_decided(refused, as_json=as_json)


@command("withdraw", panel=PANEL, example="edgeoutbox withdraw order:42:receipt")
async def withdraw(
    place: Place,
    action: Annotated[
        str | None,
        typer.Argument(metavar="ID|KEY", help="The action's id, or its idempotency key", show_default=False),
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="Everything of this run that has not started")] = None,
    lost: Annotated[bool, typer.Option("--lost", help="One whose executor is gone and that no other serves")] = False,
    by: By = None,
    note: Note = None,
    by_key: ByKey = False,
    as_json: JsonOption = False,
) -> None:
    """End an action that has not started; with --lost one that nobody will end. A fenced one ends UNCERTAIN."""
    if (action is None) == (run is None) or (lost and run is not None):
        raise InvalidRequest("withdraw: give one action, or --run")
    async with opened(place) as outbox:
        if run is not None:
            ended = await outbox.withdraw_run(run, by=by or somebody(), note=note)
        else:
            found = await find(outbox, action or "", by_key=by_key)
            if found.ended:
                what = f"action {found.id} of kind {found.kind} is {found.state}"
                raise NotPossible(f"{what}: it has ended already; nothing is left to withdraw")
            ended = [await outbox.withdraw(found.id, by=by or somebody(), note=note, lost=lost)]
    if as_json:
        write_json([action_json(each) for each in ended] if run is not None else action_json(ended[0]))
        return
    for each in ended:
        _say_decided(each, as_json=False)
    if not ended:
        say("nothing of this run has not started")


async def _preview(outbox: Outbox, action: Action) -> str:
    if action.kind in outbox.adapters:
        return await outbox.preview(action.id)
    say(f"note: no adapter of kind {action.kind} is configured here; this is the payload as it is stored")
    return json.dumps(json.loads(action.payload or "{}"), indent=2)


def _confirmed(action: Action) -> bool:
    if not at_terminal():
        return False
    return typer.confirm(f"Admit action {action.id} ({visible(action.kind)})?", err=True)


def _say_decided(action: Action, *, as_json: bool) -> None:
    if as_json:
        write_json(action_json(action))
    else:
        reason = f" ({action.stop_reason})" if action.stop_reason else ""
        write(f"Action {action.id} is {action.state}{reason}.")
