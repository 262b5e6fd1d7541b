"""The table of replies, and the reader that decides which bytes are a reply."""

import asyncio
import socket

import pytest

from edgeoutbox_smtp.replies import Reply, Stage, Verdict, judge
from edgeoutbox_smtp.wire import Garbled, Lost, Silent, Spoke, Wire

TRANSACTION = [Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.BODY, Stage.DOT]


class Pretending(asyncio.Transport):
    """A transport that keeps what is written and never sends it."""

    def __init__(self, *, closing: bool = False) -> None:
        super().__init__()
        self.closing = closing
        self.written = b""
        self.waiting = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the bytes."""
        self.written += bytes(data)

    def is_closing(self) -> bool:
        """Whether the connection is gone."""
        return self.closing

    def abort(self) -> None:
        """Be gone."""
        self.closing = True

    def get_write_buffer_size(self) -> int:
        """How much was not sent."""
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Expect a pause for whatever is buffered."""
        assert (high, low) == (0, 0)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Expect the reader."""
        assert isinstance(protocol, Wire)


@pytest.mark.parametrize("stage", TRANSACTION)
def test_every_code_has_a_verdict(stage: Stage) -> None:
    """Whatever a relay answers, the table has a row for it."""
    assert all(judge(stage, Reply(code)) for code in range(200, 600))


@pytest.mark.parametrize("stage", TRANSACTION)
def test_only_its_own_yes_is_an_acceptance(stage: Stage) -> None:
    """A step is accepted by 2xx, DATA by 354, and nothing in the middle of a body is an acceptance."""
    accepted = {code for code in range(200, 600) if judge(stage, Reply(code)) is Verdict.ACCEPTED}
    expected = {Stage.DATA: {354}, Stage.BODY: set[int]()}.get(stage, set(range(200, 300)))
    assert accepted == expected


@pytest.mark.parametrize("stage", TRANSACTION)
def test_only_the_terminator_can_leave_a_doubt(stage: Stage) -> None:
    """Before the terminator every reply proves something; after it, one that is neither yes nor no does not."""
    doubtful = {code // 100 for code in range(200, 600) if judge(stage, Reply(code)) is Verdict.UNKNOWN}
    assert doubtful == ({3} if stage is Stage.DOT else set())


def test_a_stage_before_the_transaction_has_no_row() -> None:
    """The table is about the mail transaction only."""
    with pytest.raises(LookupError):
        judge(Stage.EHLO, Reply(250))


@pytest.mark.parametrize(
    ("code", "text", "extended"),
    [
        (550, "5.1.1 no such user", "5.1.1"),
        (250, "2.0.0", "2.0.0"),
        (550, "2.1.1 contradicts itself", None),
        (550, "5.1.1x", None),
        (550, "no such user 5.1.1", None),
        (550, "5.1.1.1", None),
        (250, "", None),
    ],
)
def test_an_extended_code_is_read_from_the_start_of_the_text(code: int, text: str, extended: str | None) -> None:
    """An extended status code counts when it opens the text and agrees with the code."""
    assert Reply.of(code, text).extended == extended


async def read(*packets: bytes) -> list[Reply]:
    wire = Wire(Pretending())
    for packet in packets:
        wire.data_received(packet)
    replies = []
    while wire.spoken:
        replies.append(await wire.reply(0.01))
    return replies


async def test_replies_are_read_however_they_are_cut() -> None:
    """Packets are not lines: the same bytes give the same replies, byte by byte and at once."""
    sent = b"250-first\r\n250-second\r\n250 last\r\n550 5.1.1 no\n354\r\n"
    expected = [Reply(250), Reply(550, "5.1.1"), Reply(354)]
    assert await read(sent) == expected
    assert await read(*[bytes([byte]) for byte in sent]) == expected


@pytest.mark.parametrize(
    "sent",
    [b"hello\r\n", b"\r\n", b"25 ok\r\n", b"2500 ok\r\n", b"150 ok\r\n", b"650 ok\r\n", b"250+ok\r\n", b"\x00\x01\n"],
)
async def test_what_is_no_reply_is_garbled(sent: bytes) -> None:
    """A line that is not three digits and a mark ends the conversation."""
    with pytest.raises(Garbled):
        await read(sent)


async def test_lines_of_one_reply_have_one_code() -> None:
    """A reply that changes its code from line to line is none."""
    with pytest.raises(Garbled):
        await read(b"250-yes\r\n550 no\r\n")


@pytest.mark.parametrize("sent", [b"2" * 10_000, b"250-" + b"x" * 4_000 + b"\r\n"], ids=["line", "reply"])
async def test_a_reply_has_an_end(sent: bytes) -> None:
    """A relay that goes on and on does not fill our memory."""
    wire = Wire(Pretending())
    for _ in range(30):
        wire.data_received(sent)
    with pytest.raises(Garbled):
        await wire.reply(0.01)


async def test_a_reply_before_the_command_is_not_its_answer() -> None:
    """A command is not even sent when something was already said."""
    transport = Pretending()
    wire = Wire(transport)
    wire.data_received(b"250 ok\r\n")
    with pytest.raises(Spoke) as early:
        await wire.command(b"DATA", 1)
    assert early.value.reply == Reply(250)
    assert transport.written == b""


async def test_a_reply_that_came_before_a_loss_is_still_read() -> None:
    """What was said before the connection broke counts; after it there is nothing."""
    wire = Wire(Pretending())
    wire.data_received(b"552 5.3.4 too big\r\n")
    wire.connection_lost(None)
    assert await wire.reply(0.01) == Reply(552, "5.3.4")
    with pytest.raises(Lost):
        await wire.reply(0.01)


async def test_silence_ends() -> None:
    """A reply that does not come is waited for no longer than was said."""
    with pytest.raises(Silent):
        await Wire(Pretending()).reply(0.01)


async def test_a_chunk_that_is_not_taken_ends() -> None:
    """Neither is room for the body."""
    transport = Pretending()
    transport.waiting = 1
    with pytest.raises(Silent):
        await Wire(transport).send(b"body", 0.01)


async def test_nothing_is_written_to_a_closing_connection() -> None:
    """The terminator of a connection that is already lost was never written, and that is certain."""
    transport = Pretending(closing=True)
    with pytest.raises(Lost):
        Wire(transport).end_message()
    assert transport.written == b""


async def test_what_has_arrived_by_now_is_heard_before_the_terminator() -> None:
    """A reply that waits in the system's buffer, unread, is early too."""
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        wire = Wire(transport)
        await wire.send(b"the whole body\r\n", 1)
        theirs.sendall(b"250 taken already\r\n")
        with pytest.raises(Spoke) as early:
            await wire.listen(1)
        transport.abort()
    assert early.value.reply == Reply(250)


async def test_a_command_is_one_line() -> None:
    """No address can smuggle a second command in."""
    with pytest.raises(ValueError, match="control character"):
        await Wire(Pretending()).command(b"RCPT TO:<a@b>\r\nDATA", 1)
