"""The command line in small batches, with a signal at its Nth statement: `python killed.py N SIGKILL copy SRC DST`."""

import itertools
import os
import signal
import sys
from typing import Any

from edgeoutbox.cli import main
from edgeoutbox.storage import copying
from edgeoutbox.storage.postgres.sessions import Session
from edgeoutbox.storage.sqlite.drivers import DriverConnection

copying.BATCH = 4
last = int(sys.argv.pop(1))
what = signal.Signals[sys.argv.pop(1)]
statements = itertools.count(1)


def counted(original: Any) -> Any:
    """The same, and the signal before it."""

    def execute(self: Any, *arguments: Any) -> Any:
        if next(statements) == last:
            os.kill(os.getpid(), what)
        return original(self, *arguments)

    return execute


DriverConnection.execute = counted(DriverConnection.execute)  # type: ignore[method-assign]
Session._spelled = counted(Session._spelled)  # type: ignore[method-assign]
main()
