import re
from importlib.metadata import version
from pathlib import Path

from edgeoutbox.cli.app import app
from edgeoutbox.cli.exits import MEANINGS
from tests.cli.terminal import Terminal

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def test_exit_codes_are_documented() -> None:
    """The page's table of exit codes is the one that the help prints."""
    rows = re.findall(r"^\| (\d) \| (.+) \|$", PAGE, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == {code.value: text for code, text in MEANINGS.items()}


def test_commands_are_documented() -> None:
    """The page's table of commands names every command, and no other."""
    table = PAGE.partition("## ")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == {command.name for command in app.registered_commands}


def test_version(terminal: Terminal) -> None:
    """`--version` prints the installed version."""
    assert terminal.run("--version") == f"edgeoutbox {version('edgeoutbox')}\n"
