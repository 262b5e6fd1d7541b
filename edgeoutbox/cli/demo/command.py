"""`demo`, as people see it."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgeoutbox.cli.commands import JsonOption, Place, command
from edgeoutbox.cli.demo.figures import Figures
from edgeoutbox.cli.exits import Exit
from edgeoutbox.cli.output import console, say, write_json, write_table


@command("demo", panel="Start", example="edgeoutbox demo")
async def demo(
    place: Place,  # noqa: ARG001 - it has a place of its own
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with database, record and log")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send 200 emails to a relay on this machine, kill the sender half way, and count what arrived.

    Needs no configuration and no network. Exits with 0 only if nothing was sent twice, lost or out of order.
    """
    from edgeoutbox.cli.demo.stage import EMAILS, Stage  # noqa: PLC0415 - only the demo needs a relay

    _cancel_on_sigterm()
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="edgeoutbox-demo-"))
    good = False
    try:
        with _progress() as progress:
            task = progress.add_task("ended", total=EMAILS)
            stage = Stage(
                folder,
                tell=lambda sentence: progress.console.print(sentence, markup=False),
                progress=lambda ended: progress.update(task, completed=ended),
            )
            found = await stage.perform()
        good = found.good and found.actions == EMAILS
        if as_json:
            write_json(asdict(found))
        else:
            _show(found, good=good)
    except asyncio.CancelledError:
        say("interrupted")
    finally:
        if keep or not good:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not good:
        raise typer.Exit(Exit.NOT_POSSIBLE)


def _cancel_on_sigterm() -> None:
    """End the demo's processes with it, also when it is terminated."""
    task = asyncio.current_task()
    if task is not None and os.name == "posix":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr)) as progress:
        yield progress


def _show(found: Figures, *, good: bool) -> None:
    write_table(
        ("", "emails", ""),
        [
            ("sent once", found.delivered, "the relay said that it has them"),
            ("sent twice", found.duplicates, "copies beyond the first in the relay's record"),
            (
                "uncertain",
                found.uncertain,
                f"in the relay's hands at the kill; {found.uncertain_arrived} had arrived",
            ),
            ("lost", found.lost, "done but not in the relay's record, or not ended"),
            ("order broken", found.out_of_order, "came after a later one of their lane"),
        ],
        none="nothing was sent",
        folds=("",),
    )
    verdict = "Nothing was sent twice, lost or out of order" if good else "This is not what was promised"
    sys.stdout.write(f"{verdict}: {found.actions} emails, {found.kills} kill, {found.seconds:.1f} s.\n")
