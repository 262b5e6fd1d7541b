"""Postgres on a `MovableClock`: the schema reads time through one function, which is replaced whenever it moves."""

from types import TracebackType
from typing import Self

import psycopg

from edgeoutbox.testing.clock import MovableClock


class PostgresClock:
    """Sets the time of the schema that a connection works in, for as long as the block runs."""

    def __init__(self, conninfo: str, clock: MovableClock) -> None:
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._clock = clock
        self.set()
        clock.on_move(self.set)

    def set(self) -> None:
        """Give the database the time of the clock."""
        if not self._connection.closed:
            sql = f"""
            CREATE OR REPLACE FUNCTION edgeoutbox_now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
            AS 'SELECT CAST({self._clock.milliseconds} AS bigint)'
            """
            self._connection.execute(sql.encode())

    def close(self) -> None:
        """Move it no more."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
