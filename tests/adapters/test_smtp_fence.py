"""The fence, the write window, cancellation and privacy of an attempt."""

import asyncio
import logging
from typing import Any

import pytest

from edgeoutbox import Deadline
from edgeoutbox.adapter import WriteWindow
from edgeoutbox.errors import DatabaseUnavailable, FenceRefused
from edgeoutbox.results import Done, Result, Retry, Uncertain
from edgeoutbox.testing.attempt import ScriptedAttempt
from edgeoutbox.testing.relay import Answer, Hang, On, Point, Raw, ScriptedRelay
from edgeoutbox_smtp import EmailNotice
from edgeoutbox_smtp.wire import Wire
from tests.adapters.smtp_building import BIG, JANE, a_message, an_adapter, an_attempt


class Watching(ScriptedAttempt[EmailNotice[Any]]):
    """An attempt that notes what the relay had heard when the fence was asked for."""

    heard: list[str]

    def watch(self, relay: ScriptedRelay) -> None:
        """Note what this relay hears."""
        self._relay = relay

    async def begin_write(self) -> WriteWindow:
        """Note, and give the fence."""
        self.heard = list(self._relay.verbs)
        return await super().begin_write()


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Transport]:
    """The transports that messages were written to."""
    found: list[asyncio.Transport] = []
    opened = Wire.__init__

    def noting(wire: Wire, transport: asyncio.Transport) -> None:
        found.append(transport)
        opened(wire, transport)

    monkeypatch.setattr(Wire, "__init__", noting)
    return found


async def test_the_fence_is_asked_for_just_before_data() -> None:
    """Everything up to the accepted recipients is provably empty, so it comes before the fence; DATA comes after."""
    async with ScriptedRelay() as relay:
        attempt = Watching(a_message())
        attempt.watch(relay)
        await an_adapter(relay).execute(attempt)
    assert attempt.heard == ["EHLO", "MAIL", "RCPT"]
    assert relay.verbs[3] == "DATA"


@pytest.mark.parametrize(
    "error", [FenceRefused("taken"), DatabaseUnavailable("full")], ids=lambda error: type(error).__name__
)
async def test_a_refused_fence_sends_nothing(error: Exception, wires: list[asyncio.Transport]) -> None:
    """What `begin_write` raises rises, the connection is gone, and no DATA was sent."""
    async with ScriptedRelay() as relay:
        with pytest.raises(type(error)):
            await an_adapter(relay).execute(an_attempt(refuse=error))
        await relay.settled()
    assert "DATA" not in relay.verbs
    assert relay.messages == []
    assert wires[0].is_closing()


async def test_an_inherited_write_is_never_sent_again() -> None:
    """Should an earlier write ever be handed to this adapter, it does not even connect."""
    async with ScriptedRelay() as relay:
        result = await an_adapter(relay).execute(an_attempt(inherited_write_at=1))
    assert isinstance(result, Uncertain)
    assert relay.connections == 0


async def test_a_relay_that_gave_up_while_the_fence_was_stored_is_a_retry() -> None:
    """What came while nobody asked, during the fence, is no answer to DATA."""
    for early in (b"421 too slow\r\n", b"354 go\r\n", b"250 ok\r\n", b"550 no\r\n"):
        async with ScriptedRelay(On(Point.RCPT, Raw(b"250 ok\r\n" + early))) as relay:
            result = await an_adapter(relay).execute(an_attempt())
            await relay.settled()
        assert isinstance(result, Retry), early
        assert relay.messages == []


async def test_the_reply_is_awaited_no_longer_than_the_window() -> None:
    """The adapter answers a little before the executor would cancel it."""
    async with ScriptedRelay(On(Point.DOT, Hang())) as relay:
        async with asyncio.timeout(0.6):
            result = await an_adapter(relay).execute(an_attempt(window=0.6))
    assert isinstance(result, Uncertain)
    assert "in time" in result.reason


async def test_a_terminator_without_time_for_its_reply_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the window is nearly over, stopping before the terminator is certain; going on would not be."""
    monkeypatch.setattr("edgeoutbox_smtp.transaction._FOR_THE_REPLY", 2.0)
    async with ScriptedRelay() as relay:
        result = await an_adapter(relay).execute(an_attempt())
        await relay.settled()
    assert isinstance(result, Retry)
    assert relay.messages == []


async def test_a_machine_that_slept_does_not_finish_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is counted on a clock that goes on during suspension: a lapsed one stops before the terminator."""
    sleeping = 0.0
    real = Deadline.after(0).at
    monkeypatch.setattr("edgeoutbox.clock.SystemClock.boot", lambda _: real + sleeping)

    class Sleeping(Watching):
        async def begin_write(self) -> WriteWindow:
            window = await super().begin_write()
            asyncio.get_running_loop().call_soon(fall_asleep)
            return window

    def fall_asleep() -> None:
        nonlocal sleeping
        sleeping = 3600.0

    async with ScriptedRelay() as relay:
        attempt = Sleeping(a_message())
        attempt.watch(relay)
        result = await an_adapter(relay).execute(attempt)
        await relay.settled()
    assert isinstance(result, Retry)
    assert relay.messages == []


async def test_a_cancellation_after_the_terminator_ends_the_connection(wires: list[asyncio.Transport]) -> None:
    """A cancelled attempt waits for nothing: no QUIT, no reply; the executor knows that a fence was given."""
    async with ScriptedRelay(On(Point.DOT, Hang(), keeps=True)) as relay:
        attempt = an_attempt()
        running = asyncio.create_task(an_adapter(relay).execute(attempt))
        await relay.reached(Point.DOT)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert attempt.writes == 1
    assert wires[0].is_closing()
    assert "QUIT" not in relay.verbs


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_nothing_of_an_unfinished_body_is_sent_later(how: str, wires: list[asyncio.Transport]) -> None:
    """The buffered rest of a message is thrown away: a connection that is only closed would still send it."""
    async with ScriptedRelay(On(Point.BODY, Hang(), after=1)) as relay:
        fields = {"timeout": 0.3 if how == "timed out" else 30.0}
        running: asyncio.Task[Result] = asyncio.create_task(
            an_adapter(relay, fields=fields).execute(an_attempt(a_message(text=BIG)))
        )
        await relay.reached(Point.BODY)
        if how == "cancelled":
            running.cancel()
        await asyncio.wait({running})
        assert wires[0].is_closing()
        assert wires[0].get_write_buffer_size() == 0
    assert relay.messages == []


async def test_an_unexpected_error_after_the_terminator_is_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in this program while it waits for the reply, the message may have been taken."""
    replies = Wire.reply

    async def failing(wire: Wire, within: float) -> object:
        if within > 50:  # only the reply to the terminator is awaited for the whole window
            raise RuntimeError("a defect")
        return await replies(wire, within)

    monkeypatch.setattr(Wire, "reply", failing)
    async with ScriptedRelay() as relay:
        result = await an_adapter(relay).execute(an_attempt())
    assert isinstance(result, Uncertain)


async def test_a_big_message_arrives_whole() -> None:
    """A message of many chunks, with dots at line starts, comes out as it went in."""
    text = "..dots\n.\n.. \n" * 40_000
    async with ScriptedRelay() as relay:
        result = await an_adapter(relay).execute(an_attempt(a_message(text=text)))
    assert isinstance(result, Done)
    assert relay.messages[0].content.endswith(b"\r\n\r\n" + text.replace("\n", "\r\n").encode())
    assert relay.messages[0].size == result.evidence["bytes"]


@pytest.mark.parametrize("point", [Point.GREETING, Point.MAIL, Point.RCPT, Point.DATA, Point.BODY, Point.DOT])
@pytest.mark.parametrize("code", [421, 451, 550])
async def test_nothing_private_is_stored_or_logged(point: Point, code: int, caplog: pytest.LogCaptureFixture) -> None:
    """A relay's own words, addresses and the message appear in no result and no log line."""
    caplog.set_level(logging.DEBUG)
    words = f"5.1.1 <{JANE}> the relay's own words"
    async with ScriptedRelay(On(point, Answer(code, words))) as relay:
        result = await an_adapter(relay).execute(an_attempt(a_message(text="A private sentence.")))
    told = repr(result) + caplog.text
    for private in (JANE, "own words", "private", "shop@example.com"):
        assert private not in told
