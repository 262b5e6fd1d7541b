"""What the code may not do, by its syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgeoutbox

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "edgeoutbox").rglob("*.py"))
ADAPTERS = sorted((ROOT / "adapters").rglob("*.py"))
CLIENTS = {
    "aiohttp", "aiosmtplib", "http", "httpcore", "httpx", "requests", "slack_bolt", "slack_sdk", "smtplib", "urllib3",
    "websockets",
}  # fmt: skip
RELAY = ROOT / "edgeoutbox" / "testing"


def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def executions_of_adapters(path: Path) -> Iterator[ast.Call]:
    """Calls of `.execute(...)` on something that is called an adapter, or with an attempt as the only argument."""
    for node in ast.walk(tree_of(path)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "execute"):
            continue
        owner = ast.unparse(node.func.value)
        given = [ast.unparse(argument) for argument in node.args]
        if "adapter" in owner.lower() or given in (["self"], ["attempt"]):
            yield node


def imports_of(path: Path) -> Iterator[str]:
    """The top-level names of what a file imports."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def test_only_the_executor_executes_adapters() -> None:
    """`execute` of an adapter is called in one place of the product: the executor's attempt."""
    found = [path.relative_to(ROOT) for path in (*PACKAGE, *ADAPTERS) for _ in executions_of_adapters(path)]
    assert found == [Path("edgeoutbox/executor/attempt.py")]


def test_the_test_would_see_another_call(tmp_path: Path) -> None:
    """The search finds calls however they are spelled."""
    source = tmp_path / "bad.py"
    source.write_text(
        "await adapter.execute(x)\nself.adapters[k].execute(y)\nawait thing.execute(attempt)\ndb.execute(sql)\n"
    )
    assert len(list(executions_of_adapters(source))) == 3


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_clients_of_providers_are_imported_by_adapters_alone(path: Path) -> None:
    """SMTP, HTTP and Slack clients are imported under adapters/, and nowhere in the package."""
    assert CLIENTS & set(imports_of(path)) == set()


def test_the_adapters_do_import_a_client() -> None:
    """The names are those that adapters use: the search above can fail."""
    assert CLIENTS & {name for path in ADAPTERS for name in imports_of(path)}


def test_every_error_can_be_caught_by_a_public_name() -> None:
    """What `errors.py` defines is exported: programs must not reach into the package to tell errors apart."""
    path = ROOT / "edgeoutbox" / "errors.py"
    assert {node.name for node in tree_of(path).body if isinstance(node, ast.ClassDef)} <= set(edgeoutbox.__all__)


def test_the_package_reads_one_clock() -> None:
    """The machine's clocks are read in clock.py alone (and by the movable one); every other time is the database's."""
    allowed = {Path("edgeoutbox/clock.py"), Path("edgeoutbox/testing/clock.py")}
    readers = set()
    for path in PACKAGE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "time.time",
                "datetime.now",
                "datetime.utcnow",
            }:
                readers.add(path.relative_to(ROOT))
    assert {path for path in readers - allowed if path.parts[1] in {"storage", "executor"}} == set()
