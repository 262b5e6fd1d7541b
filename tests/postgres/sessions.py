"""Statements that run in another session while the test goes on."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

from tests.postgres.database import PostgresDatabase

Rows: TypeAlias = Future[list[tuple[Any, ...]]]

PATIENCE = 20.0
"""Seconds within which a statement ends or is seen to wait."""


@contextmanager
def meanwhile(session: PostgresDatabase, sql: str, *parameters: Any) -> Iterator[Rows]:
    """Run a statement that has to wait for a lock; the block begins when it waits, and it has ended after the block."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session, sql, *parameters)
        try:
            until_blocked_by(session, None, running)
            yield running
            running.exception(PATIENCE)
        finally:
            if not running.done():
                session.raw.cancel_safe()


def until_blocked_by(
    session: PostgresDatabase, other: PostgresDatabase | None = None, running: Rows | None = None
) -> None:
    """Wait until the session waits for a lock: of this other session, or of any."""
    deadline = time.monotonic() + PATIENCE
    with PostgresDatabase(session.conninfo) as watching:
        while True:
            blocking = watching.one("SELECT pg_blocking_pids(?)", session.pid)
            if blocking if other is None else other.pid in blocking:
                return
            if running is not None and running.done():
                raise AssertionError(f"it did not wait, and came to {running.exception() or running.result()}")
            assert time.monotonic() < deadline, "it neither waits nor ends"
