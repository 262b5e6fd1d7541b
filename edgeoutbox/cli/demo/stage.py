"""The demo's processes: a relay here, an application and an executor of their own, and the kill."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from edgeoutbox.cli.demo.figures import Figures, Sent, figures
from edgeoutbox.outbox import Outbox
from edgeoutbox.sidecar.configuration import PREFIX
from edgeoutbox.sidecar.database import Look
from edgeoutbox.states import State
from edgeoutbox.testing.relay import Drip, On, Point, Raw, ScriptedRelay, Steps, read_record

EMAILS = 200
LANES = 20

LONGEST = 60.0
"""Seconds after which the demo gives up and counts what it finds."""

_CONFIGURATION = """\
database = "sqlite+apsw:///demo.db"

[kinds.email]
sender = "Demo <demo@edgeoutbox.example>"
relay = "smtp://127.0.0.1:{port}"
security = "plaintext"
concurrency = {lanes}
# A killed executor's actions are free again when its lease ends: short here, so that the demo need not wait.
lease = 3
write_window = 2
"""

_ACTIONS = "SELECT id, idempotency_key, lane_key, state FROM agent_action ORDER BY id"
_ENDED = "SELECT COUNT(*) FROM agent_action WHERE ended_at IS NOT NULL"
_POLL = 0.05

_KILLED = {-9, 1}
"""How a killed process ends: by SIGKILL, and on Windows, which knows no signals."""

_SLOW = (
    On(Point.RCPT, Steps(Drip(b"250", 0.01), Raw(b" 2.1.5 ok\r\n"))),
    On(Point.DOT, Steps(Drip(b"250", 0.02), Raw(b" 2.0.0 taken\r\n"))),
)
"""A relay takes its time, so that the kill finds messages at every step."""


@dataclass
class Stage:
    """One performance in a folder of its own. `tell` gets each step as a sentence, `progress` how many have ended."""

    folder: Path
    tell: Callable[[str], None]
    progress: Callable[[int], None]
    emails: int = EMAILS
    lanes: int = LANES
    kills: int = field(default=0, init=False)

    @property
    def url(self) -> str:
        """The demo's database."""
        return f"sqlite+apsw:///{self.folder / 'demo.db'}"

    @property
    def record(self) -> Path:
        """The relay's record: one line for each message that it took."""
        return self.folder / "relay.jsonl"

    @property
    def log(self) -> Path:
        """What the executors logged."""
        return self.folder / "executor.log"

    async def perform(self) -> Figures:
        """Enqueue, send, kill half way, go on, and count."""
        began = monotonic()
        async with Outbox(self.url):
            pass  # makes the tables
        async with ScriptedRelay(*_SLOW, record=self.record) as relay:
            configuration = _CONFIGURATION.format(port=relay.port, lanes=self.lanes)
            (self.folder / "edgeoutbox.toml").write_text(configuration, encoding="utf-8")
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST):
                    await self._send(relay)
        return self.count(monotonic() - began)

    def count(self, seconds: float) -> Figures:
        """The figures as database and record have them now."""
        with Look(self.url) as look:
            actions = [Sent(row[0], row[1], row[2], State(row[3])) for row in look.rows(_ACTIONS)]
        arrivals = [recipient for message in read_record(self.record) for recipient in message.recipients]
        return figures(actions, arrivals, kills=self.kills, seconds=seconds)

    async def _send(self, relay: ScriptedRelay) -> None:
        executor = producer = await self._executor()
        try:
            producer = await self._start(
                "-m", "edgeoutbox.cli.demo.producer", "demo.db", str(self.emails), str(self.lanes)
            )
            self.tell(f"{self.emails} emails in {self.lanes} lanes, enqueued by process {producer.pid}")
            self.tell(f"process {executor.pid} sends them to a relay on port {relay.port}")
            await self._until(executor, lambda: len(relay.messages) >= self.emails // 2)
            executor.kill()
            self.kills += await executor.wait() in _KILLED
            self.tell(f"process {executor.pid} killed when the relay had {len(relay.messages)} messages")
            executor = await self._executor()
            self.tell(f"process {executor.pid} goes on")
            await producer.wait()
            await self._until(executor, lambda: self._ended() >= self.emails)
        finally:
            await _stop(executor)
            await _stop(producer)

    async def _until(self, executor: asyncio.subprocess.Process, reached: Callable[[], bool]) -> None:
        while not reached():
            if executor.returncode is not None:
                raise TimeoutError  # it will not come any more; the figures say what is missing
            self.progress(self._ended())
            await asyncio.sleep(_POLL)
        self.progress(self._ended())

    def _ended(self) -> int:
        with Look(self.url) as look:
            [(ended,)] = look.rows(_ENDED)
        return int(ended)

    async def _executor(self) -> asyncio.subprocess.Process:
        return await self._start("-m", "edgeoutbox", "run", "--config", "edgeoutbox.toml")

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *arguments, cwd=self.folder, env=_environment(), stdout=log, stderr=log
            )


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _environment() -> dict[str, str]:
    """This process's environment without settings of ours: the demo has its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
