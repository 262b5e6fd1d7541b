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

from edgeoutbox.cli.commands import JsonOption, command
from edgeoutbox.cli.demo.performance import Found, Performance
from edgeoutbox.cli.demo.slack import SlackStage
from edgeoutbox.cli.exits import Exit
from edgeoutbox.cli.output import console, say, write_json, write_table


@command("demo", panel="Start", example="edgeoutbox demo --slack")
async def demo(
    slack: Annotated[
        bool, typer.Option("--slack", help="Post to a Slack on this machine that loses answers, and read them back")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with database, record and log")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send 200 emails to a relay on this machine, kill the sender half way, and count what arrived.

    With --slack, post to a server on this machine that loses answers instead. Needs no configuration and no network.
    Exits with 0 only if nothing was sent twice, lost or out of order.
    """
    _cancel_on_sigterm()
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="edgeoutbox-demo-"))
    good = False
    try:
        with _progress() as progress:
            task = progress.add_task("ended", total=None)
            stage = (SlackStage if slack else _email())(
                folder,
                lambda sentence: progress.console.print(sentence, markup=False),
                lambda ended: progress.update(task, completed=ended),
            )
            progress.update(task, total=stage.total)
            found = await stage.perform()
        good = found.good and found.actions == stage.total
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


def _email() -> type[Performance]:
    from edgeoutbox.cli.demo.stage import Stage  # noqa: PLC0415 - only this demo needs a relay

    return Stage


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


def _show(found: Found, *, good: bool) -> None:
    write_table(("", "count", ""), found.rows(), none="nothing was counted", folds=("",))
    sys.stdout.write(f"{found.verdict(good=good)}\n")
