"""What the documents say in code runs as it stands there."""

import asyncio
import inspect
import os
import re
import shlex
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from edgeoutbox import Outbox, State
from edgeoutbox.connections.sqlite import PREPARE
from edgeoutbox.storage.sqlite.schema import schema_sql
from edgeoutbox_smtp import Relay, SmtpAdapter, captured, message_id
from edgeoutbox_webhook import Endpoint, WebhookAdapter, webhook_id
from tests.docs.blocks import ROOT, blocks, part, rows, run


def test_the_first_program_is_the_example() -> None:
    """The program of the README is the one in `examples/`, which is tested."""
    [program] = blocks(part("README.md", "A first program"), "python")
    example = (ROOT / "examples" / "first_program.py").read_text(encoding="utf-8")
    assert example.partition('"""\n\n')[2] == program


async def test_the_page_about_python_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks, one after the other, do what their comments say."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").partition("\n## Test\n")[0]
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        await run(block, names)
    assert (names["enqueued"].created, names["again"].created) == (True, False)
    assert names["enqueued"].id == names["again"].id
    assert names["proposal"].payload_digest is not None
    assert names["ended"].state is State.DONE
    keys = {"order:43:receipt", "order:44:receipt", "order:42:survey", "offer:7"}
    async with Outbox("sqlite:///app.db") as outbox:
        left = {action.idempotency_key: action.state for action in (await outbox.list()).actions}
    assert left == {**dict.fromkeys(keys, State.DONE), "offer:7": State.CANCELLED}
    assert len(captured(tmp_path / "captured")) == 4


async def test_the_tests_of_the_page_about_python_pass(tmp_path: Path) -> None:
    """A newcomer's tests, copied into one file, pass."""
    tests = blocks(part("docs/python.md", "Test"), "python")
    (tmp_path / "test_copied.py").write_text("\n\n".join(tests), encoding="utf-8")
    said = await output(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "2 passed" in said


def test_the_columns_of_the_page_about_sql_are_there() -> None:
    """Each column that it names is one, and every one that it says may be inserted is taken."""
    given = {
        "kind": "email",
        "idempotency_key": "k",
        "payload": "{}",
        "state": "PROPOSED",
        "due_at": 5,
        "expires_at": 9_000_000_000_000,
        "max_attempts": 1,
    }
    with closing(apsw.Connection(":memory:")) as database:
        database.execute(schema_sql())
        known = {name for (name,) in database.execute("SELECT name FROM pragma_table_info('agent_action')")}
        may = rows(part("docs/sql.md", "Enqueue"))
        values = {name: given.get(name, "text") for name in may}
        marks = ", ".join("?" * len(values))
        database.execute(
            f"INSERT INTO agent_action ({', '.join(values)}) VALUES ({marks})",  # noqa: S608 - our own columns
            tuple(values.values()),
        )
    described = may | rows(part("docs/sql.md", "Read"))
    assert known - set(described) == {"stop_reason", "last_error", "forget_at_end"}
    assert set(described) - known == {state.value for state in State}


def test_the_pragmas_are_those_of_prepare() -> None:
    """What other languages are told to run is what `prepare` runs."""
    [told] = blocks(part("docs/operations.md", "One copy of SQLite"), "sql")
    assert tuple(re.findall(r"^(PRAGMA .*?);", told, re.MULTILINE)) == PREPARE
    example = (ROOT / "examples" / "sidecar_any_language.sh").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^(PRAGMA .*?);", example, re.MULTILINE)) == PREPARE


async def test_the_ids_after_a_crash(tmp_path: Path) -> None:
    """The two commands print the id that the provider was given."""
    [commands] = blocks(part("docs/operations.md", "UNCERTAIN"), "sh")
    said = [(await output(tmp_path, sys.executable, *shlex.split(line)[1:])).strip() for line in commands.splitlines()]
    assert said == [
        message_id("order:42:receipt", "shop@example.com"),
        webhook_id("webhook", "billing", "order:42:paid"),
    ]


@pytest.mark.parametrize("document", ["email", "webhook"])
async def test_the_constructors(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example makes an adapter, and the table names every argument of each constructor."""
    monkeypatch.setenv("SMTP_PASSWORD", "secret")
    monkeypatch.setenv("BILLING_SECRET", "whsec_" + "c2VjcmV0" * 5)
    text = part(f"docs/adapters/{document}.md", "In code")
    names: dict[str, Any] = {}
    await run(blocks(text, "python")[0], names)
    assert names["adapter"].kind.max_attempts == 10
    limits = {"lease", "write_window", "max_attempts", "retention_days", "concurrency", "requires_approval"}
    made: dict[str, Any] = {
        "email": {"Relay(...)": Relay, "SmtpAdapter(relay, ...)": SmtpAdapter},
        "webhook": {"Endpoint(url, ...)": Endpoint, "WebhookAdapter(endpoints, ...)": WebhookAdapter},
    }
    for row, constructor in made[document].items():
        told = set(re.findall(r"`([a-z_]+)`", rows(text)[row])) | set(re.findall(r"[a-z]+", row))
        arguments = set(inspect.signature(constructor).parameters)
        assert arguments - {"limits"} <= told
        assert limits <= told or "limits" not in arguments


PRELUDE = """
import asyncio
from pathlib import Path

from edgeoutbox import ActionRequest, Adapter, Done, Executor, Outbox, background, one, Kind
from pydantic import BaseModel


class Nothing(BaseModel):
    pass


class Slow(Adapter[Nothing]):
    kind = Kind("slow", variants=one(Nothing))

    async def execute(self, attempt):
        await attempt.begin_write()
        print("writing", flush=True)
        while not Path("release").exists():
            await asyncio.sleep(0.01)
        return Done()


adapters = [Slow()]
request = ActionRequest(kind="slow", idempotency_key="k", payload={})
"""

WORK = {
    "background": "def serve(outbox):\n    outbox.wait(outbox.enqueue(request).id)\n",
    "asyncio": """
async def first():
    async with Outbox("sqlite:///app.db", adapters) as outbox:
        await outbox.enqueue(request)

asyncio.run(first())
""",
}


@pytest.mark.parametrize("how", WORK)
async def test_sigterm_lets_an_attempt_end(tmp_path: Path, how: str) -> None:
    """With the lines of the document, a program that is terminated in the middle of a write records its result."""
    text = part("docs/operations.md", "Ending a program").partition(f"<!-- ends: {how} -->")[2]
    (tmp_path / "program.py").write_text(PRELUDE + WORK[how] + blocks(text, "python")[0], encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "program.py"), cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"writing\n"
            process.send_signal(signal.SIGTERM)
            (tmp_path / "release").touch()
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors
    async with Outbox(f"sqlite:///{tmp_path / 'app.db'}") as outbox:
        action = await outbox.get(key="k")
    assert action is not None
    assert action.state is State.DONE


async def output(folder: Path, *command: str) -> str:
    """What a program prints that ends without an error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEOUTBOX_", "PYTEST_"))}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=kept, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said
