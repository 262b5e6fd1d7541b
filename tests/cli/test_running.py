import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from edgeoutbox.testing.relay import Drip, Hang, On, Point, Raw, ScriptedRelay, Steps
from tests.cli.terminal import Terminal, clean, message

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@asynccontextmanager
async def running(terminal: Terminal, *options: str) -> AsyncIterator[Process]:
    """`edgeoutbox run` in a process of its own; whatever happens, it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "edgeoutbox", "run", *options),
        cwd=terminal.folder,
        env=clean(os.environ) | terminal.environment,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def lines_until(process: Process, words: str) -> list[str]:
    """The lines of its log up to one that holds these words."""
    assert process.stderr is not None
    lines: list[str] = []
    async for line in process.stderr:
        lines.append(line.decode().rstrip())
        if words in lines[-1]:
            return lines
    raise AssertionError("\n".join([f"it ended without saying {words!r}:", *lines]))


async def in_thread(terminal: Terminal, *arguments: str) -> str:
    """A command beside a running event loop."""
    return await asyncio.to_thread(terminal.run, *arguments)


async def test_introduces_itself_and_stops(ready: Terminal) -> None:
    """`run` says database, driver, kinds and relay in a line each, without the user; SIGTERM ends it with 0."""
    ready.environment["PW"] = "hunter2"
    ready.configure_relay(2525, 'username = "mailer"\npassword = { env = "PW" }\n')
    async with running(ready) as process:
        lines = await lines_until(process, "destination: ")
        process.send_signal(signal.SIGTERM)
        lines += await lines_until(process, "stopped")
        assert await process.wait() == 0
    said = [line.partition(" info ")[2] for line in lines]
    assert said[0] == f"database: {ready.folder}/edgeoutbox.db"
    assert said[1].startswith("driver: apsw (SQLite 3.")
    assert said[2] == "kinds: email (at_most_once)"
    assert said[3] == "destination: email -> relay 127.0.0.1:2525 (plaintext)"
    assert "hunter2" not in "".join(lines)
    assert "mailer" not in "".join(lines)


async def test_sends_what_another_process_enqueues(ready: Terminal) -> None:
    """What is enqueued while it runs is sent, and nothing personal is logged."""
    async with ScriptedRelay() as relay:
        ready.configure_relay(relay.port)
        async with running(ready, "--log-json") as process:
            await lines_until(process, "destination: ")
            await in_thread(ready, "enqueue", "email", "k", message())
            await relay.reached(Point.DOT)
            process.send_signal(signal.SIGINT)
            lines = await lines_until(process, "stopped")
            assert await process.wait() == 0
    assert [each.recipients for each in relay.messages] == [("jane@example.com",)]
    assert "jane" not in "".join(lines)
    assert {json.loads(line)["level"] for line in lines} == {"info"}
    assert json.loads(await in_thread(ready, "show", "k", "--json"))["state"] == "DONE"


async def test_first_signal_lets_attempts_finish(ready: Terminal) -> None:
    """A message that is being handed over at SIGTERM is still confirmed."""
    slowly = Steps(Drip(b"250", 0.2), Raw(b" 2.0.0 taken\r\n"))
    async with ScriptedRelay(On(Point.DOT, slowly)) as relay:
        ready.configure_relay(relay.port)
        await in_thread(ready, "enqueue", "email", "k", message())
        async with running(ready) as process:
            await relay.reached(Point.DOT)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    assert json.loads(await in_thread(ready, "show", "k", "--json"))["state"] == "DONE"


async def test_second_signal_does_not_wait(ready: Terminal) -> None:
    """A second signal cancels what hangs: exit code 4, and the action is UNCERTAIN at once."""
    async with ScriptedRelay(On(Point.DOT, Hang())) as relay:
        ready.configure_relay(relay.port)
        await in_thread(ready, "enqueue", "email", "k", message())
        async with running(ready) as process:
            await relay.reached(Point.DOT)
            process.send_signal(signal.SIGTERM)
            await lines_until(process, "stopping: ")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 4
    shown = json.loads(await in_thread(ready, "show", "k", "--json"))
    assert (shown["state"], shown["stop_reason"]) == ("UNCERTAIN", "ERROR_AFTER_WRITE")


def test_until_idle(ready: Terminal) -> None:
    """`--until-idle` carries out what is due and ends; what is due later stays."""
    ready.run("enqueue", "email", "now", message())
    ready.run("enqueue", "email", "later", message(), "--due", "+1h")
    ready.run("enqueue", "fax", "nobody", "{}")
    ended = ready.process("run", "--until-idle")
    assert ended.returncode == 0
    assert "stopped: 1 ended; 1 due remains: fax is not configured here; 1 unfinished, the next at " in ended.stderr
    assert [ready.json("show", key)["state"] for key in ("now", "later")] == ["DONE", "ADMITTED"]
    ready.run("withdraw", "nobody")
    assert "stopped: 0 ended; nothing is due; 1 unfinished, the next at " in ready.process("run", "--until-idle").stderr
    ready.run("withdraw", "later")
    assert "stopped: 0 ended; nothing waits" in ready.process("run", "--until-idle").stderr


def test_until_idle_names_a_pause(ready: Terminal) -> None:
    """What is due and paused stays; `run` says at its start and at its end who paused it."""
    ready.run("enqueue", "email", "one", message())
    ready.run("enqueue", "email", "two", message())
    ready.run("pause", "email", "--by", "anna")
    ended = ready.process("run", "--until-idle")
    assert " warning paused: email by anna; go on with: edgeoutbox resume email\n" in ended.stderr
    assert "stopped: 0 ended; 2 due remain: email paused by anna" in ended.stderr


def test_without_a_kind(terminal: Terminal) -> None:
    """Nothing that could be carried out is wrong configuration, and nothing is created."""
    assert terminal.process("run").returncode == 2
    assert list(terminal.folder.iterdir()) == []


def test_creates_its_database(terminal: Terminal) -> None:
    """A sidecar that starts before its application makes the database."""
    (terminal.folder / "edgeoutbox.toml").write_text(
        '[kinds.email]\nsender = "a@example.com"\ndeliver = "capture"\ncapture_dir = "c"', encoding="utf-8"
    )
    assert terminal.process("run", "--until-idle").returncode == 0
    assert terminal.json("list")["actions"] == []
