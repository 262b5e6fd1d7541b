"""What commands print: tables and sentences for people, JSON for programs.

Data goes to standard output, messages to standard error. Keys, lanes and names come from other programs, so whatever
could act on a terminal is printed as its code.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import zip_longest
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from edgeoutbox.model import Action

_WIDE = 240
"""Columns of a table that no terminal shows: wide enough that nothing is cut."""

_GAP = 2
"""Columns of a terminal between those of a table."""

_NARROWEST = 10

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
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    none: str,
    folds: Collection[str] = (),
    below: str | None = None,
) -> None:
    """A table, on standard output; without a row the message `none`, on standard error.

    On a narrow terminal the column `below` moves to a line of its own under each row that has it. Then the columns
    `folds` become narrower, on several lines, which end where a word or a part of a key ends: nothing is cut. The
    others stay as they are. A column without any value is left out.
    """
    if not rows:
        say(none)
        return
    out = console(sys.stdout)
    given = zip(columns, zip(*rows, strict=True), strict=True)
    table = [_column(name, values) for name, values in given if any(value is not None for value in values)]
    moved = [column for column in table if column.name == below and _width_of(table) > out.width]
    narrow = _narrowed([column for column in table if column not in moved], folds, out.width)
    for row in range(len(rows) + 1):
        out.print(_line(narrow, row), soft_wrap=True)  # what has no place to fold is longer than the terminal, not cut
        for column in moved:
            if row and column.cells[row]:
                out.print(Text(f"   {column.cells[row]}"), soft_wrap=True)


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
    return None if milliseconds is None else local(milliseconds)


def local(milliseconds: int) -> str:
    """A time of the database as its reader's clock shows it."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short_moment(milliseconds: int | None) -> str | None:
    """The same for a narrow column: the time of today, the day and minute of this year, or the date."""
    text = moment(milliseconds)
    if text is None:
        return None
    today = datetime.now().astimezone().strftime("%Y-%m-%d")
    day, _, clock = text.partition(" ")
    if day == today:
        return clock
    return text[len("2026-") : len("2026-11-30 10:10")] if day[:4] == today[:4] else day


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


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of a table; the first of its cells is its name."""

    name: str
    cells: Sequence[str]
    numbers: bool

    @property
    def width(self) -> int:
        """Of its longest line."""
        return max(cell_len(line) for cell in self.cells for line in cell.split("\n"))

    def folded(self, width: int) -> "_Column":
        """The same with its cells on lines of this width."""
        return _Column(self.name, [self.name, *(_folded(cell, width) for cell in self.cells[1:])], self.numbers)


def _column(name: str, values: Sequence[object]) -> _Column:
    cells = ["" if value is None else visible(str(value)) for value in values]
    return _Column(name, [name, *cells], all(isinstance(value, int | None) for value in values))


def _width_of(table: Sequence[_Column]) -> int:
    return sum(column.width for column in table) + _GAP * (len(table) - 1)


def _narrowed(table: Sequence[_Column], folds: Collection[str], available: int) -> Sequence[_Column]:
    """The table once the widest of these columns have given way, as far as they can."""
    over = _width_of(table) - available
    widths = {place: column.width for place, column in enumerate(table) if column.name in folds}
    while over > 0 and widths:
        widest = max(widths, key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        over -= 1
    return [column.folded(widths[place]) if place in widths else column for place, column in enumerate(table)]


def _line(table: Sequence[_Column], row: int) -> Text:
    """One row, on as many lines as its longest cell."""
    lines = []
    for pieces in zip_longest(*(column.cells[row].split("\n") for column in table), fillvalue=""):
        line = Text()
        for column, piece in zip(table, pieces, strict=True):
            gap = " " * (column.width - cell_len(piece))
            style = _STYLES.get(column.cells[row], "") if row else "bold"
            line.append(gap + piece if column.numbers else piece + gap, style).append(" " * _GAP)
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def _folded(text: str, width: int) -> str:
    """The text on lines of this width, which end after a separator; a part that is longer stays whole."""
    lines = [""]
    for part in _PARTS.findall(text):
        if lines[-1] and cell_len(lines[-1]) + cell_len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
