"""What a `WebhookReceiver` can be told to do with a call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with this status. `takes`: whether the call has its effect; left out, a 2xx has."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    takes: bool | None = None

    def as_bytes(self) -> bytes:
        """The answer on the wire."""
        headers = {"Content-Length": str(len(self.body)), "Connection": "close", **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} Scripted\r\n{lines}\r\n".encode("latin-1") + self.body


@dataclass(frozen=True, slots=True)
class Lost:
    """Act on the call, then end the connection without an answer, or after these bytes of one."""

    after: bytes = b""
    takes: bool = True


@dataclass(frozen=True, slots=True)
class Hang:
    """Act on the call and never answer, or stop after these bytes of an answer."""

    after: bytes = b""
    takes: bool = True


@dataclass(frozen=True, slots=True)
class Endless:
    """Act on the call and answer 200 with a body that never ends."""


@dataclass(frozen=True, slots=True)
class Drop:
    """End the connection as soon as it is there; with `says`, say that first."""

    says: bytes = b""


Step: TypeAlias = Answer | Lost | Hang | Endless | Drop


def redirect(to: str, status: int = 307) -> Answer:
    """Point somewhere else."""
    return Answer(status, {"Location": to})


def has_effect(step: Step) -> bool:
    """Whether a call that gets this is acted on."""
    match step:
        case Answer(status, takes=None):
            return 200 <= status < 300  # noqa: PLR2004 - the class of success
        case Answer(takes=bool(takes)) | Lost(takes=takes) | Hang(takes=takes):
            return takes
        case _:
            return isinstance(step, Endless)
