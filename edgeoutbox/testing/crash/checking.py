"""What a test is given that bears the mark `crash_matrix`: one cell, to run an adapter of its own through."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeoutbox.adapter import Adapter
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.model import ActionRequest
from edgeoutbox.testing.crash.failpoints import WHERE
from edgeoutbox.testing.crash.matrix import SCHEMES, START, Cell, Subject, cells, run_cell
from edgeoutbox.testing.crash.programs import Programs

QUICK = SCHEMES[:1]


class Crash:
    """One kill, at `cell`. Await it with an adapter and its fake provider; it raises what was promised and not kept.

    It runs once; `ran` says whether it did.
    """

    def __init__(self, cell: Cell, programs: Programs, folder: Path) -> None:
        self.cell = cell
        self._programs = programs
        self._folder = folder
        self._begun = False
        self.ran = False

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

        Raises `AssertionError` with every promise of the kind's delivery that was not kept, and `ConfigurationError`
        when the cell was run before, or what it was given cannot be tested.
        """
        __tracebackhide__ = True
        await self.subject(Subject(factory, arguments, request, effects, hold, writes_again, start))

    async def subject(self, subject: Subject) -> None:
        """The same for a subject."""
        __tracebackhide__ = True
        if self._begun:
            raise ConfigurationError(
                "crash: a test runs its cell once, on a database of its own; put the second adapter into a second test"
            )
        self._begun = True
        finding = await run_cell(self._programs, subject, self.cell, self._folder)
        self.ran = True
        if finding.trouble:
            where = (
                f"killed {self.cell.failpoint} ({WHERE[self.cell.failpoint]}), {self.cell.seam}, {self.cell.database}"
            )
            raise AssertionError("\n".join([where, *finding.trouble]))


def cells_of_mark(databases: Any = None, *, every: bool = False) -> list[Cell]:
    """The cells of a mark. `every` adds the second copy of SQLite and the second seam: nearly four times as many.

    Raises `ConfigurationError` for databases that are not a list of copies of SQLite.
    """
    if databases is None:
        return list(cells(every_seam=True) if every else cells(QUICK, every_seam=False))
    chosen = () if isinstance(databases, str) else tuple(databases)
    if not chosen or not set(chosen) <= set(SCHEMES):
        raise ConfigurationError(
            f"crash_matrix: databases={databases!r}: give a list of one or both of {', '.join(SCHEMES)}; for Postgres "
            "there is python -m edgeoutbox.testing.crash --database postgresql"
        )
    return list(cells(chosen, every_seam=every))
