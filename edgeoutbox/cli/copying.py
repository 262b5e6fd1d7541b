"""`migrate` and `copy`: a database's schema, and the way of its actions to another database."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from edgeoutbox.cli.commands import JsonOption, Place, command
from edgeoutbox.cli.exits import Exit
from edgeoutbox.cli.output import say, write, write_json
from edgeoutbox.errors import InvalidRequest, StorageError
from edgeoutbox.sidecar.database import absolute_url, require_there, shown
from edgeoutbox.storage.copying import Tally, copy
from edgeoutbox.storage.places import Place as Database
from edgeoutbox.storage.places import place_of
from edgeoutbox.storage.protocol import Migrated
from edgeoutbox.storage.statements.kinds import HELD_BY

T = TypeVar("T")

LISTED = 20
"""How many actions that were not copied are listed for people; JSON has them all."""


@command(
    "migrate",
    panel="Start",
    example="edgeoutbox migrate --sql --database postgresql:///shop | psql -v ON_ERROR_STOP=1 shop",
)
async def migrate(
    place: Place,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements instead, connecting to nothing")] = False,
) -> None:
    """Make the tables, or bring them to this version, in one transaction.

    For databases whose applications may not do that themselves. Two at once do no harm, and neither does a second time.
    """
    url = place.configuration.database
    target = place_of(url)
    if sql:
        sys.stdout.write(target.sql())
        return
    migrated = await target.migrate()
    write(f"{shown(url)}: {said(migrated)}")
    if migrated.grants is not None:
        say(f"\nA role that runs or enqueues, and does not own the tables, needs:\n\n{migrated.grants}")


def said(migrated: Migrated) -> str:
    """What a migration did, in words."""
    match migrated:
        case Migrated(before=None, after=after):
            return f"created the tables of schema {after}"
        case Migrated(before=before, after=after) if before == after:
            return f"already has schema {after}; nothing was changed"
        case Migrated(before=before, after=after):
            return f"brought from schema {before} to {after}"


Url = Annotated[str, typer.Argument(metavar="SRC", help="The database to copy from, a URL or a path")]
OtherUrl = Annotated[str, typer.Argument(metavar="DST", help="The database to copy to; made if it is not there")]


@command(
    "copy", panel="Start", example="edgeoutbox copy sqlite:///app.db 'postgresql://owner@db/shop?schema=edgeoutbox'"
)
async def copy_(
    place: Place,
    src: Url,
    dst: OtherUrl,
    everything: Annotated[bool, typer.Option("--all", help="Also what has ended, for the record")] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy what has not ended to another database, of the same kind or not.

    Stop the executors of the source first. Every kind is paused there, so that nothing is sent twice; an action is
    known by its key at the destination, so a copy that was interrupted is simply run again.
    """
    if place.database is not None:
        raise InvalidRequest("--database: copy is told its two databases as SRC and DST")
    source_url, destination_url = (absolute_url(given, Path.cwd()) for given in (src, dst))
    source, destination = place_of(source_url), place_of(destination_url)
    await _of("src", require_there(source_url))
    await _of("src", source.migrate())  # one that an older build made may lack a column
    made = await _of("dst", destination.migrate())
    _refuse_one(source, destination)
    async with source.opened(), destination.opened():
        _refuse_one(source, destination)
        await destination.make_ready()
        if made.before != made.after:
            say(f"{shown(destination_url)}: {said(made)}")
        tally = await _carried(copy(source, destination, HELD_BY + destination.shown, everything=everything))
    if as_json:
        write_json(_as_json(tally))
    else:
        _report(tally, shown(source_url), shown(destination_url))
    if tally.left:
        raise typer.Exit(Exit.NOT_POSSIBLE)


async def _carried(copying: AsyncIterator[Tally]) -> Tally:
    """Carry over with a bar, and say how to go on when that is cut short."""
    tally = await anext(copying)  # from here on the source is on hold
    try:
        with _progress() as show:
            show(tally)
            async for tally in copying:
                show(tally)
    except (asyncio.CancelledError, StorageError):
        say("interrupted: what went over stays, the source is on hold; run the same again to go on")
        raise
    return tally


async def _of(which: str, work: Awaitable[T]) -> T:
    """What the work comes to; an error says of which of the two databases it is."""
    try:
        return await work
    except StorageError as error:
        raise type(error)(f"{which}: {error}") from None


def _refuse_one(source: Database, destination: Database) -> None:
    """Refuse two names of one database; of Postgres it is known only once both are open."""
    if source.identity is not None and source.identity == destination.identity:
        raise InvalidRequest("dst: it is the database that src names; name another")


@contextmanager
def _progress() -> Iterator[Callable[[Tally], None]]:
    """A bar on the terminal, if there is one."""
    bar = Progress(
        TextColumn("copying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("copying", total=None)
        yield lambda tally: bar.update(task, completed=tally.seen, total=max(tally.total, tally.seen))


def _as_json(tally: Tally) -> dict[str, object]:
    return {
        "copied": tally.copied,
        "present": tally.present,
        "left": [{"id": left.id, "kind": left.kind, "why": left.outcome.value} for left in tally.left],
        "paused": tally.paused,
    }


def _report(tally: Tally, source: str, destination: str) -> None:
    write(f"copied {_actions(tally.copied)} to {destination}" + _present(tally.present))
    if tally.left:
        say(f"{_actions(len(tally.left))} stayed at the source:")
        for left in tally.left[:LISTED]:
            say(f"  action {left.id} of kind {left.kind}: {left.outcome}")
        if len(tally.left) > LISTED:
            say(f"  and {len(tally.left) - LISTED} more; --json lists them all")
    if tally.paused:
        say(
            f"paused at {source}: {', '.join(tally.paused)}. Let programs use the destination from now on, and copy "
            "again for what was enqueued meanwhile.\n"
            "To stay at the source instead, while nothing was carried out at the destination: "
            "edgeoutbox resume KIND --copied"
        )


def _present(count: int) -> str:
    return f"; {count} {'was' if count == 1 else 'were'} there already" if count else ""


def _actions(count: int) -> str:
    return f"{count} action{'' if count == 1 else 's'}"
