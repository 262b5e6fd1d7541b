"""What a Slack server for tests can be told to do instead of answering."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with an error code, whatever would have been the answer."""

    code: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """Answer that it is too fast. `retry_after` is the header as it is written; `None` leaves it out."""

    retry_after: str | None = "30"
    status: int = 429


@dataclass(frozen=True, slots=True)
class Raw:
    """Answer with these bytes."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send the client elsewhere."""

    to: str
    status: int = 307


@dataclass(frozen=True, slots=True)
class Drop:
    """Break the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Break the connection in the middle of the answer."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing until the server is closed."""


@dataclass(frozen=True, slots=True)
class Alter:
    """Answer as usual, but for what this function makes of it."""

    change: Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Usual:
    """Answer as usual; for a script that lets some calls through."""


Step: TypeAlias = Refuse | Limit | Raw | Redirect | Drop | Cut | Hang | Alter | Usual


@dataclass(frozen=True, slots=True)
class On:
    """When a method is called, do this.

    `call` is the number of the method's call that it holds for, from 1; without one it holds for every call, `times`
    often at most. `channel` narrows it to one channel. `chance` leaves it to the server's dice. With `keeps` the
    request is carried out all the same, so that a post exists whose answer was lost, and is shown in histories only
    `hidden` seconds later.
    """

    method: str
    step: Step
    call: int | None = None
    channel: str | None = None
    times: int | None = None
    chance: float = 1.0
    keeps: bool = False
    hidden: float = 0.0
