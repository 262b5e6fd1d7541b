import os
import subprocess
import sys

import pytest

from edgeoutbox.testing.simulation import Machine, draw, simulate


@pytest.mark.parametrize("driver", ["stdlib", "apsw"])
def test_a_seed_gives_one_trace(driver: str) -> None:
    """The trace of a seed does not depend on what the process has simulated before."""
    seeds = [seed for seed in range(100) if draw(seed).driver == driver][:8]
    with Machine() as machine:
        forth = [simulate(draw(seed), machine).trace for seed in seeds]
        back = [simulate(draw(seed), machine).trace for seed in reversed(seeds)]
    assert forth == back[::-1]
    assert sum(len(trace) for trace in forth) > 100


def test_a_seed_gives_one_trace_in_every_process() -> None:
    """Another process prints the same bytes, whatever its strings hash to."""
    traces = {_printed(seed=20, hashes=hashes) for hashes in ("0", "1", "2")}
    assert len(traces) == 1
    assert traces.pop().count(b"\n") > 50


def _printed(seed: int, hashes: str) -> bytes:
    command = [sys.executable, "-m", "edgeoutbox.testing.simulate", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hashes}
    return subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout  # noqa: S603 - our own command
