"""A pgbouncer of a test's own before the test server: it lends the server's sessions by the transaction."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from edgeoutbox.testing.postgres import PostgresServer, _ordinary_user
from tests.postgres.sessions import PATIENCE

# Where a distribution puts it, which is not on everybody's path.
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

# A new session for each transaction, in turn, so that nothing is found again where it was left.
SETTINGS = {
    "pool_mode": "transaction",
    "server_round_robin": "1",
    "auth_type": "any",
    "listen_port": "6432",
    "server_login_retry": "0.1",
    "log_connections": "0",
    "log_disconnections": "0",
}

_UNTIL_WE_ARE_GONE = '"$@" & read -r _; kill -KILL $!; wait'


class Pgbouncer:
    """Runs for as long as the block, or until it is killed; `sessions` of the server are there to be lent."""

    def __init__(self, server: PostgresServer, sessions: int) -> None:
        self._server = server
        self._sessions = sessions
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = _ordinary_user()

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="edgeoutbox-"))
        if self._as:
            os.chown(self._folder, self._as["user"], self._as["group"])
        given = conninfo_to_dict(self._server.conninfo)
        database = {name: given[name] for name in ("host", "port", "user", "password") if name in given}
        settings = {
            **SETTINGS,
            "default_pool_size": self._sessions,
            "unix_socket_dir": self._folder,
            "logfile": self._log,
        }
        lines = ["[databases]", "* = " + " ".join(f"{name}={value}" for name, value in database.items())]
        lines += ["[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items())]
        (self._folder / "ini").write_text("\n".join(lines))
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    @property
    def conninfo(self) -> str:
        """How libpq reaches the server through it."""
        given = conninfo_to_dict(self._server.conninfo)
        return make_conninfo("", host=str(self._folder), port=6432, user=given["user"], dbname=given["dbname"])

    def url(self, schema: str) -> str:
        """An outbox in this schema."""
        return f"postgresql:///?{urlencode({**conninfo_to_dict(self.conninfo), 'schema': schema}, quote_via=quote)}"

    def warnings(self) -> list[str]:
        """What it found worth a warning."""
        return [line for line in self._log.read_text().splitlines() if " WARNING " in line]

    def start(self) -> None:
        """Start it, and let it open all its sessions, so that there is another to be lent."""
        assert PROGRAM is not None
        self._process = subprocess.Popen(  # noqa: S603 - our own arguments
            ["/bin/sh", "-c", _UNTIL_WE_ARE_GONE, "sh", PROGRAM, "-q", str(self._folder / "ini")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as,
        )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        with contextlib.ExitStack() as stack:
            for _ in range(self._sessions):
                stack.enter_context(psycopg.connect(self.conninfo)).execute("SELECT 1")

    def kill(self) -> None:
        """End it at once, and with it every connection."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=PATIENCE)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.conninfo):
            return True
        return False
