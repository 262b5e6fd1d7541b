"""The matrix sees a promise that is not kept, and says which."""

import re
from pathlib import Path

import pytest

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import ActionRequest
from edgeoutbox.testing.crash import Cell, Failpoint, Programs, Seam, Subject, run_cell
from edgeoutbox.testing.crash.__main__ import main
from edgeoutbox.testing.crash.checking import Crash
from edgeoutbox.testing.crash.factories import Reference
from edgeoutbox.testing.crash.model import ModelAdapter, model_subject
from tests.crash.liars import BelievesItself, NeverLooks, Raises, WritesFirst, liar

FENCED = Cell(Failpoint.AFTER_FENCE, Seam.COMMIT)
PROVIDED = Cell(Failpoint.AFTER_PROVIDER, Seam.ADAPTER)


@pytest.mark.parametrize(
    ("factory", "delivery", "cell", "found"),
    [
        (WritesFirst, Delivery.AT_MOST_ONCE, FENCED, "found: UNCERTAIN LEASE_LOST_AFTER_WRITE; 1 effect; lost"),
        (NeverLooks, Delivery.READS_BACK, PROVIDED, "found: DONE CONFIRMED; 2 effects; lost, Done"),
        (ModelAdapter, Delivery.REPEATABLE, PROVIDED, "found: DONE CONFIRMED; 2 effects; lost, Done"),
        (BelievesItself, Delivery.READS_BACK, FENCED, "found: DONE READ_BACK; no effects; lost, Done"),
        (ModelAdapter, Delivery.WRITES_NOTHING, PROVIDED, "found: DONE CONFIRMED; 2 effects; lost, Done"),
    ],
    ids=["writes first", "never looks", "provider does not deduplicate", "believes itself", "writes after all"],
)
async def test_an_adapter_that_lies_is_red(
    factory: type[ModelAdapter],
    delivery: Delivery,
    cell: Cell,
    found: str,
    crash_programs: Programs,
    tmp_path: Path,
) -> None:
    """What it did not keep stands in the failure, beside what was promised."""
    with pytest.raises(AssertionError, match=re.escape(found)) as failure:
        await Crash(cell, crash_programs, tmp_path).subject(liar(factory, delivery, tmp_path))
    assert str(failure.value).startswith(f"killed {cell.failpoint} (")


async def test_a_failpoint_that_is_not_reached_is_red(crash_programs: Programs, tmp_path: Path) -> None:
    """A life that ends by itself where it was to be killed proves nothing."""
    subject = model_subject(Delivery.AT_MOST_ONCE, tmp_path)
    finding = await run_cell(crash_programs, subject, Cell(Failpoint.AFTER_CLAIM, Seam.ADAPTER), tmp_path)
    assert "nobody was killed: the failpoint was not reached" in finding.trouble


async def test_a_program_that_goes_wrong_is_red(crash_programs: Programs, tmp_path: Path) -> None:
    """What the factory raised is told, and is no crash of ours."""
    finding = await run_cell(crash_programs, liar(Raises, Delivery.AT_MOST_ONCE, tmp_path), FENCED, tmp_path)
    assert finding.found is None
    assert "ValueError: no such pager" in finding.trouble[0]


async def test_a_subject_that_cannot_tell_keys_apart_is_refused(crash_programs: Programs, tmp_path: Path) -> None:
    """One idempotency key for two requests would be one action; effects before the first life are not ours."""
    subject = model_subject(Delivery.AT_MOST_ONCE, tmp_path)

    def always_the_same(_: str) -> ActionRequest:
        return subject.request("same")

    same = Subject(subject.factory, subject.arguments, always_the_same, subject.effects)
    with pytest.raises(ConfigurationError, match="two keys give one"):
        await run_cell(crash_programs, same, FENCED, tmp_path)
    early = Subject(subject.factory, subject.arguments, subject.request, lambda _: 1)
    with pytest.raises(ConfigurationError, match="before it was asked"):
        await run_cell(crash_programs, early, FENCED, tmp_path)


def test_a_factory_that_no_other_process_finds_is_refused() -> None:
    """A lambda, or a function in a function, has no name that another program could use."""

    def inside() -> ModelAdapter:
        return ModelAdapter("at_most_once", "record")

    for factory in (inside, lambda: ModelAdapter("at_most_once", "record")):
        with pytest.raises(ConfigurationError, match="at the top of a file"):
            Reference.of(factory)
    with pytest.raises(ConfigurationError, match="name a callable as"):
        Reference.parse("nowhere")
    with pytest.raises(ConfigurationError, match="there is no Nothing"):
        Reference.parse(f"{__file__}:Nothing").load()


def test_the_command_counts_red_cells(capsys: pytest.CaptureFixture[str]) -> None:
    """Its table shows how many cells of each failpoint are green, and its exit code whether all are."""
    liars = str(Path(__file__).with_name("liars.py"))
    chosen = ["--database", "sqlite", "--failpoint", "before settle", "--failpoint", "after settle"]
    assert main(["--subject", f"{liars}:never_looks", *chosen]) == 1
    told = capsys.readouterr().out
    assert re.search(r"before settle +RED 0/2", told)
    assert re.search(r"after settle +2/2", told)
    assert "2 green and 2 red cells" in told


def test_the_command_runs_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a subject it runs the four deliveries."""
    assert main(["--database", "sqlite", "--failpoint", "before hook"]) == 0
    told = capsys.readouterr().out
    assert "at_most_once  reads_back  repeatable  writes_nothing" in told
    assert "4 green and 0 red cells" in told
