"""What another session does between two statements of a step."""

from collections.abc import Callable
from typing import TypeVar

from edgeoutbox.storage.statements.steps import Steps

T = TypeVar("T")


def interfering(steps: Steps[T], before: str, interfere: Callable[[], object]) -> Steps[T]:
    """The same steps, with something that happens each time before this statement runs."""
    try:
        statement = next(steps)
        while True:
            if statement[0] == before:
                interfere()
            statement = steps.send((yield statement))
    except StopIteration as stop:
        result: T = stop.value
        return result
