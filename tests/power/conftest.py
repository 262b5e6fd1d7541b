"""Where lives are lived: in memory, if the system offers that, since what is certain is known without a real disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.cuts import IN_MEMORY


@pytest.fixture
def folder() -> Iterator[Path]:
    """A new folder."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        yield Path(made)
