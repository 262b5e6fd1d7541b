import re

from edgeoutbox.states import State, StopReason
from edgeoutbox.testing.simulation import Machine, draw, simulate
from edgeoutbox.testing.simulation.plan import _CERTAIN, _DOUBTFUL, _EARLY

OUT_OF_REACH = {
    StopReason.UNDELIVERABLE,  # to the product the same as REJECTED
    StopReason.NOT_CONFIGURED,
    StopReason.INVALID_PAYLOAD,  # every program of the simulation encodes its payloads well
    StopReason.ABSENT,
}


def test_the_simulation_reaches_what_it_is_about() -> None:
    """Every state, stop reason, crash and turn of an attempt occurs within a few hundred seeds."""
    wanted = {*map(str, State), *(reason for reason in StopReason if reason not in OUT_OF_REACH)}
    wanted |= {*_EARLY, *_CERTAIN, *_DOUBTFUL, "delivers", "too late", "the machine sleeps between fence and call"}
    wanted |= {f"({moment})" for moment in ("now", "before a commit", "after a commit", "calling", "called")}
    missing = set(wanted)
    with Machine() as machine:
        for seed in range(400):
            happened = "\n".join(line for line in simulate(draw(seed), machine).trace if "  [" not in line)
            missing = {what for what in missing if not re.search(rf"(?<!\w){re.escape(what)}(?!\w|, )", happened)}
            if not missing:
                break
    assert not missing
