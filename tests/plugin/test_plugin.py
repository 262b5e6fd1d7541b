"""The pytest plugin, in projects of its users: each run is a pytest of its own in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.blocks import blocks, part

EXAMPLES = Path(__file__).parents[2] / "examples"

FIXTURES = """
import pytest
from edgeoutbox import ActionRequest, Retry
from edgeoutbox.testing import ScriptedAdapter, Sent


def asked(key, kind="scripted", **fields):
    return ActionRequest(kind=kind, idempotency_key=key, payload={"order": key}, **fields)


@pytest.mark.asyncio
async def test_the_scripted_adapter_carries_out_what_waits(outbox, scripted_adapter, outbox_clock):
    scripted_adapter.on("a", Retry("busy", wait=60.0))
    before = outbox_clock.wall()
    action = await outbox.enqueue(asked("a"))
    await outbox.drain()
    assert (await outbox.get(action.id)).state == "DONE"
    assert scripted_adapter.writes == ["a", "a"]
    assert outbox_clock.wall() - before >= 60


class TestOwnAdapters:
    @pytest.fixture
    def outbox_adapters(self):
        return [ScriptedAdapter("receipt")]

    @pytest.mark.asyncio
    async def test_its_fixture_is_overridden(self, outbox):
        assert list(outbox.adapters) == ["receipt"]


@pytest.mark.asyncio
async def test_what_would_be_sent(outbox, scripted_adapter, outbox_clock):
    with outbox.recording() as sent:
        await outbox.enqueue(asked("a", lane_key="lane"))
        await outbox.enqueue(asked("later", due_at=outbox_clock.milliseconds + 86_400_000))
        await outbox.enqueue(asked("b", kind="of_another_program"))
        await outbox.enqueue(asked("a"))
        await outbox.propose(asked("proposed"))
        assert sent == []
    assert sent == [
        Sent("scripted", {"order": "a"}, "lane", "a"),
        Sent("of_another_program", {"order": "b"}, None, "b"),
        Sent("scripted", {"order": "later"}, None, "later"),
    ]
    assert scripted_adapter.calls == []


@pytest.mark.asyncio
async def test_each_test_has_a_database_of_its_own(outbox):
    assert (await outbox.list()).actions == ()
"""

CRASHES = """
import pytest


@pytest.mark.asyncio
async def test_without_the_mark(crash):
    pass
"""


def run(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run pytest in a folder, with nothing of our own configuration."""
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(  # noqa: S603 - ours
        command,
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": "", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def settings(mode: str) -> str:
    """A project's settings: every warning is an error, every mark is known."""
    return (
        f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\n"
        "addopts = --strict-markers\nfilterwarnings = error\n"
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_the_fixtures(tmp_path: Path, mode: str, workers: tuple[str, ...]) -> None:
    """They work in both modes of pytest-asyncio, in one process and in several."""
    (tmp_path / "pytest.ini").write_text(settings(mode))
    (tmp_path / "test_fixtures.py").write_text(FIXTURES)
    found = run(tmp_path, *workers)
    assert "4 passed" in found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize(("mode", "workers"), [("auto", ()), ("strict", ("-n", "2"))])
def test_the_document_of_a_third_party_passes_as_it_is_written(
    tmp_path: Path, mode: str, workers: tuple[str, ...]
) -> None:
    """An adapter of another package goes through the matrix, copied block by block: eighteen kills."""
    for block in blocks(part("docs/testing.md", "Crash matrix"), "python"):
        (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block)
    (tmp_path / "pytest.ini").write_text(settings(mode))
    found = run(tmp_path, *workers)
    assert "18 passed" in found.stdout, found.stdout + found.stderr


def test_the_other_blocks_of_the_document_pass_as_they_are_written(tmp_path: Path) -> None:
    """Each is a file of tests that is complete, also where pytest-asyncio is strict."""
    (tmp_path / "pytest.ini").write_text(settings("strict"))
    every = blocks((EXAMPLES.parent / "docs" / "testing.md").read_text(encoding="utf-8"), "python")
    others = [block for block in every if not block.startswith("# ")]
    for number, block in enumerate(others):
        (tmp_path / f"test_{number}.py").write_text(block)
    found = run(tmp_path)
    assert f"{len(others)} passed" in found.stdout, found.stdout + found.stderr
    assert len(others) == len(every) - 2


def test_the_example_turns_red_when_its_provider_forgets(tmp_path: Path) -> None:
    """A provider that counts a page again breaks what `repeatable` declares, where a write is sent again."""
    shutil.copy(EXAMPLES / "pager_adapter.py", tmp_path)
    source = (EXAMPLES / "test_pager_adapter.py").read_text()
    forgets = source.replace('setdefault(page["token"], page["text"])', 'update({f"{len(self.pages)} {page}": ""})')
    counted = forgets.replace("int(key in pager.pages)", "sum(repr(key) in page for page in pager.pages)")
    assert len({source, forgets, counted}) == 3
    (tmp_path / "test_forgetful.py").write_text(counted)
    (tmp_path / "pytest.ini").write_text(settings("auto"))
    found = run(tmp_path)
    assert "4 failed, 14 passed" in found.stdout, found.stdout + found.stderr
    assert (
        "promised: DONE CONFIRMED; 1 effect; lost, Done; found: DONE CONFIRMED; 2 effects; lost, Done" in found.stdout
    )


def test_nothing_is_imported_where_it_is_not_used(tmp_path: Path) -> None:
    """A project that uses none of it imports one small file of ours, and no package."""
    (tmp_path / "pytest.ini").write_text(settings("auto"))
    (tmp_path / "conftest.py").write_text(
        "import json, sys\n"
        "def pytest_sessionfinish(session):\n"
        "    ours = sorted(name for name in sys.modules if name.partition('.')[0].startswith('edgeoutbox'))\n"
        "    (session.config.rootpath / 'imported.json').write_text(json.dumps(ours))\n"
    )
    (tmp_path / "test_other.py").write_text("async def test_it():\n    pass\n")
    found = run(tmp_path)
    assert "1 passed" in found.stdout, found.stdout + found.stderr
    assert json.loads((tmp_path / "imported.json").read_text()) == ["edgeoutbox_pytest"]


def test_the_mark_is_registered_and_goes_with_its_fixture(tmp_path: Path) -> None:
    """`--markers` tells of it; the fixture without the mark, and the mark without the fixture, say what is missing."""
    (tmp_path / "pytest.ini").write_text(settings("auto"))
    assert "@pytest.mark.crash_matrix(" in run(tmp_path, "--markers").stdout
    (tmp_path / "test_crashes.py").write_text(CRASHES)
    assert "is for tests marked @pytest.mark.crash_matrix" in run(tmp_path).stdout
    (tmp_path / "test_crashes.py").write_text(
        "import pytest\n@pytest.mark.crash_matrix\nasync def test_it():\n    pass\n"
    )
    found = run(tmp_path)
    assert "takes the fixture `crash`" in found.stdout + found.stderr


IDLE = """
import pytest
from edgeoutbox.testing.scripted import ScriptedAdapter


@pytest.mark.crash_matrix
async def test_that_forgets(crash):
    pass


@pytest.mark.crash_matrix
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_that_does_not_wait(crash):
    crash(ScriptedAdapter, request=None, effects=None)


@pytest.mark.crash_matrix
async def test_that_fails_before(crash):
    raise ValueError("a defect of the test")


@pytest.mark.crash_matrix
async def test_that_is_skipped(crash):
    pytest.skip("not today")
"""


def test_a_test_that_kills_nobody_is_red(tmp_path: Path) -> None:
    """It must await what it was given; one that fails or is skipped before says so itself."""
    (tmp_path / "pytest.ini").write_text(settings("auto"))
    (tmp_path / "test_idle.py").write_text(IDLE)
    found = run(tmp_path)
    assert "54 failed, 18 skipped" in found.stdout, found.stdout + found.stderr
    assert found.stdout.count("\nnobody was killed: the test did not `await crash(...)`\n") == 36
    assert found.stdout.count("\nE       ValueError: a defect of the test\n") == 18


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("databases=[]", "databases=[]: give a list of one or both of sqlite, sqlite+apsw"),
        ("databases=['sqlit']", "databases=['sqlit']: give a list of one or both of sqlite, sqlite+apsw"),
        ("databases=['postgresql']", "python -m edgeoutbox.testing.crash --database postgresql"),
        ("databases='sqlite'", "databases='sqlite': give a list"),
        ("database=['sqlite']", "crash_matrix takes databases=[...] and every=True"),
    ],
)
def test_a_mark_that_is_wrong_is_refused_when_tests_are_collected(tmp_path: Path, arguments: str, said: str) -> None:
    """It names the test, what is wrong and what to give; no cell runs, and none is skipped."""
    (tmp_path / "pytest.ini").write_text(settings("auto"))
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n@pytest.mark.crash_matrix({arguments})\nasync def test_it(crash):\n    pass\n"
    )
    found = run(tmp_path)
    assert found.returncode == 2, found.stdout + found.stderr
    assert "\ntest_it.py::test_it: crash_matrix" in found.stdout
    assert said in found.stdout
    assert "Traceback" not in found.stdout + found.stderr


def test_without_pytest_asyncio_it_says_what_is_missing(tmp_path: Path) -> None:
    """The outbox needs an event loop; whoever has none is told so, and only when it is used."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "pytest_asyncio.py").write_text("raise ImportError\n")
    (tmp_path / "test_it.py").write_text("def test_other():\n    pass\ndef test_it(outbox):\n    pass\n")
    found = run(
        tmp_path,
        *("-p", "edgeoutbox_pytest"),
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path / "without")},
    )
    assert "the fixture `outbox` needs pytest-asyncio" in found.stdout, found.stdout + found.stderr
    assert "1 passed, 1 error" in found.stdout
    (tmp_path / "test_it.py").write_text("async def test_it(outbox):\n    pass\n")
    turned_off = run(tmp_path, "-p", "no:asyncio").stdout
    assert "the fixture `outbox` needs pytest-asyncio" in turned_off, turned_off
    assert "1 error" in turned_off
