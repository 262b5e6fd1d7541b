"""Connecting, TLS and login: each failure cools the kind, and those that somebody must mend log an error."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import trustme

from edgeoutbox.results import Defer, Done, Failed, Result, Retry, Uncertain
from edgeoutbox.testing.relay import Answer, Drop, Hang, On, Point, Raw, Reset, ScriptedRelay
from edgeoutbox_smtp import Relay, SmtpAdapter
from tests.adapters.smtp_building import (
    BIG,
    JANE,
    SENDER,
    a_message,
    an_adapter,
    an_attempt,
    client_context,
    server_context,
)

LOGIN = {"username": "shop", "password": "open sesame"}
USERS = {"shop": "open sesame"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def serving(authority: trustme.CA) -> ssl.SSLContext:
    return server_context(authority, "127.0.0.1")


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    return client_context(authority)


@dataclass(frozen=True)
class Row:
    """A relay that does not let us in. `logged`: somebody must look at it. `tls`: what the relay can do."""

    name: str
    stage: str
    logged: bool
    reason: str = ""
    script: tuple[On, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    tls: str = ""
    users: Mapping[str, str] = field(default_factory=dict)


STARTTLS = {"security": "starttls"}
ROWS = [
    Row("STARTTLS not offered", "starttls", True, 'smtps:// (security "tls"); ', fields=STARTTLS),
    Row("STARTTLS 454", "starttls", True, "454", (On(Point.STARTTLS, Answer(454)),), STARTTLS, "starttls"),
    Row("STARTTLS 421", "starttls", False, "421", (On(Point.STARTTLS, Answer(421)),), STARTTLS, "starttls"),
    Row("STARTTLS lost", "starttls", False, "lost", (On(Point.STARTTLS, Drop()),), STARTTLS, "starttls"),
    Row(
        "STARTTLS that speaks plaintext on",
        "tls",
        True,
        "negotiate TLS",
        (On(Point.EHLO, Answer(250, "relay.test\nSTARTTLS")), On(Point.STARTTLS, Answer(220))),
        STARTTLS,
    ),
    Row("certificate of a stranger", "tls", True, "certificate", (), {**STARTTLS, "tls_context": None}, "starttls"),
    Row("certificate of a stranger, TLS", "tls", True, "certificate", (), {"security": "tls"}, "tls"),
    Row("TLS spoken to plaintext", "tls", True, "negotiate TLS", (), {"security": "tls"}),
    Row("AUTH 535", "auth", True, "535 5.7.8", (), {**LOGIN, "password": "wrong"}, users=USERS),
    Row("AUTH 534", "auth", True, "534", (On(Point.AUTH, Answer(534)),), LOGIN, users=USERS),
    Row("AUTH 454", "auth", True, "454", (On(Point.AUTH, Answer(454)),), LOGIN, users=USERS),
    Row("AUTH 421", "auth", False, "421", (On(Point.AUTH, Answer(421)),), LOGIN, users=USERS),
    Row("AUTH lost", "auth", False, "lost", (On(Point.AUTH, Drop()),), LOGIN, users=USERS),
    Row("AUTH hung", "auth", False, "in time", (On(Point.AUTH, Hang()),), {**LOGIN, "timeout": 0.2}, users=USERS),
    Row("AUTH not offered", "auth", True, "no way to log in", (), LOGIN),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
async def test_a_failed_tls_or_login_defers_the_kind(
    row: Row, serving: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is sent, no attempt is spent, and an error is logged when waiting will not help."""
    tls = serving if row.tls else None
    async with ScriptedRelay(*row.script, tls=tls, implicit_tls=row.tls == "tls", users=dict(row.users)) as relay:
        attempt = an_attempt()
        result = await an_adapter(relay, fields=row.fields).execute(attempt)
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", None)
    assert result.evidence["stage"] == row.stage
    assert row.reason in result.reason
    assert [record.levelname for record in caplog.records] == ["ERROR"] * row.logged
    assert (attempt.writes, relay.messages) == (0, [])
    assert "MAIL" not in relay.verbs


async def test_a_wrong_password_is_tried_once() -> None:
    """Every mechanism is not another try: one wrong password is one failed login."""
    async with ScriptedRelay(users=USERS) as relay:
        await an_adapter(relay, fields={**LOGIN, "password": "wrong"}).execute(an_attempt())
    assert relay.verbs.count("AUTH") == 1


async def test_the_name_in_the_certificate_must_be_the_relays(authority: trustme.CA, trusting: ssl.SSLContext) -> None:
    """A trusted certificate for somebody else is not accepted."""
    async with ScriptedRelay(tls=server_context(authority, "other.example")) as relay:
        result = await an_adapter(relay, fields={**STARTTLS, "tls_context": trusting}).execute(an_attempt())
    assert isinstance(result, Defer)
    assert "certificate" in result.reason


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_a_message_goes_over_tls(security: str, serving: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    """The login and the message travel encrypted, and the evidence names the protocol."""
    async with ScriptedRelay(tls=serving, implicit_tls=security == "tls", users=USERS) as relay:
        adapter = an_adapter(relay, fields={**LOGIN, "security": security, "tls_context": trusting})
        result = await adapter.execute(an_attempt())
    assert isinstance(result, Done)
    assert result.evidence["tls"] == "TLSv1.3"
    assert [message.recipients for message in relay.messages] == [(JANE,)]


@pytest.mark.parametrize(
    ("script", "expected", "taken"),
    [
        (On(Point.QUIT, Answer(221)), Done, 1),
        (On(Point.BODY, Hang(), after=200_000), Retry, 0),
        (On(Point.BODY, Drop(), after=200_000), Retry, 0),
        (On(Point.BODY, Answer(552), after=200_000), Failed, 0),
        (On(Point.DATA, Raw(b"354 go\r\n250 ok\r\n")), Retry, 0),
        (On(Point.DOT, Drop(), keeps=True), Uncertain, 1),
        (On(Point.DOT, Reset(), keeps=True), Uncertain, 1),
        (On(Point.DOT, Hang(), keeps=True), Uncertain, 1),
    ],
    ids=["whole", "body-hung", "body-lost", "body-552", "early-250", "dot-lost", "dot-reset", "dot-hung"],
)
@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_the_same_is_proven_over_tls(
    security: str, script: On, expected: type[Result], taken: int, serving: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    """Encryption changes nothing about what the end of a connection proves, for a message of many chunks too."""
    async with ScriptedRelay(script, tls=serving, implicit_tls=security == "tls") as relay:
        adapter = an_adapter(relay, fields={"security": security, "tls_context": trusting})
        result = await adapter.execute(an_attempt(a_message(text=BIG), window=1.5))
        await relay.settled()
    assert type(result) is expected, result
    assert len(relay.messages) == taken


async def test_a_cafile_is_trusted(authority: trustme.CA, serving: ssl.SSLContext, tmp_path: Any) -> None:
    """`cafile` names the only certificates to trust."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with ScriptedRelay(tls=serving) as relay:
        result = await an_adapter(relay, fields={**STARTTLS, "cafile": tmp_path / "ca.pem"}).execute(an_attempt())
    assert isinstance(result, Done)


async def test_an_unreadable_cafile_defers(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A missing `cafile` is a wrong setting, not a reason to trust others or to fail a message."""
    async with ScriptedRelay() as relay:
        fields = {**STARTTLS, "cafile": tmp_path / "none.pem"}
        result = await an_adapter(relay, fields=fields).execute(an_attempt())
    assert isinstance(result, Defer)
    assert "cafile" in result.reason
    assert caplog.records[0].levelname == "ERROR"


async def test_nobody_listens() -> None:
    """A refused connection defers the kind."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        relay = Relay(host="127.0.0.1", port=unused.getsockname()[1], security="plaintext")  # type: ignore[arg-type]
        result = await SmtpAdapter(relay, sender=SENDER).execute(an_attempt())
    assert isinstance(result, Defer)
    assert result.reason == "cannot connect to the relay"


async def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed look-up of the relay's name defers the kind."""

    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    adapter = SmtpAdapter(Relay(host="mail.invalid"), sender=SENDER)
    result = await adapter.execute(an_attempt())
    assert isinstance(result, Defer)
    assert result.reason == "cannot connect to the relay"


async def test_a_connection_that_is_never_made_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting is bounded by `timeout`, looking the name up included."""

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    adapter = SmtpAdapter(Relay(host="mail.invalid", timeout=0.1), sender=SENDER)
    result = await adapter.execute(an_attempt())
    assert isinstance(result, Defer)
    assert "in time" in result.reason


async def test_our_own_name_is_never_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """EHLO gives our address as a literal, or the configured name: `getfqdn` is outside of every timeout."""

    def forbidden(name: str = "") -> str:
        raise AssertionError(name)

    monkeypatch.setattr(socket, "getfqdn", forbidden)
    async with ScriptedRelay() as relay:
        await an_adapter(relay).execute(an_attempt())
        await an_adapter(relay, fields={"local_hostname": "app.example.com"}).execute(an_attempt())
    names = [line for _, line in relay.commands if line.startswith("EHLO")]
    assert names == ["EHLO [127.0.0.1]", "EHLO app.example.com"]


async def test_a_slow_session_gives_up_before_the_executor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a session has the time before the fence, and no more, however slowly the relay goes."""
    monkeypatch.setattr("edgeoutbox_smtp.adapter._AT_LEAST_BEFORE_FENCE", 0.1)
    async with ScriptedRelay(On(Point.EHLO, Hang())) as relay:
        adapter = an_adapter(relay, lease=60.2, write_window=60, fields={"timeout": 30.0})
        async with asyncio.timeout(5):
            result = await adapter.execute(an_attempt())
    assert isinstance(result, Defer)


async def test_each_action_has_a_connection_of_its_own() -> None:
    """A connection is never kept for the next action: an idle one answers MAIL with 421."""
    async with ScriptedRelay() as relay:
        adapter = an_adapter(relay)
        await adapter.execute(an_attempt(key="a"))
        await adapter.execute(an_attempt(key="b"))
    assert [message.connection for message in relay.messages] == [1, 2]


async def test_check_says_what_the_relay_offers(serving: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    """`check` connects, negotiates and logs in, reports each, and sends nothing."""
    async with ScriptedRelay(tls=serving, users=USERS, offers=["SIZE 1000", "SMTPUTF8", "PIPELINING"]) as relay:
        checks = await an_adapter(relay, fields={**LOGIN, **STARTTLS, "tls_context": trusting}).check()
        await relay.settled()
    assert [(check.name, check.ok) for check in checks] == [
        ("relay", True),
        ("tls", True),
        ("login", True),
        ("offers", True),
    ]
    assert checks[-1].detail == "SIZE 1000, SMTPUTF8, PIPELINING"
    assert "MAIL" not in relay.verbs


@pytest.mark.parametrize(
    ("script", "fields", "names"),
    [
        (On(Point.GREETING, Answer(554)), {}, [("relay", False)]),
        (On(Point.NOOP, Answer(250)), STARTTLS, [("relay", True), ("tls", False)]),
        (On(Point.NOOP, Answer(250)), LOGIN, [("relay", True), ("tls", True), ("login", False)]),
    ],
    ids=["greeting", "tls", "login"],
)
async def test_check_names_what_does_not_hold(
    script: On, fields: Mapping[str, Any], names: list[tuple[str, bool]]
) -> None:
    """`check` stops at what fails, and says why."""
    async with ScriptedRelay(script) as relay:
        checks = await an_adapter(relay, fields=fields).check()
    assert [(check.name, check.ok) for check in checks] == names
    assert checks[-1].detail


async def test_a_test_message_is_sent_and_reported() -> None:
    """`send_test_message` sends one message without an action, and says what the relay answered."""
    async with ScriptedRelay(On(Point.RCPT, Answer(550, "5.1.1 x"), connection=2)) as relay:
        sent = await an_adapter(relay).send_test_message(JANE)
        refused = await an_adapter(relay).send_test_message(JANE)
    assert sent.ok
    assert (str(relay.messages[0].message_id) in sent.detail, len(relay.messages)) == (True, 1)
    assert not refused.ok
    assert "550 5.1.1" in refused.detail


async def test_without_a_relay_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """An adapter that only validates defers what it is asked to send, and says so."""
    adapter = SmtpAdapter(None, sender=SENDER)
    result = await adapter.execute(an_attempt())
    assert isinstance(result, Defer)
    assert result.scope == "kind"
    assert caplog.records[0].levelname == "ERROR"
    assert [(check.name, check.ok) for check in await adapter.check()] == [("relay", False)]
