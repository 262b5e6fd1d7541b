"""The scripted relay itself, spoken to by hand and by the standard library."""

import asyncio
import json
import smtplib
import sys
from pathlib import Path

import pytest

from edgeoutbox.errors import FenceRefused, SecondWrite
from edgeoutbox.results import Done
from edgeoutbox.testing.attempt import CREATED_AT, ScriptedAttempt, an_action
from edgeoutbox.testing.relay import (
    AcceptedMessage,
    Answer,
    Drip,
    Drop,
    On,
    Point,
    Raw,
    Reset,
    ScriptedRelay,
    Steps,
    duplicates,
    read_record,
)
from edgeoutbox.testing.relay.__main__ import main
from edgeoutbox_smtp import Relay, SmtpAdapter
from tests.adapters.smtp_building import JANE, an_adapter, an_attempt


async def talk(relay: ScriptedRelay, *lines: str) -> str:
    """Say these lines at once and read until the relay hangs up."""
    reader, writer = await asyncio.open_connection(relay.host, relay.port)
    writer.write("".join(f"{line}\r\n" for line in lines).encode())
    try:
        return (await reader.read()).decode()
    except ConnectionResetError:
        return "reset"
    finally:
        writer.transport.abort()


async def test_without_a_script_every_message_is_taken() -> None:
    """Commands may come in one packet; the message is unstuffed and kept with its envelope."""
    async with ScriptedRelay(offers=["PIPELINING"]) as relay:
        said = await talk(
            relay,
            *("HELO me", "MAIL FROM:<a@x.example> SIZE=9", "RCPT TO:<b@x.example>", "RCPT TO:<c@x.example>", "DATA"),
            *("Message-ID: <1@x.example>", "", "..dot", ".", "NOOP", "WHAT", "QUIT"),
        )
    assert [line[:3] for line in said.splitlines()] == [
        *("220", "250", "250", "250", "250", "354"),
        *("250", "250", "500", "221"),
    ]
    (message,) = relay.messages
    assert (message.number, message.connection, message.mail_from) == (1, 1, "a@x.example")
    assert (message.recipients, message.message_id) == (("b@x.example", "c@x.example"), "<1@x.example>")
    assert message.content == b"Message-ID: <1@x.example>\r\n\r\n.dot\r\n"


async def test_an_empty_message_is_a_message() -> None:
    """A terminator may be the first line."""
    async with ScriptedRelay() as relay:
        await talk(relay, "HELO me", "MAIL FROM:<a@x.example>", "RCPT TO:<b@x.example>", "DATA", ".", "QUIT")
    assert [message.content for message in relay.messages] == [b""]


async def test_commands_out_of_order_are_refused() -> None:
    """RCPT needs MAIL, DATA needs RCPT, and RSET forgets both."""
    async with ScriptedRelay() as relay:
        said = await talk(
            relay,
            *("HELO me", "RCPT TO:<b@x.example>", "DATA", "MAIL FROM:<a@x.example>", "DATA", "RSET"),
            *("RCPT TO:<b@x.example>", "STARTTLS", "AUTH PLAIN eA==", "QUIT"),
        )
    assert [line[:3] for line in said.splitlines()][2:] == [
        "503",
        "503",
        "250",
        "554",
        "250",
        "503",
        "502",
        "502",
        "221",
    ]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Steps(Answer(250, "a\nb"), Drop()), "250-a\r\n250 b\r\n"),
        (Steps(Answer(250, "ok"), Drop()), "250 ok\r\n"),
        (Steps(Raw(b"25"), Drop()), "25"),
        (Steps(Drip(b"250 ok\r\n", every=0.001), Drop()), "250 ok\r\n"),
        (Drop(), ""),
    ],
    ids=["lines", "then drop", "half", "drip", "drop"],
)
async def test_a_step_does_what_it_says(step: Steps, said: str) -> None:
    """Answers, halves, drips and drops reach the client as scripted."""
    async with ScriptedRelay(On(Point.GREETING, step)) as relay:
        assert await talk(relay) == said


async def test_a_reset_is_a_reset() -> None:
    """The client sees its connection reset, not closed."""
    async with ScriptedRelay(On(Point.GREETING, Reset())) as relay:
        assert await talk(relay) == "reset"


async def test_a_line_of_a_script_is_about_one_moment() -> None:
    """`nth` and `connection` choose the time, and the first line that fits wins."""
    async with ScriptedRelay(On(Point.NOOP, Answer(450), nth=2), On(Point.NOOP, Answer(550), connection=2)) as relay:
        relay.on(Point.NOOP, Answer(251), connection=1)
        first = await talk(relay, "NOOP", "NOOP", "QUIT")
        second = await talk(relay, "NOOP", "QUIT")
    assert [line[:3] for line in first.splitlines()] == ["220", "251", "450", "221"]
    assert [line[:3] for line in second.splitlines()] == ["220", "550", "221"]


async def test_the_standard_library_can_log_in() -> None:
    """PLAIN and LOGIN are understood, and mail needs a login once there are users."""

    def send(user: str, password: str) -> None:
        with smtplib.SMTP(relay.host, relay.port, local_hostname="me") as client:
            client.login(user, password)
            client.sendmail("a@x.example", [JANE], "Subject: x\r\n\r\nx\r\n")

    async with ScriptedRelay(users={"shop": "sesame"}) as relay:
        await asyncio.to_thread(send, "shop", "sesame")
        with pytest.raises(smtplib.SMTPAuthenticationError):
            await asyncio.to_thread(send, "shop", "wrong")
        assert (await talk(relay, "HELO me", "MAIL FROM:<a@x.example>", "QUIT")).splitlines()[2].startswith("530")
    assert [message.recipients for message in relay.messages] == [(JANE,)]


async def test_a_record_outlives_the_relay(tmp_path: Path) -> None:
    """Every message is a line of the record, which another relay continues; repeats are counted."""
    path = tmp_path / "taken.jsonl"
    for key in ("a", "b", "a"):
        async with ScriptedRelay(record=path) as relay:
            await an_adapter(relay).execute(an_attempt(key=key))
    taken = read_record(path)
    assert [message.recipients for message in taken] == [(JANE,)] * 3
    assert duplicates(taken) == {str(taken[0].message_id): 2}
    assert taken[0].sha256 == taken[2].sha256 != taken[1].sha256
    assert read_record(tmp_path / "none") == []


async def test_the_relay_as_a_program(tmp_path: Path) -> None:
    """It says in one line where it listens, and records what it takes, without a warning."""
    program = [sys.executable, "-W", "error", "-m", "edgeoutbox.testing.relay", "--record", str(tmp_path / "taken")]
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            told = json.loads(await process.stdout.readline())
        adapter = SmtpAdapter(Relay.parse(told["relay"], security=told["security"]), sender="shop@example.com")
        result = await adapter.execute(an_attempt())
    finally:
        process.terminate()
        await process.wait()
    assert isinstance(result, Done)
    assert [message.recipients for message in read_record(tmp_path / "taken")] == [(JANE,)]


def test_a_port_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the port is named."""
    with pytest.raises(SystemExit, match="2"):
        main(["--port", "99999"])
    assert "--port 99999: cannot be listened on" in capsys.readouterr().err


async def test_many_connections_are_served_at_once() -> None:
    """Two hundred messages from many sessions are all taken, once each."""
    async with ScriptedRelay() as relay:
        adapter = an_adapter(relay)
        gate = asyncio.Semaphore(20)

        async def send(number: int) -> None:
            async with gate:
                await adapter.execute(an_attempt(key=f"order:{number}"))

        await asyncio.gather(*(send(number) for number in range(200)))
    assert [message.number for message in relay.messages] == list(range(1, 201))
    assert duplicates(relay.messages) == {}


def test_messages_without_an_id_are_no_duplicates() -> None:
    """What cannot be told apart is not counted."""
    message = AcceptedMessage(1, 1, "a", ("b",), None, 0, "")
    assert duplicates([message, message]) == {}


async def test_an_attempt_counts_its_fences() -> None:
    """The double behaves like an executor's attempt of an at-most-once kind."""
    attempt = ScriptedAttempt("payload", an_action(id=7), window=5)
    before = attempt.write_started_at
    window = await attempt.begin_write()
    with pytest.raises(SecondWrite):
        await attempt.begin_write()
    assert (attempt.payload, attempt.action.id, attempt.last, attempt.inherited_write_at) == ("payload", 7, False, None)
    assert (before, attempt.write_started_at, window.seconds, attempt.writes) == (None, CREATED_AT, 5, 1)


async def test_an_attempt_can_refuse() -> None:
    """A refused fence is not counted."""
    attempt = ScriptedAttempt("payload", refuse=FenceRefused())
    with pytest.raises(FenceRefused):
        await attempt.begin_write()
    assert attempt.writes == 0
