"""For tests, yours and ours: a clock to move, an adapter and a relay to script, an outbox that records.

`conformance` is the suite that a backend passes, `crash` the matrix that an adapter goes through.
"""

from edgeoutbox.testing.attempt import ScriptedAttempt, an_action
from edgeoutbox.testing.clock import MovableClock, until
from edgeoutbox.testing.drain import drain
from edgeoutbox.testing.outbox import running
from edgeoutbox.testing.recording import RecordingOutbox, Sent
from edgeoutbox.testing.relay import ScriptedRelay
from edgeoutbox.testing.scripted import Call, HookedAdapter, ScriptedAdapter, ScriptedPayload, Step

__all__ = [
    "Call",
    "HookedAdapter",
    "MovableClock",
    "RecordingOutbox",
    "ScriptedAdapter",
    "ScriptedAttempt",
    "ScriptedPayload",
    "ScriptedRelay",
    "Sent",
    "Step",
    "an_action",
    "drain",
    "running",
    "until",
]
