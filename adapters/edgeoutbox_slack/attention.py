"""Errors in the log about what people must mend, each said once while it lasts."""

import logging
import time

from edgeoutbox_slack.answers import Answer

log = logging.getLogger("edgeoutbox.slack")

_QUIET = 60.0
"""Seconds until it is said again: attempts under way together say it once, and each cooling, which is longer, again."""


class Attention:
    """Calls for it, for one kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._called_at = -_QUIET

    def called_by(self, answer: Answer) -> None:
        """Call for attention if the answer needs it."""
        if answer.needs_attention:
            self.call(answer.said)

    def call(self, why: str) -> None:
        """Say what is wrong, in our own words."""
        now = time.monotonic()
        if now - self._called_at >= _QUIET:
            self._called_at = now
            log.error("kind %s: %s; nothing is posted until this is mended", self._kind, why)
