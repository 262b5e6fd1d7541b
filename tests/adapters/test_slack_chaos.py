"""The benchmark of bad weather, small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.slack import Chaos
from edgeoutbox.cli.demo.slack_figures import SlackFigures

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL")


async def test_executors_that_are_killed_post_nothing_twice(tmp_path: Path) -> None:
    """Losses, limits, drops and kills: no post twice, each channel in order, every DONE there and no UNCERTAIN."""
    chaos = Chaos(
        tmp_path,
        tell=lambda _: None,
        progress=lambda _: None,
        posts=120,
        channels=10,
        limited=0.02,
        dropped=0.05,
        max_attempts=5,
        longest=100.0,
    )
    found = await chaos.perform()
    assert found.done + found.uncertain == found.actions == 120, chaos.log.read_text(encoding="utf-8")
    assert (found.duplicates, found.done_missing, found.uncertain_present, found.out_of_order) == (0, 0, 0, 0)
    assert found.posted >= found.done
    assert found.answers_lost > 0
    assert found.read_back > 0
    assert found.uncertain > 0
    assert found.kills > 0


def test_a_broken_promise_fails_the_benchmark(tmp_path: Path) -> None:
    """The command prints its figures and ends with 1 when they are not what was promised; here nothing was enqueued."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.slack", "--posts", "0", "--json"],
        env={**os.environ, "EDGEOUTBOX_BENCH_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    figures = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert "a promise is broken" in ended.stderr
    assert list(figures) == ["posts", *list(SlackFigures.__dataclass_fields__)[1:]]
    assert figures["posts"] == 0
