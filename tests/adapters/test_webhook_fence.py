"""The fence, cancellation, what cannot be connected to, and privacy of an attempt."""

import asyncio
import logging
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import AddrInfoType

from edgeoutbox.adapter import WriteWindow
from edgeoutbox.clock import Deadline
from edgeoutbox.errors import DatabaseUnavailable, FenceRefused
from edgeoutbox.results import Defer, Done, Result, Retry, Uncertain
from edgeoutbox.testing.clock import until
from edgeoutbox_webhook import Endpoint, WebhookAdapter
from edgeoutbox_webhook.connector import OneConnection
from edgeoutbox_webhook.testing import TEST_SECRET, Drop, Hang, WebhookReceiver
from tests.adapters.smtp_building import server_context
from tests.adapters.webhook_building import (
    NOWHERE,
    ToldResolver,
    WaitingAttempt,
    a_call,
    an_adapter,
    an_attempt,
    repeatable,
)

BIG = {"text": "x" * 250_000}
"""More than the small buffers of these tests take."""


class Listener:
    """Takes connections and counts what comes; reads only while `reading` is set."""

    def __init__(self) -> None:
        self.connections = 0
        self.read = b""
        self.reading = asyncio.Event()
        self.reading.set()
        self.ended = asyncio.Event()
        self.endpoint = Endpoint("http://127.0.0.1:9/", secrets=[TEST_SECRET], allow_private=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Count one connection to its end."""
        self.connections += 1
        await self.reading.wait()
        try:
            while chunk := await reader.read(65_536):
                self.read += chunk
        except ConnectionError:
            pass
        writer.close()
        self.ended.set()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    """A listener with small buffers."""
    listener = Listener()
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    own.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(listener.serve, sock=own, limit=1024)
    listener.endpoint = Endpoint(f"http://127.0.0.1:{own.getsockname()[1]}/", secrets=[TEST_SECRET], allow_private=True)
    async with server:
        yield listener


class Watching(WaitingAttempt):
    """An attempt that notes what a listener had when the fence was asked for."""

    listener: Listener
    seen: tuple[int, bytes] | None = None

    async def begin_write(self) -> WriteWindow:
        """Wait for the connection to be taken, note, and give the fence."""
        window = await super().begin_write()
        self.seen = (self.listener.connections, self.listener.read)
        return window


async def test_the_fence_is_asked_for_when_the_connection_stands_and_nothing_was_sent() -> None:
    """Resolving, connecting and TLS come before the fence; the first byte of the request comes after it."""
    async with listening() as listener:
        attempt = Watching(a_call(), an_attempt().action, window=0.5)
        attempt.listener = listener
        attempt.condition = lambda: listener.connections == 1
        result = await WebhookAdapter({"billing": listener.endpoint}).execute(attempt)
        await listener.ended.wait()
    assert isinstance(result, Uncertain)
    assert attempt.seen == (1, b"")
    assert listener.read.startswith(b"POST / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "error", [FenceRefused("taken"), DatabaseUnavailable("full"), RuntimeError("defect"), OSError("disk")], ids=repr
)
async def test_a_refused_fence_sends_nothing(error: Exception) -> None:
    """What `begin_write` raises rises as it is, and the connection is gone without a byte."""
    async with listening() as listener:
        with pytest.raises(type(error)):
            await WebhookAdapter({"billing": listener.endpoint}).execute(an_attempt(refuse=error))
        await listener.ended.wait()
    assert (listener.connections, listener.read) == (1, b"")


async def test_a_slow_fence_is_not_taken_for_a_slow_endpoint() -> None:
    """The time for connecting does not run while the fence is stored; the window starts after it."""
    async with WebhookReceiver() as receiver:
        ready = asyncio.Event()
        asyncio.get_running_loop().call_later(0.5, ready.set)
        result = await an_adapter(receiver, timeout=0.2).execute(an_attempt(until=ready.is_set))
    assert isinstance(result, Done)


async def test_an_answer_is_awaited_no_longer_than_the_window() -> None:
    """The adapter answers a little before the executor would cancel it."""
    async with WebhookReceiver(Hang()) as receiver:
        attempt = an_attempt(window=2.0)
        running = asyncio.create_task(an_adapter(receiver).execute(attempt))
        await until(lambda: attempt.writes == 1)
        async with asyncio.timeout(2.0):
            result = await running
    assert isinstance(result, Uncertain)
    assert "in time" in result.reason


async def test_a_machine_that_slept_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is counted on a clock that goes on during suspension: in a lapsed one no request is begun."""
    sleeping = 0.0
    real = Deadline.after(0).at
    monkeypatch.setattr("edgeoutbox.clock.SystemClock.boot", lambda _: real + sleeping)

    class Sleeping(WaitingAttempt):
        async def begin_write(self) -> WriteWindow:
            window = await super().begin_write()
            asyncio.get_running_loop().call_soon(fall_asleep)
            return window

    def fall_asleep() -> None:
        nonlocal sleeping
        sleeping = 3600.0

    async with WebhookReceiver() as receiver:
        result = await an_adapter(receiver).execute(Sleeping(a_call(), an_attempt().action))
        await receiver.idle()
        assert receiver.received == []
    assert isinstance(result, Retry)


@pytest.mark.parametrize("when", ["connecting", "fencing", "sending"])
async def test_a_cancelled_attempt_ends_its_connection(when: str) -> None:
    """It waits for nothing and leaves nothing behind; the executor knows whether a fence was given."""
    async with WebhookReceiver(Hang()) as receiver:
        never = asyncio.Event()
        attempt = an_attempt(until=never.is_set) if when == "fencing" else an_attempt()
        resolver = _Stuck(["127.0.0.1"]) if when == "connecting" else None
        endpoint = Endpoint(f"http://localhost:{receiver.port}/", secrets=[TEST_SECRET], allow_private=True)
        adapter = WebhookAdapter({"billing": endpoint}, resolver=resolver)
        running = asyncio.create_task(adapter.execute(attempt))
        if when == "sending":
            await receiver.reached()
        elif resolver is not None:
            await resolver.stuck.wait()
        else:
            await until(lambda: receiver.connections == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await receiver.idle()
        assert len(receiver.received) == (when == "sending")
    assert attempt.writes == (when == "sending")


class _Stuck(ToldResolver):
    """A resolver that never answers."""

    def __init__(self, *answers: list[str]) -> None:
        super().__init__(*answers)
        self.stuck = asyncio.Event()

    async def resolve(self, *_: object, **__: object) -> list:  # type: ignore[type-arg]  # there is no answer
        """Wait for ever."""
        self.stuck.set()
        await asyncio.Event().wait()
        return []


@pytest.fixture
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system take only a little of what is written, so that the rest waits in the program."""
    permitted = OneConnection._permitted

    def small(connector: OneConnection, address: AddrInfoType) -> socket.socket:
        made = permitted(connector, address)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return made

    monkeypatch.setattr(OneConnection, "_permitted", small)


@pytest.mark.usefixtures("_small_buffers")
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_nothing_of_an_unfinished_request_is_sent_later(how: str) -> None:
    """The buffered rest of a body is thrown away: a connection that is only closed would still send it."""
    async with listening() as listener:
        listener.reading.clear()
        attempt = an_attempt(a_call(body=BIG), window=0.3 if how == "timed out" else 60.0)
        running = asyncio.create_task(WebhookAdapter({"billing": listener.endpoint}).execute(attempt))
        if how == "cancelled":
            await until(lambda: attempt.writes == 1)
            for _ in range(10):  # turns of the loop in which the request is begun
                await asyncio.sleep(0)
            running.cancel()
        await asyncio.wait({running})
        listener.reading.set()
        await listener.ended.wait()
    assert listener.connections == 1
    assert 0 < len(listener.read) < 200_000
    if how == "timed out":
        assert isinstance(running.result(), Uncertain)


async def test_an_inherited_write_is_never_sent_again() -> None:
    """Should an earlier write ever be handed to an at-most-once adapter, it does not even connect."""
    async with WebhookReceiver() as receiver:
        result = await an_adapter(receiver).execute(an_attempt(inherited_write_at=1))
        assert receiver.connections == 0
    assert isinstance(result, Uncertain)


def a_free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def not_reached(endpoint: Endpoint, **options: object) -> Defer:
    """The deferral of an attempt that could not connect; no fence was asked for."""
    attempt = an_attempt()
    result = await WebhookAdapter({"billing": endpoint}, **{"timeout": 5.0, **options}).execute(attempt)  # type: ignore[arg-type]  # options of this test
    assert attempt.writes == 0
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", None)
    return result


async def test_an_endpoint_that_cannot_be_connected_to_rests_the_kind() -> None:
    """Refused, unknown or silent: no action spends an attempt on an outage of the only endpoint."""
    refused = Endpoint(f"http://127.0.0.1:{a_free_port()}/", secrets=[TEST_SECRET], allow_private=True)
    assert "no connection" in (await not_reached(refused)).reason
    assert "resolve" in (await not_reached(NOWHERE, resolver=_Unknown([]))).reason
    assert "in time" in (await not_reached(NOWHERE, resolver=_Stuck([]), timeout=0.1)).reason


class _Unknown(ToldResolver):
    """A resolver that knows no name."""

    async def resolve(self, *_: object, **__: object) -> list:  # type: ignore[type-arg]  # there is no answer
        """There is no such name."""
        raise socket.gaierror(socket.EAI_NONAME, "no such name")


async def test_a_certificate_that_is_not_accepted_defers_and_is_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """An unknown authority, another name, and no TLS at all: waiting will not mend them, so the log says so."""
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cafile = tmp_path / "ca.pem"
    for context, says in (
        (server_context(stranger, "127.0.0.1"), "certificate"),
        (server_context(authority, "elsewhere.example"), "certificate"),
        (None, "TLS"),
    ):
        async with WebhookReceiver(Drop(b"HTTP/1.1 400 Bad Request\r\n\r\n"), tls=context) as receiver:
            url = f"https://127.0.0.1:{receiver.port}/hunter2"
            caplog.clear()
            with caplog.at_level(logging.ERROR):
                deferred = await not_reached(Endpoint(url, secrets=[TEST_SECRET], allow_private=True), cafile=cafile)
            assert says in deferred.reason
            assert says in caplog.text
            assert "hunter2" not in caplog.text
            assert receiver.received == []


async def test_a_trusted_certificate_is_accepted(tmp_path: Path) -> None:
    """The same with the right name and authority goes through, and is refused without the file."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with WebhookReceiver(tls=server_context(authority, "127.0.0.1")) as receiver:
        assert isinstance(await an_adapter(receiver, cafile=tmp_path / "ca.pem").execute(an_attempt()), Done)
        assert isinstance(await an_adapter(receiver).execute(an_attempt()), Defer)
        assert len(receiver.received) == 1


async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    """A receiver that speaks nothing newer than TLS 1.1 is not talked to."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = server_context(authority, "127.0.0.1")
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with WebhookReceiver(tls=context) as receiver:
        await not_reached(receiver.endpoint(), cafile=tmp_path / "ca.pem")
        assert receiver.received == []


async def test_a_dead_endpoint_does_not_hold_up_the_others() -> None:
    """With several endpoints only the dead one rests: its next call is put off without trying, others go on."""
    dead = Endpoint(f"http://127.0.0.1:{a_free_port()}/", secrets=[TEST_SECRET], allow_private=True)
    async with WebhookReceiver() as alive:
        adapter = WebhookAdapter({"dead": dead, "billing": alive.endpoint()})
        first = await adapter.execute(an_attempt(a_call(endpoint="dead")))
        second = await adapter.execute(an_attempt(a_call(endpoint="dead")))
        other = await adapter.execute(an_attempt())
        later = await adapter.execute(an_attempt(a_call(endpoint="dead"), action={"lease_expires_at": HOURS_LATER}))
    for result, stage, least in ((first, "connect", 900.0), (second, "rest", 900.0), (later, "connect", 1800.0)):
        assert isinstance(result, Defer)
        assert (result.scope, result.evidence["stage"]) == ("action", stage)
        assert result.wait is not None
        assert least <= result.wait <= least * 1.1
    assert isinstance(other, Done)


async def test_a_connection_ends_the_rest_of_an_endpoint() -> None:
    """An endpoint that came back and goes away again starts with the first wait, not with a longer one."""
    port = a_free_port()
    endpoint = Endpoint(f"http://127.0.0.1:{port}/", secrets=[TEST_SECRET], allow_private=True)
    adapter = WebhookAdapter({"billing": endpoint, "no": NOWHERE})
    later = an_attempt(action={"lease_expires_at": HOURS_LATER})
    await adapter.execute(an_attempt())
    async with WebhookReceiver(port=port):
        assert isinstance(await adapter.execute(later), Done)
    again = await adapter.execute(later)
    assert isinstance(again, Defer)
    assert again.wait is not None
    assert 900.0 <= again.wait <= 990.0


HOURS_LATER = (an_attempt().action.lease_expires_at or 0) + 7_200_000


async def test_an_endpoint_without_a_name_here_waits_for_its_configuration(caplog: pytest.LogCaptureFixture) -> None:
    """Another process may know it: put off for about a day, then FAILED, so that its lane goes on."""
    async with WebhookReceiver() as receiver:
        adapter = an_adapter(receiver)
        waits = []
        for deferrals in range(8):
            action = {"epoch": deferrals + 1, "attempt": 1}
            result = await adapter.execute(an_attempt(a_call(endpoint="crm"), action=action))
            assert isinstance(result, Defer)
            assert result.scope == "action"
            waits.append(result.wait or 0.0)
        last = await adapter.execute(an_attempt(a_call(endpoint="crm"), action={"epoch": 9, "attempt": 1}))
        assert receiver.connections == 0
    assert 16 * 3600 < sum(waits) < 26 * 3600
    assert "NOT_CONFIGURED" in repr(last)
    assert "crm" in caplog.text


async def test_an_endpoint_without_a_secret_sends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A process that only enqueues needs none; should it be told to send, it says what is missing."""
    async with WebhookReceiver() as receiver:
        unsigned = Endpoint(receiver.url, allow_private=True)
        assert "no secret" in (await not_reached(unsigned)).reason
        assert receiver.connections == 0
    assert "no secret" in caplog.text


async def test_logs_hold_no_secret_no_address_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    """At any level, also aiohttp's and asyncio's own lines."""
    steps = [Hang()]
    call = a_call(body={"iban": "hunter2"})
    with caplog.at_level(logging.DEBUG):
        async with WebhookReceiver(*steps) as receiver:
            results: list[Result] = [
                await repeatable(receiver).execute(an_attempt(call, window=0.2)),
                await repeatable(receiver).execute(an_attempt(call)),
            ]
            port = receiver.port
        closed = Endpoint(f"http://127.0.0.1:{port}/hunter2", secrets=[TEST_SECRET], allow_private=True)
        results.append(await WebhookAdapter({"billing": closed}).execute(an_attempt(call)))
    for text in (caplog.text, repr(results)):
        for private in ("hunter2", "127.0.0.1", TEST_SECRET, TEST_SECRET.removeprefix("whsec_"), "order:42"):
            assert private not in text
    assert not any(isinstance(result, Retry) for result in results)
