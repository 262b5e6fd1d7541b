"""Steps on a connection of ours: how they are sent, several in one round trip where nobody waits for an answer.

Whatever the steps do, the statements run in the order in which they were yielded.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from edgeoutbox.storage.postgres.sessions import Session
from edgeoutbox.storage.statements.steps import Row, Statement, Steps

T = TypeVar("T")


class Ahead(NamedTuple):
    """A statement whose rows nobody wants: it is sent together with the one that follows, and answered with none."""

    sql: str
    parameters: Sequence[Any] = ()


class Run(Generic[T]):
    """Steps under way: what they want to be run next, and in the end what they returned."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.wanted: list[Statement] = []
        self.done = False
        self.value: T
        self._go(None)

    def answer(self, rows: list[Row]) -> None:
        """Take the rows of the last wanted statement, and want what follows."""
        self.wanted = []
        self._go(rows)

    def throw(self, error: Exception) -> None:
        """Let the wanted statements fail; raises the error again unless the steps know what to do."""
        self.wanted = []
        self._advance(lambda: self._steps.throw(error))

    def close(self) -> None:
        """Give the steps up."""
        self._steps.close()

    def _go(self, rows: list[Row] | None) -> None:
        self._advance(lambda: next(self._steps) if rows is None else self._steps.send(rows))

    def _advance(self, step: Any) -> None:
        try:
            statement = step()
            self.wanted.append(statement)
            while isinstance(statement, Ahead):
                statement = self._steps.send([])
                self.wanted.append(statement)
        except StopIteration as stop:
            self.value = stop.value
            self.done = True


async def run(session: Session, steps: Steps[T]) -> T:
    """Take every step and return what the steps return. What fails is thrown into them, while the connection lives."""
    run_ = Run(steps)
    try:
        while not run_.done:
            try:
                rows = await session.together(run_.wanted)
            except Exception as error:
                if session.lost:
                    raise
                run_.throw(error)
            else:
                run_.answer(rows[-1])
        if run_.wanted:
            await session.together(run_.wanted)
    finally:
        run_.close()
    return run_.value
