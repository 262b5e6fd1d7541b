"""The heap of a process that only carries out actions."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 10_000
"""How many more objects there may be before the collector of cycles looks among them."""


@contextmanager
def settled_heap() -> Iterator[None]:
    """Meanwhile the collector of cycles runs seldom, and does not walk what exists by now: modules, models, adapters.

    An action leaves it nothing to find, but is made of objects: each thirty actions would make it run, and that takes a
    tenth of what they take.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
