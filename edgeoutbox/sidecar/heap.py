"""The heap of a process that only carries out actions."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled_heap() -> Iterator[None]:
    """Meanwhile the collector of cycles does not walk what exists by now: modules, models and adapters, which stay.

    An action leaves nothing to collect, but its objects make the collector run. Walking the rest each time would take a
    tenth of what the action takes.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
