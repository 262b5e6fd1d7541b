"""What a test is given that bears the mark `crash_matrix`: one cell, to run an adapter of its own through."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeoutbox.adapter import Adapter
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.model import ActionRequest
from edgeoutbox.testing.crash.failpoints import WHERE
from edgeoutbox.testing.crash.matrix import START, Cell, Subject, cells, run_cell
from edgeoutbox.testing.crash.programs import Programs

QUICK = ("sqlite",)


class Crash:
    """One kill, at `cell`. Await it with an adapter and its fake provider; it raises what was promised and not kept."""

    def __init__(self, cell: Cell, programs: Programs, folder: Path) -> None:
        self.cell = cell
        self._programs = programs
        self._folder = folder

    async def __call__(
        self,
        factory: Callable[..., Adapter[Any]],
        *arguments: Any,
        request: Callable[[str], ActionRequest],
        effects: Callable[[str], int],
        hold: Callable[[], None] | None = None,
        writes_again: bool = True,
        start: float = START,
    ) -> None:
        """Enqueue, kill, start again, and compare. The parameters are those of `Subject`.

        Raises `AssertionError` with every promise of the kind's delivery that was not kept.
        """
        __tracebackhide__ = True
        await self.subject(Subject(factory, arguments, request, effects, hold, writes_again, start))

    async def subject(self, subject: Subject) -> None:
        """The same for a subject."""
        __tracebackhide__ = True
        finding = await run_cell(self._programs, subject, self.cell, self._folder)
        if finding.trouble:
            where = (
                f"killed {self.cell.failpoint} ({WHERE[self.cell.failpoint]}), {self.cell.seam}, {self.cell.database}"
            )
            raise AssertionError("\n".join([where, *finding.trouble]))


def cells_of_mark(databases: Any = None, *, every: bool = False) -> list[Cell]:
    """The cells of a mark. `every` adds the second copy of SQLite and the second seam: nearly four times as many.

    Raises `ConfigurationError` for databases that are not a sequence of names.
    """
    if isinstance(databases, str):
        raise ConfigurationError('crash_matrix: databases is a list, such as ["sqlite", "sqlite+apsw"]')
    if databases is not None:
        return list(cells(tuple(databases), every_seam=every))
    return list(cells(every_seam=True) if every else cells(QUICK, every_seam=False))
