"""The whole suite as one class."""

from edgeoutbox.testing.conformance.claiming import Claiming
from edgeoutbox.testing.conformance.deciding import Deciding
from edgeoutbox.testing.conformance.enqueueing import Enqueueing
from edgeoutbox.testing.conformance.fencing import Fencing
from edgeoutbox.testing.conformance.hooks import Hooked
from edgeoutbox.testing.conformance.kinds import Kinds
from edgeoutbox.testing.conformance.reading import Reading
from edgeoutbox.testing.conformance.reaping import Reaping
from edgeoutbox.testing.conformance.settling import Settling
from edgeoutbox.testing.conformance.sweeping import Sweeping
from edgeoutbox.testing.conformance.waking import Waking

TOPICS = (Enqueueing, Claiming, Fencing, Settling, Reaping, Sweeping, Deciding, Kinds, Reading, Hooked, Waking)
"""The topics, each a class that can also be run alone."""


class StorageConformance(
    Enqueueing, Claiming, Fencing, Settling, Reaping, Sweeping, Deciding, Kinds, Reading, Hooked, Waking
):
    """Subclass it as `Test...` and override the fixture `backend`."""
