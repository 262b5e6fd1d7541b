import pytest

from edgeoutbox.testing.simulation.seeds import BLOCK, run_block

SEEDS = 2000
"""How many are run each time. A longer run is a command: python -m edgeoutbox.testing.simulate --seeds 100000."""


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_breaks_a_promise(first: int) -> None:
    """Executors, crashes, clocks and a provider as seeds draw them: each promise holds after each commit and call."""
    tally = run_block(range(first, first + BLOCK))
    assert not tally.failures, "\n\n".join(str(failure) for failure in tally.failures)
    assert tally.seeds == BLOCK
