import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeoutbox.sidecar.logs import StandardError
from tests.cli.terminal import Terminal, clean


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """The command line in an empty folder, without settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - clean(os.environ).keys():
        monkeypatch.delenv(name)
    root, ours = logging.getLogger(), logging.getLogger("edgeoutbox")
    levels = root.level, ours.level
    yield Terminal(tmp_path)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    for handler in [handler for handler in root.handlers if isinstance(handler, StandardError)]:
        root.removeHandler(handler)


@pytest.fixture
def ready(terminal: Terminal) -> Terminal:
    """The same with a database, and a configuration that captures email."""
    terminal.configure()
    return terminal
