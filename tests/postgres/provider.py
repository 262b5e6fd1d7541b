"""A provider that outlives every process and forgets nothing: what it was asked, by whom, and what it did."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRITES = frozenset({"write", "draft"})
"""What leaves an effect; `find` only asks for one."""

TAKEN = frozenset({"taken", "lost", "hung"})
"""What the provider did when it has the effect: it said so, or its answer was lost, or it never came."""


def milliseconds() -> int:
    """Now, in the unit of the database, on the clock that all processes of this machine share."""
    return time.time_ns() // 1_000_000


@dataclass
class Call:
    """One call. `sent` is the caller's time, `beside` the key whose caller still waited then, in the same lane."""

    do: str
    id: int
    key: str
    lane: str
    epoch: int
    owner: str
    sent: int
    beside: str | None
    came: str | None = None


@dataclass
class Provider:
    """Every call in the order in which it came."""

    seed: int
    calls: list[Call] = field(default_factory=list)
    _inside: dict[str, list[tuple[str, asyncio.StreamReader]]] = field(default_factory=dict)
    _writes: Counter[str] = field(default_factory=Counter)
    _has: set[str] = field(default_factory=set)

    def has(self, key: str) -> bool:
        """Whether there is an effect of this key."""
        return key in self._has

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one call."""
        try:
            line = await reader.readline()
            if not line.endswith(b"\n"):
                return  # whoever called was killed before it had
            said = json.loads(line)
            inside = self._inside.setdefault(said["lane"], [])
            # A caller that was stopped has given up and gone, and made way for the next while we are still at it.
            waiting = [key for key, caller in inside if not caller.at_eof()]
            call = Call(**said, beside=waiting[-1] if waiting else None)
            self.calls.append(call)
            inside.append((call.key, reader))
            try:
                answer = await self._carry_out(call, reader)
            finally:
                inside.remove((call.key, reader))
            if answer is not None:
                writer.write(f"{answer}\n".encode())
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def _carry_out(self, call: Call, reader: asyncio.StreamReader) -> str | None:
        if call.do == "find":
            call.came = "found" if call.key in self._has else "missing"
            return call.came
        self._writes[call.key] += 1
        dice = random.Random(f"{self.seed}:{call.key}:{self._writes[call.key]}")  # noqa: S311 - a schedule, no secret
        names, chances = zip(*_ODDS.items(), strict=True)
        [call.came] = dice.choices(names, chances)
        await asyncio.sleep(dice.random() * 0.05)
        if call.came in TAKEN:
            self._has.add(call.key)
        if call.came == "hung":
            await reader.read()  # until the caller gives up
        else:
            await asyncio.sleep(dice.random() * 0.1)
        return call.came if call.came in {"taken", "busy"} else None


_ODDS = {"taken": 0.88, "busy": 0.06, "lost": 0.03, "vanished": 0.02, "hung": 0.01}
"""`busy` and `vanished` leave nothing; `lost`, `vanished` and `hung` are not answered."""


async def ask(socket: Path, do: str, attempt: Any) -> str | None:
    """Call the provider for an attempt; None when it did not answer."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        action = attempt.action
        said = {
            "do": do,
            "id": action.id,
            "key": action.idempotency_key,
            "lane": action.lane_key,
            "epoch": action.epoch,
            "owner": action.lease_owner,
            "sent": milliseconds(),
        }
        writer.write(json.dumps(said).encode() + b"\n")
        answer = await reader.readline()
        return answer.decode().strip() or None
    finally:
        writer.transport.abort()
