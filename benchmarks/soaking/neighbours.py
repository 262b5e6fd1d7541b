"""Other programs on the same file: one that holds the write lock for seconds, one that reads for tens of seconds.

python -m benchmarks.soaking.neighbours soak.db SECONDS LONGEST_HOLD LONGEST_PIN SEED

Prints one JSON object in the end: how often the lock was held and a snapshot was pinned.
"""

import json
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from edgeoutbox import prepare

REST = 3.0
"""How much longer a neighbour rests than it stays, on average."""
SURE = REST * 0.75 + 1.0
"""How many times its longest stay a neighbour must have, to stay once for certain."""


def hold(connection: sqlite3.Connection, seconds: float) -> None:
    """Write, and take long to commit."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE soak_till SET holds = holds + 1")
    time.sleep(seconds)
    connection.execute("COMMIT")


def pin(connection: sqlite3.Connection, seconds: float) -> None:
    """Read, and keep the snapshot: the log cannot be folded into the database meanwhile."""
    connection.execute("BEGIN")
    connection.execute("SELECT holds FROM soak_till").fetchall()
    time.sleep(seconds)
    connection.execute("COMMIT")


def neighbour(
    file: str, ends: float, longest: float, seed: int, stay: Callable[[sqlite3.Connection, float], None]
) -> int:
    """Rest and stay in turns until the end; returns how often it stayed."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    stays = 0
    with closing(sqlite3.connect(file, timeout=30.0, isolation_level=None)) as connection:
        prepare(connection)
        connection.execute("PRAGMA busy_timeout = 30000")
        while True:
            time.sleep(max(0.0, min(chance.uniform(0.5, 1.5) * REST * longest / 2, ends - time.monotonic())))
            seconds = chance.uniform(0.1, 1.0) * longest
            if time.monotonic() + seconds > ends:
                return stays
            stay(connection, seconds)
            stays += 1


def main() -> None:
    """Be both."""
    file, seconds, longest_hold, longest_pin, seed = sys.argv[1], *map(float, sys.argv[2:])
    ends = time.monotonic() + seconds
    with ThreadPoolExecutor(1) as readers:
        reading = readers.submit(neighbour, file, ends, longest_pin, int(seed), pin)
        holds = neighbour(file, ends, longest_hold, int(seed) + 1, hold)
        print(json.dumps({"holds": holds, "pins": reading.result()}))


if __name__ == "__main__":
    main()
