"""Turns, so that this process stays below Slack's limits by itself. Other processes are kept apart by Slack alone."""

from collections import OrderedDict

from edgeoutbox import Deadline

_MOST_REMEMBERED = 1000


class Pace:
    """One turn every `interval` seconds for each name; zero means at any time."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next: OrderedDict[str, Deadline] = OrderedDict()

    def wait(self, name: str) -> float:
        """Seconds until the next turn of a name."""
        following = self._next.get(name)
        return 0.0 if following is None else following.left()

    def take(self, name: str) -> float:
        """Take the next turn; returns the seconds until it has come."""
        wait = self.wait(name)
        if self._interval > 0:
            self._next[name] = Deadline.after(wait + self._interval)
            self._next.move_to_end(name)
            if len(self._next) > _MOST_REMEMBERED:
                self._next.popitem(last=False)
        return wait
