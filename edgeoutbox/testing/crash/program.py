"""The program that is killed: `python -m edgeoutbox.testing.crash.program`. Its standard input says what it lives.

The first line names the factory of the adapter, each further one a life. For each it forks: the child is the process
that lives, and is killed. This one does nothing but import, so a child is as new as a program that was just started,
without the half second that starting takes. Answers are lines of JSON: the child's process id, then how it ended.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from edgeoutbox.adapter import Adapter
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.testing.crash.factories import Reference
from edgeoutbox.testing.crash.lives import LONGEST_LIFE, REFUSED, Life, lived


def serve(commands: TextIO, answers: TextIO) -> None:
    """Live every life that is asked for."""
    first = json.loads(commands.readline())
    sys.path[:] = first["path"]
    try:
        factory = Reference(**first["factory"]).load()
    except BaseException:  # noqa: BLE001 - a module of the caller's can raise anything: say what
        _say(answers, {"error": traceback.format_exc()})
        return
    _say(answers, {"error": None})
    for line in commands:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _live(Life.load(line), factory, writing)
        os.close(writing)
        _say(answers, {"pid": child})
        with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
            told = pipe.read()
        _, status = os.waitpid(child, 0)
        _say(answers, {"code": os.waitstatus_to_exitcode(status), "told": told})


def _say(answers: TextIO, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _live(life: Life, factory: Callable[..., Adapter[Any]], writing: int) -> NoReturn:
    signal.alarm(LONGEST_LIFE)
    code = 0
    try:
        told = lived(life, factory).dump()
    except ConfigurationError as error:
        told, code = str(error), REFUSED
    except BaseException:  # noqa: BLE001 - told to who asked for this life
        told, code = traceback.format_exc(), 1
    with open(writing, "w", encoding="utf-8") as pipe:
        pipe.write(told)
    os._exit(code)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
