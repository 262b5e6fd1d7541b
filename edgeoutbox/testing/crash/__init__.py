"""The crash matrix: a program is killed at each durable boundary of an action's life, started again, and judged.

`failpoints` says where, `promises` what must come of it, `matrix` runs one cell; `python -m edgeoutbox.testing.crash`
runs them all. `docs/testing.md` shows how an adapter of your own goes through it.
"""

from edgeoutbox.testing.crash.checking import Crash
from edgeoutbox.testing.crash.failpoints import Failpoint, Seam, Step
from edgeoutbox.testing.crash.matrix import Cell, Finding, Subject, cells, run_cell
from edgeoutbox.testing.crash.programs import Programs
from edgeoutbox.testing.crash.promises import PROMISED, Ending, Promise, table

__all__ = [
    "PROMISED",
    "Cell",
    "Crash",
    "Ending",
    "Failpoint",
    "Finding",
    "Programs",
    "Promise",
    "Seam",
    "Step",
    "Subject",
    "cells",
    "run_cell",
    "table",
]
