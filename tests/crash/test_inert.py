"""A failpoint costs nothing in production: there is none."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTING = ROOT / "edgeoutbox" / "testing"
PRODUCT = [
    path
    for folder in (ROOT / "edgeoutbox", ROOT / "adapters")
    for path in sorted(folder.rglob("*.py"))
    if not path.is_relative_to(TESTING)
]
RELAY_OF_THE_DEMO = {"edgeoutbox/cli/demo/stage.py"}


def imports_testing(path: Path) -> bool:
    """Whether a file imports anything of `edgeoutbox.testing`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        names += [f"{node.module}.{name.name}" for name in node.names] if isinstance(node, ast.ImportFrom) else []
        if any(name.startswith("edgeoutbox.testing") for name in names):
            return True
    return False


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_of_the_product_knows_a_failpoint(path: Path) -> None:
    """Outside of `edgeoutbox.testing` no module names failpoints, or imports what does."""
    assert not re.search(r"failpoint|testing\.crash", path.read_text(encoding="utf-8"), re.IGNORECASE)
    if str(path.relative_to(ROOT)) not in RELAY_OF_THE_DEMO:
        assert not imports_testing(path)


def test_the_searches_find_something() -> None:
    """They find the matrix itself, and the demo's relay."""
    assert re.search(r"failpoint", (TESTING / "crash" / "killing.py").read_text(encoding="utf-8"), re.IGNORECASE)
    assert imports_testing(TESTING / "crash" / "killing.py")
    assert all(imports_testing(ROOT / name) for name in RELAY_OF_THE_DEMO)
