"""What commands print: tables and sentences for people, JSON for programs.

Data goes to standard output, messages to standard error. Keys, lanes and names come from other programs, so whatever
could act on a terminal is printed as its code.
"""

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgeoutbox.model import Action

_WIDE = 240
"""Columns of a table that no terminal shows: wide enough that nothing is cut."""

_ACTS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_STYLES = {
    "DONE": "green",
    "UNCERTAIN": "bold yellow",
    "FAILED": "red",
    "CANCELLED": "dim",
    "EXECUTING": "cyan",
    "ok": "green",
    "not ok": "bold red",
}


def say(message: str) -> None:
    """A message, on standard error."""
    sys.stderr.write(visible(message, keep="\n") + "\n")


def write(text: str) -> None:
    """A text of data, on standard output."""
    sys.stdout.write(visible(text, keep="\n\t") + "\n")


def write_json(value: object) -> None:
    """One JSON value, on standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def write_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, none: str, folds: Sequence[str] = ()
) -> None:
    """A table, on standard output; without a row the message `none`, on standard error.

    On a narrow terminal the columns `folds` become narrower, on several lines; the others stay as they are. A column
    without any value is left out.
    """
    if not rows:
        say(none)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    for index in shown:
        column = columns[index]
        numbers = all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold", no_wrap=column not in folds)
    for row in rows:
        table.add_row(*(_cell(row[index]) for index in shown))
    console(sys.stdout).print(table)


def write_fields(values: Mapping[str, object]) -> None:
    """One thing as lines of name and value, on standard output; what it has not is left out."""
    shown = {name: value for name, value in values.items() if value is not None}
    widest = max(map(len, shown), default=0)
    for name, value in shown.items():
        write(f"{name.ljust(widest)}  {value}")


def console(stream: TextIO) -> Console:
    """A console on the stream, as wide as its terminal."""
    return Console(file=stream, width=None if stream.isatty() else _WIDE, highlight=False)


def moment(milliseconds: int | None) -> str | None:
    """A time of the database as local time, or nothing."""
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short_moment(milliseconds: int | None) -> str | None:
    """The same for a narrow column: the time of today, else the date and the minute."""
    text = moment(milliseconds)
    if text is None:
        return None
    day, _, clock = text.partition(" ")
    today = datetime.now().astimezone().strftime("%Y-%m-%d")
    return clock if day == today else text[: len("2026-11-30 10:10")]


def action_json(action: Action, *, payload: bool = False) -> dict[str, Any]:
    """An action as it is printed for programs: its columns, with the payload only on request."""
    values = {field.name: getattr(action, field.name) for field in fields(action) if field.name != "payload"}
    if payload:
        values["payload"] = None if action.payload is None else json.loads(action.payload)
    return values


def visible(text: str, keep: str = "") -> str:
    """The text with every character that acts on a terminal, or hides or reorders text, as its code."""
    return "".join(
        char if char in keep or unicodedata.category(char) not in _ACTS else char.encode("unicode_escape").decode()
        for char in text
    )


def _cell(value: object) -> Text:
    text = "" if value is None else visible(str(value))
    return Text(text, style=_STYLES.get(text, ""))
