"""`docs/testing.md` shows what the code says, and the examples; `tests/plugin` runs them."""

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


def test_its_programs_are_the_examples() -> None:
    """What the document shows of the third party's adapter is, file by file, what stands in the examples."""
    shown = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE))
    names = ["pager_adapter.py", "test_pager_adapter.py"]
    assert shown == {name: (ROOT / "examples" / name).read_text(encoding="utf-8") for name in names}
    assert len(shown["pager_adapter.py"].splitlines()) <= 40
