"""The documents say what the code says."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgeoutbox
from edgeoutbox.states import BORN, ENDED, MEANINGS, STOP_REASONS, TRANSITIONS, StopReason

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "adapters" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LIFECYCLE = (ROOT / "docs" / "lifecycle.md").read_text()
README = (ROOT / "README.md").read_text()


def diagram() -> str:
    """The lifecycle as a Mermaid diagram, drawn from the table."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in sorted(BORN, reverse=True)]
    lines += [f"    {start} --> {end}: {when}" for (start, end), when in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in sorted(ENDED)]
    return "\n".join([*lines, "```"])


def table() -> str:
    """The lifecycle as a table."""
    rows = ["| from | to | when |", "|---|---|---|"]
    rows += [f"| (new) | {state} | {'proposed' if state == 'PROPOSED' else 'enqueued'} |" for state in sorted(BORN)]
    rows += [f"| {start} | {end} | {when} |" for (start, end), when in TRANSITIONS.items()]
    return "\n".join(rows)


def test_the_diagram_is_drawn_from_the_table() -> None:
    """The diagram of the lifecycle has every transition of `states.py`, and no other."""
    assert diagram() in LIFECYCLE


def test_the_table_of_steps_is_that_of_the_code() -> None:
    """The table of the lifecycle is that of `states.py`."""
    assert table() in LIFECYCLE


def test_every_stop_reason_is_explained_under_its_state() -> None:
    """Each stop reason has its row, in the part of its state, with the words of `states.py`."""
    part = LIFECYCLE.partition("## Why it ended")[2].partition("##")[0]
    found: dict[str, set[str]] = {}
    state = ""
    for first, reason, meaning in re.findall(r"^\| (\w*) *\| `(\w+)` \| (.+) \|$", part, re.MULTILINE):
        state = first or state
        found.setdefault(state, set()).add(reason)
        assert meaning == MEANINGS[StopReason(reason)]
    assert found == {state.value: {reason.value for reason in reasons} for state, reasons in STOP_REASONS.items()}


def test_the_first_program_fits_and_compiles() -> None:
    """The README's first program is Python and has at most 25 lines."""
    program = README.partition("```python\n")[2].partition("```")[0]
    compile(program, "README.md", "exec")
    assert len(program.splitlines()) <= 25


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Each relative link of a document names a file that is there."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("number", range(1, 16))
def test_each_promise_has_tests_that_bear_its_number(number: int) -> None:
    """Each promise of the guarantees is tested by name."""
    assert f"| P{number} |" in (ROOT / "docs" / "guarantees.md").read_text()
    sources = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "edgeoutbox" / "testing").rglob("*.py")]
    assert any(re.search(rf"def test_p0?{number}_", source.read_text()) for source in sources)


CONFIGURED = """
import my_pager, pytest
from edgeoutbox import ConfigurationError


def test_configure():
    adapter = my_pager.configure("night", {"url": "https://pager.example.com", "lease": 90})
    assert (adapter.kind.name, adapter.kind.lease) == ("night", 90.0)
    with pytest.raises(ConfigurationError, match="kind night: url: Field required"):
        my_pager.configure("night", {})
"""


def test_the_adapter_of_the_guide_passes_its_own_tests(tmp_path: Path) -> None:
    """The sample of `adapters/README.md`, its tests and their configuration run as they stand there."""
    guide = (ROOT / "adapters" / "README.md").read_text()
    *program, tests = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    [settings] = re.findall(r"```toml\n(\[tool.pytest.*?)```", guide, re.DOTALL)
    (tmp_path / "my_pager.py").write_text("\n\n".join(program))
    (tmp_path / "test_my_pager.py").write_text(tests + CONFIGURED)
    (tmp_path / "pyproject.toml").write_text(settings)
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in found.stdout, found.stdout + found.stderr


def test_adapters_use_only_public_names() -> None:
    """The built-in adapters import nothing of `edgeoutbox` that a third party's could not."""
    public = set(edgeoutbox.__all__)
    for source in sorted((ROOT / "adapters").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "edgeoutbox":
                assert node.module == "edgeoutbox", f"{source}: {node.module}"
                assert {alias.name for alias in node.names} <= public, source
