"""What a scripted relay can be told to do, and where in a session."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Point(StrEnum):
    """A place in an SMTP session where the relay may be told what to do."""

    GREETING = "greeting"
    EHLO = "ehlo"
    HELO = "helo"
    STARTTLS = "starttls"
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    BODY = "body"
    """In the middle of a message, after a number of its bytes."""
    DOT = "dot"
    """After the terminator of a message."""
    RSET = "rset"
    NOOP = "noop"
    QUIT = "quit"
    OTHER = "other"
    """A command that the relay does not know."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply. A text with several lines becomes a multi-line reply."""

    code: int
    text: str = "ok"

    @property
    def wire(self) -> bytes:
        """The reply as it is sent."""
        lines = self.text.split("\n")
        marks = ["-"] * (len(lines) - 1) + [" "]
        return "".join(f"{self.code}{mark}{line}\r\n" for mark, line in zip(marks, lines, strict=True)).encode()


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes as they are: garbage, half a reply, or two replies in one packet."""

    wire: bytes


@dataclass(frozen=True, slots=True)
class Drip:
    """The bytes of a reply, one every `every` seconds."""

    wire: bytes
    every: float = 0.02


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection; a client that was still writing sees it reset."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection: the client sees a reset."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Say and read nothing more, for as long as the relay is open."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Several steps, one after the other."""

    steps: tuple["Step", ...]

    def __init__(self, *steps: "Step") -> None:
        object.__setattr__(self, "steps", steps)


Step: TypeAlias = Answer | Raw | Drip | Drop | Reset | Hang | Steps


@dataclass(frozen=True, slots=True)
class On:
    """One line of a script: at this point, take this step.

    `nth` counts the times that a connection came to the point (from 1), `connection` the connections (from 1);
    `None` means every time. `after` is for `Point.BODY`: the step is taken once this many bytes of the message have
    come. `keeps` is for `Point.DOT`: whether the relay keeps the message, which it otherwise does when the step
    begins with a 2xx reply.
    """

    point: Point
    step: Step
    nth: int | None = None
    connection: int | None = None
    after: int = 0
    keeps: bool | None = None

    def applies(self, point: Point, nth: int, connection: int) -> bool:
        """Whether this line is about that moment."""
        return self.point is point and self.nth in {None, nth} and self.connection in {None, connection}


def first_code(step: Step) -> int | None:
    """The code of the reply that a step begins with, when it begins with one."""
    match step:
        case Answer(code):
            return code
        case Raw(wire) | Drip(wire):
            return int(wire[:3]) if wire[:3].isdigit() else None
        case Steps(steps) if steps:
            return first_code(steps[0])
        case _:
            return None


def says_yes(step: Step) -> bool:
    """Whether a step begins with a 2xx reply."""
    return str(first_code(step) or "").startswith("2")
