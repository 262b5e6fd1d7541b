"""The quick form of the matrix: every promise, at every failpoint, over both copies of SQLite."""

from pathlib import Path

import pytest

from edgeoutbox.kinds import Delivery
from edgeoutbox.testing.crash.checking import Crash
from edgeoutbox.testing.crash.databases import postgres_cell
from edgeoutbox.testing.crash.failpoints import Failpoint, Seam, Step
from edgeoutbox.testing.crash.matrix import POSTGRES, SCHEMES, Cell, cells, run_cell
from edgeoutbox.testing.crash.model import model_subject
from edgeoutbox.testing.crash.programs import Programs
from edgeoutbox.testing.crash.promises import LEFT, PROMISED, Promise
from edgeoutbox.testing.postgres import PostgresServer
from tests.crash import subjects

# The seam of the storage's calls lies above the drivers: over one of them it is enough here. The command runs the rest.
QUICK = [cell for cell in cells() if cell.seam is not Seam.STORAGE or cell.database == SCHEMES[0]]


@pytest.mark.parametrize("cell", QUICK, ids=str)
async def test_each_delivery_keeps_its_promise(cell: Cell, crash_programs: Programs, tmp_path: Path) -> None:
    """Killed once and started again: state, reason, effects and attempts are exactly those of the table.

    Also the results that the comparison leaves out for other adapters: the models never ask for another attempt.
    """
    broken = {}
    for delivery in Delivery:
        folder = tmp_path / delivery
        folder.mkdir()
        finding = await run_cell(crash_programs, model_subject(delivery, folder), cell, folder)
        promised = PROMISED[cell.failpoint][Promise.of(delivery, writes_again=True)]
        if finding.trouble or finding.found != promised:
            broken[delivery] = finding
    assert broken == {}


@pytest.mark.parametrize("cell", list(cells([POSTGRES])), ids=str)
@pytest.mark.parametrize("delivery", [Delivery.AT_MOST_ONCE, Delivery.READS_BACK], ids=str)
async def test_they_keep_it_on_postgres(
    delivery: Delivery, cell: Cell, crash_programs: Programs, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """A killed client leaves its transaction to the server, which undoes it: the ends are the same."""
    subject = model_subject(delivery, tmp_path)
    await Crash(postgres_cell(cell, postgres_server), crash_programs, tmp_path).subject(subject)


@pytest.mark.parametrize("name", subjects.SUBJECTS)
@pytest.mark.crash_matrix
async def test_the_built_in_adapters_keep_theirs(crash: Crash, name: str, tmp_path: Path) -> None:
    """SMTP, Slack and webhooks go through the same matrix, with servers that keep a write and its answer apart."""
    async with subjects.SUBJECTS[name](tmp_path) as subject:
        await crash.subject(subject)


def test_the_matrix_has_every_failpoint_at_every_seam() -> None:
    """Eighteen failpoints: seven steps at two seams and two at one, before and after, over two copies of SQLite."""
    every = list(cells())
    assert len(every) == len(set(every)) == (7 * 2 + 2) * 2 * 2
    assert {cell.failpoint for cell in every} == set(Failpoint)
    assert {cell.failpoint for cell in QUICK} == set(Failpoint)


def test_before_and_after_leave_different_things() -> None:
    """Else nobody would see whether the boundary is one. The provider's side and the hook are not in the database."""
    steps = {failpoint.step: LEFT[failpoint] for failpoint in Failpoint if failpoint.before}
    same = {
        failpoint.step for failpoint in Failpoint if not failpoint.before and LEFT[failpoint] is steps[failpoint.step]
    }
    assert same == {Step.PROVIDER, Step.HOOK}
