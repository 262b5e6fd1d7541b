"""The demo of email: a relay here, an application and an executor in processes of their own, and the kill."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from edgeoutbox.cli.demo.figures import Figures, Sent, figures
from edgeoutbox.cli.demo.performance import LONGEST, Performance, stop
from edgeoutbox.outbox import Outbox
from edgeoutbox.sidecar.database import Look
from edgeoutbox.states import State
from edgeoutbox.testing.relay import Drip, On, Point, Raw, ScriptedRelay, Steps, read_record

EMAILS = 200
LANES = 20
LEASE = 3
"""Seconds."""

_CONFIGURATION = """\
database = "sqlite+apsw:///demo.db"

[kinds.email]
sender = "Demo <demo@edgeoutbox.example>"
relay = "smtp://127.0.0.1:{port}"
security = "plaintext"
concurrency = {lanes}
# A killed executor's actions are free again when its lease ends: short here, so that the demo need not wait.
lease = {lease}
write_window = 2
"""

_ACTIONS = "SELECT id, idempotency_key, lane_key, state FROM agent_action ORDER BY id"

_SLOW = (
    On(Point.RCPT, Steps(Drip(b"250", 0.01), Raw(b" 2.1.5 ok\r\n"))),
    On(Point.DOT, Steps(Drip(b"250", 0.02), Raw(b" 2.0.0 taken\r\n"))),
)
"""A relay takes its time, so that the kill finds messages at every step."""


@dataclass
class Stage(Performance):
    """Emails, and an executor that is killed half way."""

    emails: int = EMAILS
    lanes: int = LANES

    @property
    def total(self) -> int:
        """Every email."""
        return self.emails

    @property
    def record(self) -> Path:
        """The relay's record: one line for each message that it took."""
        return self.folder / "relay.jsonl"

    async def perform(self) -> Figures:
        """Enqueue, send, kill half way, go on, and count."""
        began = monotonic()
        async with Outbox(self.url):
            pass  # makes the tables
        async with ScriptedRelay(*_SLOW, record=self.record) as relay:
            self.configure(_CONFIGURATION.format(port=relay.port, lanes=self.lanes, lease=LEASE))
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
        executor = producer = await self.executor()
        try:
            producer = await self.start(
                "-m", "edgeoutbox.cli.demo.producer", "demo.db", str(self.emails), str(self.lanes)
            )
            self.tell(f"{self.emails} emails in {self.lanes} lanes, enqueued by process {producer.pid}")
            self.tell(f"process {executor.pid} sends them to a relay on port {relay.port}")
            await self.until(executor, lambda: len(relay.messages) >= self.emails // 2)
            await self.kill(executor)
            had, ended = len(relay.messages), self.ended()
            self.progress(ended)
            self.tell(f"process {executor.pid} killed: the relay had {had} messages, {ended} had ended in the database")
            executor = await self.executor()
            self.tell(
                f"process {executor.pid} goes on; what the killed one held waits for its leases to end, {LEASE} s"
            )
            await producer.wait()
            await self.until(executor, lambda: self.ended() >= self.emails)
        finally:
            await stop(executor)
            await stop(producer)
