"""`erase`, `forget` and `sweep`: what is deleted."""

from typing import Annotated

import typer

from edgeoutbox.cli.commands import Place, command
from edgeoutbox.cli.opening import at_terminal, find, opened
from edgeoutbox.cli.output import write
from edgeoutbox.cli.reading import ByKey, IdOrKey
from edgeoutbox.errors import InvalidRequest

PANEL = "Delete"

_AT_ONCE = 500


@command("erase", panel=PANEL, example="edgeoutbox erase acc-7 --yes")
async def erase(
    place: Place,
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="The account that they concern", show_default=False)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Delete every action about an account, in every state, with what was logged of them. What was sent stays sent."""
    async with opened(place) as outbox:
        if not yes:
            if not at_terminal():
                raise InvalidRequest("erase: this cannot be undone; give --yes")
            if not typer.confirm("Delete every action about this account?", err=True):
                raise typer.Abort
        erased = await outbox.erase(subject)
    write(f"Erased {erased} action{'' if erased == 1 else 's'}.")


@command("forget", panel=PANEL, example="edgeoutbox forget order:42:receipt")
async def forget(place: Place, action: IdOrKey, by_key: ByKey = False) -> None:
    """Delete one action: now if it has ended, else as soon as it ends. Its key is free again then."""
    async with opened(place) as outbox:
        found = await find(outbox, action, by_key=by_key)
        await outbox.forget(found.idempotency_key)
        left = await outbox.get(found.id)
    if left is None:
        write(f"Forgot action {found.id}; its key is free.")
    else:
        write(f"Action {left.id} will be deleted once {'its ended hook has run' if left.ended else 'it has ended'}.")


@command("sweep", panel=PANEL, example="edgeoutbox sweep")
async def sweep(
    place: Place,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only of these kinds; else of all", show_default=False)
    ] = None,
) -> None:
    """Delete actions that ended longer ago than their kind's retention, as a running executor does by itself."""
    swept = 0
    async with opened(place) as outbox:
        kinds = kind or list(await outbox.kinds())
        while found := await outbox.storage.sweep(kinds, _AT_ONCE):
            swept += found
    write(f"Swept {swept} action{'' if swept == 1 else 's'}.")
