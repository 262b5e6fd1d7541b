"""`docs/testing.md` shows what the code says, and examples that run."""

import re
from pathlib import Path

from edgeoutbox.testing.crash import PROMISED, Failpoint, Promise, table
from edgeoutbox.testing.crash.failpoints import WHERE

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_table_of_the_document_is_that_of_the_code() -> None:
    """Each failpoint is a row of it, each promise a column."""
    assert table() in DOCUMENT
    assert set(PROMISED) == set(WHERE) == set(Failpoint)
    assert all(set(row) == set(Promise) for row in PROMISED.values())


def test_its_programs_stand_in_the_examples() -> None:
    """What the document shows of the third party's adapter is what the examples run."""
    examples = "".join((ROOT / "examples" / name).read_text() for name in ("pager_adapter.py", "test_pager_adapter.py"))
    part = DOCUMENT.partition("## Your application")[2].partition("## Simulation")[0]
    shown = [block for block in re.findall(r"```python\n(.*?)```", part, re.DOTALL) if "pager" in block.lower()]
    assert len(shown) >= 3
    assert [block for block in shown if block.strip() not in examples] == []
