"""What an endpoint's answer proves. One table; whatever is not in it proves nothing."""

from enum import Enum, auto


class Meaning(Enum):
    """What a status says about the call."""

    TAKEN = auto()
    """The endpoint has it."""
    REFUSED = auto()
    """It was not taken and never will be."""
    GONE = auto()
    """Nobody receives at this address any more."""
    NOT_NOW = auto()
    """It was not taken; later it may be."""
    UNKNOWN = auto()
    """It may have been taken."""


_REDIRECTED = (300, 301, 302, 304, 305, 307, 308)
"""Not 303: it sends on to the outcome of a request that was carried out (RFC 9110 section 15.4.4)."""
_REFUSED = (400, 401, 403, 404, 405, 413, 415, 422)

_MEANINGS: dict[int, Meaning] = {
    **dict.fromkeys(range(200, 300), Meaning.TAKEN),
    **dict.fromkeys(_REDIRECTED, Meaning.REFUSED),
    **dict.fromkeys(_REFUSED, Meaning.REFUSED),
    410: Meaning.GONE,
    429: Meaning.NOT_NOW,
}


def meaning(status: int) -> Meaning:
    """What the status proves.

    Among the unknown: 408, which a proxy also answers when the receiver behind it was slow; 409, which an endpoint
    answers while it still works on the same id; 425 and 421, which nothing that we send can cause.
    """
    return _MEANINGS.get(status, Meaning.UNKNOWN)


def is_redirect(status: int) -> bool:
    """Whether the answer points elsewhere; it is never followed."""
    return status in _REDIRECTED
