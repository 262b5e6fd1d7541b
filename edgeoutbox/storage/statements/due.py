"""When to look again: the next moment at which something can be done."""

from collections.abc import Callable, Sequence

from edgeoutbox.storage.protocol import Served
from edgeoutbox.storage.statements.reading import CLOCK
from edgeoutbox.storage.statements.steps import Statement, Steps


def next_due(served: Sequence[Served], moment_of: Callable[[Served], Statement]) -> Steps[int | None]:
    """Milliseconds until something can be done; `moment_of` asks for the moment of one kind, or NULL."""
    first: int | None = None
    for kind in served:
        [(moment,)] = yield moment_of(kind)
        if moment is not None and (first is None or moment < first):
            first = moment
    if first is None:
        return None
    [(now,)] = yield CLOCK, ()
    return max(0, first - int(now))
