"""The lanes that an enqueue writes into: where many write at once, they are locked before the first statement."""

from collections.abc import Iterable
from typing import NamedTuple

from edgeoutbox.model import ActionRequest


class Lanes(NamedTuple):
    """Lane keys in the order in which everybody locks them, and whether what waits there is to be superseded."""

    keys: tuple[str, ...] = ()
    supersedes: bool = False

    @classmethod
    def of(cls, requests: Iterable[ActionRequest], *, supersedes: bool = False) -> "Lanes":
        """The lanes that these requests go into."""
        return cls(tuple(sorted({request.lane_key for request in requests if request.lane_key})), supersedes)
