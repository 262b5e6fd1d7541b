"""The code blocks of documents, and how they are run as they stand."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def part(document: str, heading: str) -> str:
    """A document's part under a heading of the second level."""
    return (ROOT / document).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def rows(text: str) -> dict[str, str]:
    """The rows of tables by the names in backticks of their first cell; each has the rest of its row."""
    found = re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE)
    return {name: rest for first, rest in found for name in re.findall(r"`(.*?)`", first)}


async def run(program: str, names: dict[str, Any]) -> None:
    """Run Python that may await outside of a function; `names` holds its variables afterwards."""
    code = compile(program, "a document", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(code, names)  # noqa: S307 - our own documents
    if inspect.isawaitable(waiting):
        await waiting
