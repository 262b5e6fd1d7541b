"""What commands print: tables and sentences for people, JSON for programs.

Data goes to standard output, messages to standard error. Keys, lanes and names come from other programs, so whatever
could act on a terminal is printed as its code.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgeoutbox.model import Action

_WIDE = 240
"""Columns of a table that no terminal shows: wide enough that nothing is cut."""

_GAP = 2
"""Columns of a terminal between those of a table."""

_NARROWEST = 12

_PARTS = re.compile(r"[^\s:/,;-]*[\s:/,;-]+|[^\s:/,;-]+")

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

    On a narrow terminal the columns `folds` become narrower, on several lines, which end where a word or a part of a
    key ends: nothing is cut. The others stay as they are. A column without any value is left out.
    """
    if not rows:
        say(none)
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    shown = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    cells = [["" if row[index] is None else visible(str(row[index])) for index in shown] for row in rows]
    out = console(sys.stdout)
    widths = [max(map(cell_len, column)) for column in zip([columns[index] for index in shown], *cells, strict=True)]
    narrow = _narrowed(widths, {place for place, index in enumerate(shown) if columns[index] in folds}, out.width)
    for index in shown:
        numbers = all(isinstance(row[index], int) for row in rows)
        table.add_column(columns[index], justify="right" if numbers else "left", no_wrap=True)
    for row in cells:
        table.add_row(
            *(Text(_folded(cell, narrow[place]), style=_STYLES.get(cell, "")) for place, cell in enumerate(row))
        )
    out.width = max(out.width, sum(widths) + _GAP * len(widths))  # else what has no place to fold would be cut
    out.print(table)


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


def _narrowed(widths: Sequence[int], folds: Collection[int], available: int) -> list[int]:
    """The widths once the widest of these columns have given way, as far as they can."""
    narrow = list(widths)
    while sum(narrow) + _GAP * (len(narrow) - 1) > available:
        widest = max(folds, key=lambda place: narrow[place], default=None)
        if widest is None or narrow[widest] <= _NARROWEST:
            break
        narrow[widest] -= 1
    return narrow


def _folded(text: str, width: int) -> str:
    """The text on lines of this width, which end after a separator; a part that is longer stays whole."""
    lines = [""]
    for part in _PARTS.findall(text):
        if lines[-1] and cell_len(lines[-1]) + cell_len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
