"""The server that tests start: it survives a crash, and leaves nothing behind."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import psycopg
import pytest

from edgeoutbox.testing import postgres
from edgeoutbox.testing.postgres import VARIABLE, PostgresServer, as_url, unavailable
from tests.postgres.sessions import PATIENCE


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server of the test's own, with fsync as users get it."""
    monkeypatch.delenv(VARIABLE, raising=False)
    why = unavailable()
    if why is not None:
        pytest.skip(why)
    with PostgresServer() as started:
        yield started


def test_what_was_committed_survives_a_restart_and_a_crash(server: PostgresServer) -> None:
    """Both end every connection; neither loses a committed row."""
    conninfo = server.fresh_schema("CREATE TABLE kept (one int)")
    for end in (server.stop, server.kill):
        with server.connect(conninfo) as connection:
            connection.execute("INSERT INTO kept VALUES (1)")
            end()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        server.start()
    server.restart()
    with server.connect(conninfo) as connection:
        assert connection.execute("SELECT COUNT(*), current_setting('fsync') FROM kept").fetchone() == (2, "on")


def test_nothing_is_left_of_a_server_that_was_stopped(server: PostgresServer) -> None:
    """Its folder goes with it."""
    folder = Path(str(psycopg.conninfo.conninfo_to_dict(server.conninfo)["host"]))
    assert folder.exists()
    server.__exit__(None, None, None)
    assert not folder.exists()


def test_a_server_ends_with_the_process_that_started_it(server: PostgresServer) -> None:
    """Also when that process is killed: no server and no folder outlive a test run."""
    assert server.private
    script = (
        "import sys\n"
        "from edgeoutbox.testing.postgres import PostgresServer\n"
        "with PostgresServer(fsync=False) as server:\n"
        "    print(server.conninfo, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as process:
        assert process.stdout is not None
        conninfo = process.stdout.readline().strip()
        folder = Path(str(psycopg.conninfo.conninfo_to_dict(conninfo)["host"]))
        with psycopg.connect(conninfo, autocommit=True) as connection:
            process.send_signal(signal.SIGKILL)
            _until(lambda: not folder.exists())
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")


def test_a_server_that_does_not_start_says_why(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error carries the end of the server's log."""
    server.stop()
    monkeypatch.setitem(postgres.SETTINGS, "shared_buffers", "a lot")
    with pytest.raises(RuntimeError, match="did not start") as failure:
        server.start()
    assert 'invalid value for parameter "shared_buffers"' in str(failure.value)


def test_another_server_is_used_and_left_as_it_was(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not ours to stop, and our schemas are gone afterwards."""
    monkeypatch.setenv(VARIABLE, server.conninfo)
    assert unavailable() is None
    with PostgresServer() as foreign:
        assert not foreign.private
        with foreign.connect(foreign.fresh_schema("CREATE TABLE made (one int)")) as connection:
            assert connection.execute("SELECT COUNT(*) FROM made").fetchone() == (0,)
        with pytest.raises(RuntimeError, match="not ours to stop"):
            foreign.kill()
    with server.connect() as connection:
        left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'edgeoutbox%'").fetchall()
    assert left == []


def test_a_machine_without_postgres_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests skip with this reason."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(postgres, "DISTRIBUTION", "no-such-distribution")
    postgres._installed.cache_clear()
    try:
        why = unavailable()
    finally:
        postgres._installed.cache_clear()
    assert why == f"no Postgres: install the package no-such-distribution, or name a server in {VARIABLE}"


async def test_a_connection_string_is_a_url_too(postgres_server: PostgresServer) -> None:
    """Both drivers reach the same schema by it."""
    conninfo = postgres_server.fresh_schema()
    url = as_url(conninfo)
    with psycopg.connect(url) as connection:
        [schema] = connection.execute("SELECT current_schema()").fetchone() or ()
    assert schema in conninfo
    other = await asyncpg.connect(url)
    try:
        assert await other.fetchval("SELECT current_schema()") == schema
    finally:
        await other.close()


def test_a_long_temporary_folder_is_no_hindrance(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket goes where its path is short enough, and goes away with the server."""
    assert server.private
    with tempfile.TemporaryDirectory(suffix="x" * 100) as long:
        Path(long).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", long)
        with PostgresServer(fsync=False) as second, second.connect() as connection:
            assert connection.execute("SELECT current_setting('data_directory')").fetchone() == (
                f"{second._folder}/data",
            )
            sockets = second._sockets
            assert str(second._folder).startswith(long)
        assert not sockets.exists()
        assert list(Path(long).iterdir()) == []


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
