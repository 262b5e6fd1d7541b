"""The matrix sees a promise that is not kept, and says which."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.kinds import Delivery
from edgeoutbox.model import ActionRequest
from edgeoutbox.testing.crash import Cell, Failpoint, Finding, Programs, Seam, Subject, run_cell
from edgeoutbox.testing.crash.__main__ import main
from edgeoutbox.testing.crash.checking import Crash
from edgeoutbox.testing.crash.factories import Reference
from edgeoutbox.testing.crash.model import ModelAdapter, model_subject
from tests.crash.liars import (
    AsksAgain,
    BelievesItself,
    Fails,
    NeverLooks,
    Raises,
    WritesFirst,
    another_kind,
    answering_before_commit,
    committing_twice,
    liar,
)

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


async def finding_in(cell: Cell, factory: Callable[..., ModelAdapter], programs: Programs, folder: Path) -> Finding:
    """What is found when the model's storage is the one that the factory makes."""
    subject = replace(model_subject(Delivery.AT_MOST_ONCE, folder), factory=factory)
    return await run_cell(programs, subject, cell, folder)


@pytest.mark.parametrize(
    ("failpoint", "had"),
    [
        (Failpoint.AFTER_ENQUEUE, "was to have it waiting, and had it absent"),
        (Failpoint.AFTER_OWED_HOOK, "was to have it ended, and had it ended, hook owed"),
        (Failpoint.AFTER_SWEEP, "was to have it absent, and had it ended"),
    ],
    ids=str,
)
async def test_a_storage_that_answers_before_its_commit_is_red(
    failpoint: Failpoint, had: str, crash_programs: Programs, tmp_path: Path
) -> None:
    """What was confirmed and is lost is seen, also where the next start would make it again."""
    cell = Cell(failpoint, Seam.STORAGE)
    finding = await finding_in(cell, answering_before_commit, crash_programs, tmp_path)
    assert had in finding.trouble[0]


@pytest.mark.parametrize(
    ("failpoint", "had"),
    [
        (Failpoint.BEFORE_ENQUEUE, "was to have it absent, and had it waiting"),
        (Failpoint.BEFORE_OWED_HOOK, "was to have it ended, hook owed, and had it ended"),
        (Failpoint.BEFORE_REAP, "was to have it fenced, and had it ended"),
        (Failpoint.BEFORE_SWEEP, "was to have it ended, and had it absent"),
    ],
    ids=str,
)
async def test_a_storage_that_commits_too_early_is_red(
    failpoint: Failpoint, had: str, crash_programs: Programs, tmp_path: Path
) -> None:
    """What must not be there yet is seen, also where the end is the same."""
    finding = await finding_in(Cell(failpoint, Seam.COMMIT), committing_twice, crash_programs, tmp_path)
    assert had in finding.trouble[0]


async def test_what_was_enqueued_is_not_enqueued_again(crash_programs: Programs, tmp_path: Path) -> None:
    """A confirmed action that is lost stays lost, with all that was promised of it."""
    cell = Cell(Failpoint.AFTER_ENQUEUE, Seam.STORAGE)
    finding = await finding_in(cell, answering_before_commit, crash_programs, tmp_path)
    assert "promised: DONE CONFIRMED; 1 effect; Done; found: absent; no effects; no attempts" in finding.trouble


async def test_an_attempt_too_many_is_red_where_none_was_lost(crash_programs: Programs, tmp_path: Path) -> None:
    """Behind a lost attempt an adapter may ask for more; else nothing went wrong."""
    subject = liar(AsksAgain, Delivery.AT_MOST_ONCE, tmp_path)
    finding = await run_cell(crash_programs, subject, Cell(Failpoint.BEFORE_ENQUEUE, Seam.COMMIT), tmp_path)
    assert "promised: DONE CONFIRMED; 1 effect; Done; found: DONE CONFIRMED; 1 effect; Retry, Done" in finding.trouble


async def test_a_red_cell_says_why_the_attempts_failed(crash_programs: Programs, tmp_path: Path) -> None:
    """An adapter that raises again and again is told once, with what it raised."""
    subject = liar(Fails, Delivery.AT_MOST_ONCE, tmp_path)
    finding = await run_cell(crash_programs, subject, Cell(Failpoint.AFTER_CLAIM, Seam.COMMIT), tmp_path)
    told = "\n".join(finding.trouble)
    assert re.search(r"the reasons of its attempts: \d+ x Error \(.*KeyError.*\)$", told, re.MULTILINE), told
    assert re.search(r"found: FAILED ATTEMPTS_EXHAUSTED; no effects; lost, \d+ x Error$", told, re.MULTILINE), told


async def test_a_cell_runs_once(crash_programs: Programs, tmp_path: Path) -> None:
    """A second adapter in one test would find the database of the first."""
    crash = Crash(FENCED, crash_programs, tmp_path)
    assert not crash.ran
    await crash.subject(model_subject(Delivery.AT_MOST_ONCE, tmp_path))
    assert crash.ran
    with pytest.raises(ConfigurationError, match="a test runs its cell once"):
        await crash.subject(model_subject(Delivery.AT_MOST_ONCE, tmp_path))


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


async def test_a_subject_that_does_not_fit_is_refused(crash_programs: Programs, tmp_path: Path) -> None:
    """A request of another kind, and an argument that cannot leave this process, are named."""
    subject = model_subject(Delivery.AT_MOST_ONCE, tmp_path)
    with pytest.raises(ConfigurationError, match="of the kind letter, and the adapter carries out model"):
        await run_cell(crash_programs, replace(subject, request=another_kind), FENCED, tmp_path)
    with pytest.raises(ConfigurationError, match=r"arguments: a \w*Path cannot be given to the program that is killed"):
        await run_cell(crash_programs, replace(subject, arguments=("at_most_once", Path())), FENCED, tmp_path)


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


LIARS = str(Path(__file__).with_name("liars.py"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jobs", "0"], "0: must be at least 1"),
        (["--jobs", "-1"], "-1: must be at least 1"),
        (["--subject", "nowhere"], "name a callable as"),
        (["--subject", "nowhere.py:subject"], "nowhere.py: there is no such file"),
        (["--subject", "no_such_package:subject"], "loading it raised ModuleNotFoundError"),
        (["--subject", f"{LIARS}:nobody"], "there is no nobody in"),
        (["--subject", f"{LIARS}:turns"], "a subject is a function that is given a folder"),
        (["--subject", f"{LIARS}:gives_nothing"], "gives_nothing: a subject is a function that is given a folder"),
        (["--subject", f"{LIARS}:wants_a_client"], "wants_a_client: arguments: a FileProvider cannot be given"),
    ],
)
def test_the_command_refuses_what_it_cannot_run(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a line that says why: nothing that was not tested is green, or red."""
    try:
        code: object = main([*arguments, "--database", "sqlite"])
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert said in told.err.splitlines()[-1]
    assert "Traceback" not in told.err


def test_the_command_needs_a_driver_for_postgres(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, and without a server, nothing is tested, and it says so at once."""
    chosen = ["--database", "sqlite", "--database", "postgresql", "--failpoint", "before hook"]
    monkeypatch.setattr("edgeoutbox.testing.postgres.unavailable", lambda: "no Postgres: install it")
    assert main(chosen) == 2
    monkeypatch.setitem(sys.modules, "edgeoutbox.testing.postgres", None)
    assert main(chosen) == 2
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "python -m edgeoutbox.testing.crash: postgresql: no Postgres: install it",
        "python -m edgeoutbox.testing.crash: postgresql: needs psycopg 3; pip install 'edgeoutbox[postgres]'",
    ]
    assert told.out == ""


def test_two_subjects_of_one_name_are_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Functions of two files may have one name: none is dropped."""
    copy = tmp_path / "other_liars.py"
    copy.write_text(Path(LIARS).read_text(encoding="utf-8"), encoding="utf-8")
    given = ["--subject", f"{LIARS}:never_looks", "--subject", f"{copy}:never_looks"]
    assert main([*given, "--database", "sqlite", "--failpoint", "after hook"]) == 1
    assert "0 green and 2 red cells" in capsys.readouterr().out


def test_a_subject_that_raises_is_red(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells show nothing, and it says what was raised."""
    given = ["--subject", f"{LIARS}:loses_its_provider", "--database", "sqlite", "--failpoint", "after hook"]
    assert main(given) == 1
    told = capsys.readouterr().out
    assert "OSError: no port is left" in told
    assert "0 green and 1 red cells" in told


def test_the_command_counts_red_cells(capsys: pytest.CaptureFixture[str]) -> None:
    """Its table shows how many cells of each failpoint are green, and its exit code whether all are."""
    chosen = ["--database", "sqlite", "--failpoint", "before settle", "--failpoint", "after settle"]
    assert main(["--subject", f"{LIARS}:never_looks", *chosen]) == 1
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
