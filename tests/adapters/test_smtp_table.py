"""The failure table: what each answer, silence and break of a relay proves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgeoutbox.results import Defer, Done, Failed, Result, Retry, Uncertain
from edgeoutbox.states import StopReason
from edgeoutbox.testing.relay import Answer, Drip, Drop, Hang, On, Point, Raw, Reset, ScriptedRelay, Steps
from tests.adapters.smtp_building import BIG, JANE, a_message, an_adapter, an_attempt, code_of

QUICK = {"timeout": 0.25}
OTHERS = ("one@example.com", "two@example.com", "three@example.com")


@dataclass(frozen=True)
class Row:
    """A script, and what must come of it. `taken`: whether the relay keeps a message. `fenced`: whether DATA came."""

    name: str
    script: tuple[On, ...]
    expected: type[Result]
    reason: str = ""
    code: int | None = None
    stage: str = ""
    fenced: bool = True
    taken: bool = False
    stop_reason: StopReason | None = None
    message: Mapping[str, Any] = field(default_factory=dict)
    relay: Mapping[str, Any] = field(default_factory=dict)
    window: float = 60.0


def at(point: Point, step: Any, **fields: Any) -> tuple[On, ...]:
    return (On(point, step, **fields),)


def deferred(name: str, script: tuple[On, ...], **fields: Any) -> Row:
    return Row(name, script, Defer, fenced=False, **fields)


def early(name: str, step: Any, **fields: Any) -> Row:
    """A step in the middle of a big message."""
    return Row(name, at(Point.BODY, step, after=200_000), stage="body", message={"text": BIG}, **fields)


BEFORE_MAIL = [
    deferred("greeting 421", at(Point.GREETING, Answer(421, "busy")), code=421, stage="greeting"),
    deferred("greeting 554", at(Point.GREETING, Answer(554, "go away")), code=554, stage="greeting"),
    deferred("greeting garbage", at(Point.GREETING, Raw(b"hello there\r\n")), stage="greeting"),
    deferred("greeting half", at(Point.GREETING, Steps(Raw(b"22"), Hang())), relay=QUICK, stage="connect"),
    deferred("greeting lost", at(Point.GREETING, Drop()), stage="connect"),
    deferred("greeting reset", at(Point.GREETING, Reset()), stage="connect"),
    deferred("greeting timed out", at(Point.GREETING, Hang()), relay=QUICK, reason="in time", stage="connect"),
    deferred("EHLO lost", at(Point.EHLO, Drop()), stage="ehlo", reason="lost"),
    deferred("EHLO timed out", at(Point.EHLO, Hang()), relay=QUICK, stage="ehlo", reason="in time"),
    deferred("EHLO 421", at(Point.EHLO, Answer(421)), code=421, stage="ehlo"),
    deferred(
        "EHLO and HELO refused",
        (On(Point.EHLO, Answer(550)), On(Point.HELO, Answer(550))),
        code=550,
        stage="ehlo",
        reason="EHLO",
    ),
]

BEFORE_DATA = [
    Row("MAIL 421", at(Point.MAIL, Answer(421)), Retry, code=421, fenced=False),
    Row("MAIL 451", at(Point.MAIL, Answer(451, "4.3.0 later")), Retry, code=451, reason="451 4.3.0", fenced=False),
    Row("MAIL 550", at(Point.MAIL, Answer(550, "5.7.1 no")), Failed, code=550, reason="550 5.7.1", fenced=False),
    Row("MAIL 552", at(Point.MAIL, Answer(552)), Failed, code=552, fenced=False, stop_reason=StopReason.REJECTED),
    Row("MAIL 530", at(Point.MAIL, Answer(530)), Retry, code=530, reason="wants a login", fenced=False),
    Row("MAIL 538", at(Point.MAIL, Answer(538)), Retry, code=538, reason="wants a login", fenced=False),
    Row("MAIL 354", at(Point.MAIL, Answer(354)), Retry, code=354, fenced=False),
    Row("MAIL garbage", at(Point.MAIL, Raw(b"\xff\xfe\r\n")), Retry, stage="mail", fenced=False),
    Row("MAIL lost", at(Point.MAIL, Drop()), Retry, stage="mail", reason="lost", fenced=False),
    Row("MAIL reset", at(Point.MAIL, Reset()), Retry, stage="mail", fenced=False),
    Row("MAIL hung", at(Point.MAIL, Hang()), Retry, stage="mail", reason="in time", relay=QUICK, fenced=False),
    Row("MAIL half", at(Point.MAIL, Steps(Raw(b"250-"), Drop())), Retry, stage="mail", fenced=False),
    Row("RCPT 450", at(Point.RCPT, Answer(450, "4.2.0 x")), Retry, code=450, fenced=False),
    Row("RCPT 421", at(Point.RCPT, Answer(421)), Retry, code=421, fenced=False),
    Row("RCPT 552 means too many", at(Point.RCPT, Answer(552)), Retry, code=552, fenced=False),
    Row(
        "RCPT 550",
        at(Point.RCPT, Answer(550, "5.1.1 who")),
        Failed,
        code=550,
        reason="550 5.1.1",
        fenced=False,
        stop_reason=StopReason.UNDELIVERABLE,
    ),
    Row(
        "RCPT 550 by policy",
        at(Point.RCPT, Answer(550, "5.7.1 spam")),
        Failed,
        fenced=False,
        stop_reason=StopReason.REJECTED,
    ),
    Row("RCPT lost", at(Point.RCPT, Drop()), Retry, stage="rcpt", fenced=False),
    Row("RCPT hung", at(Point.RCPT, Hang()), Retry, stage="rcpt", relay=QUICK, fenced=False),
    Row(
        "RCPT all 4xx",
        at(Point.RCPT, Answer(450)),
        Retry,
        reason="3 of 3",
        fenced=False,
        message={"to": OTHERS},
    ),
    Row(
        "RCPT mixed 4xx and 5xx",
        (On(Point.RCPT, Answer(450), nth=1), On(Point.RCPT, Answer(550, "5.1.1 x"))),
        Failed,
        reason="3 of 3 recipients: 450, 550 5.1.1, 550 5.1.1",
        fenced=False,
        message={"to": OTHERS},
    ),
    Row(
        "RCPT some 4xx",
        at(Point.RCPT, Answer(450), nth=2),
        Retry,
        reason="1 of 3 recipients: 450",
        fenced=False,
        message={"to": OTHERS},
    ),
    Row(
        "RCPT some 5xx",
        at(Point.RCPT, Answer(550), nth=2),
        Failed,
        reason="1 of 3 recipients: 550",
        fenced=False,
        message={"to": OTHERS},
    ),
    Row(
        "RCPT some 4xx though RSET hangs",
        (On(Point.RCPT, Answer(450), nth=2), On(Point.RSET, Hang())),
        Retry,
        fenced=False,
        message={"to": OTHERS},
    ),
]

FROM_DATA_ON = [
    Row("DATA 421", at(Point.DATA, Answer(421)), Retry, code=421, stage="data"),
    Row("DATA 451", at(Point.DATA, Answer(451)), Retry, code=451, stage="data"),
    Row("DATA 554", at(Point.DATA, Answer(554)), Failed, code=554, stage="data"),
    Row("DATA 250", at(Point.DATA, Answer(250)), Retry, code=250, stage="data"),
    Row("DATA 334", at(Point.DATA, Answer(334)), Retry, code=334, stage="data"),
    Row("DATA lost", at(Point.DATA, Drop()), Retry, stage="data"),
    Row("DATA hung", at(Point.DATA, Hang()), Retry, stage="data", relay=QUICK),
    Row("DATA hung for the window", at(Point.DATA, Hang()), Retry, stage="data", window=0.4),
    early("body lost", Drop(), expected=Retry),
    early("body reset", Reset(), expected=Retry),
    early("body hung", Hang(), expected=Retry, relay=QUICK, reason="in time"),
    early("body hung for the window", Hang(), expected=Retry, window=0.5, reason="in time"),
    early("body 552", Answer(552, "5.3.4 too big"), expected=Failed, code=552, stop_reason=StopReason.REJECTED),
    early("body 552 in several lines", Answer(552, "5.3.4 too\nbig"), expected=Failed, code=552),
    early("body 552 dripped", Drip(b"552 5.3.4 too big\r\n"), expected=Failed, code=552),
    early("body 421", Answer(421), expected=Retry, code=421),
    early("body 250", Answer(250), expected=Retry, code=250),
    early("body garbage", Raw(b"!!\r\n"), expected=Retry),
    early("body half a reply", Raw(b"25"), expected=Retry, relay=QUICK),
    Row("354 and 250 in one packet", at(Point.DATA, Raw(b"354 go\r\n250 ok\r\n")), Retry, code=250, stage="body"),
    Row("354 and half a 250", at(Point.DATA, Raw(b"354 go\r\n250")), Retry, stage="body", relay=QUICK),
    Row("354 and 250 one after the other", at(Point.DATA, Steps(Answer(354), Answer(250))), Retry, code=250),
    Row("354 and 550 in one packet", at(Point.DATA, Raw(b"354 go\r\n550 no\r\n")), Failed, code=550, stage="body"),
]

AFTER_THE_DOT = [
    Row("dot 250", at(Point.DOT, Answer(250, "2.0.0 queued")), Done, code=250, taken=True),
    Row("dot 251", at(Point.DOT, Answer(251)), Done, code=251, taken=True),
    Row("dot 250 in several lines", at(Point.DOT, Answer(250, "a\nb\nc")), Done, code=250, taken=True),
    Row("dot 250 dripped", at(Point.DOT, Drip(b"250 2.0.0 ok\r\n")), Done, code=250, taken=True),
    Row("dot 421", at(Point.DOT, Answer(421)), Retry, code=421),
    Row("dot 451", at(Point.DOT, Answer(451, "4.7.0 later")), Retry, code=451, reason="451 4.7.0"),
    Row("dot 550", at(Point.DOT, Answer(550)), Failed, code=550, stop_reason=StopReason.REJECTED),
    Row("dot 552", at(Point.DOT, Answer(552)), Failed, code=552),
    Row("dot 354", at(Point.DOT, Answer(354)), Uncertain, code=354),
    Row("dot lost, taken", at(Point.DOT, Drop(), keeps=True), Uncertain, reason="lost", taken=True),
    Row("dot lost", at(Point.DOT, Drop()), Uncertain, reason="lost"),
    Row("dot reset", at(Point.DOT, Reset(), keeps=True), Uncertain, taken=True),
    Row("dot hung", at(Point.DOT, Hang(), keeps=True), Uncertain, reason="in time", window=0.5, taken=True),
    Row("dot garbage", at(Point.DOT, Raw(b"okay!\r\n"), keeps=True), Uncertain, taken=True, reason="not an SMTP"),
    Row("dot half a line", at(Point.DOT, Steps(Raw(b"250 o"), Drop()), keeps=True), Uncertain, taken=True),
    Row("dot half a reply", at(Point.DOT, Steps(Raw(b"250-ok\r\n"), Drop())), Uncertain, taken=True),
    Row("dot changes its mind", at(Point.DOT, Raw(b"250-ok\r\n550 no\r\n")), Uncertain, taken=True),
    Row("dot two replies", at(Point.DOT, Raw(b"250 ok\r\n550 no\r\n")), Uncertain, reason="more than one", taken=True),
    Row("dot endless", at(Point.DOT, Raw(b"250-" + b"x" * 90_000)), Uncertain, taken=True),
    Row("QUIT hangs", at(Point.QUIT, Hang()), Done, taken=True),
    Row("QUIT refused", at(Point.QUIT, Answer(500)), Done, taken=True),
    Row("QUIT reset", at(Point.QUIT, Reset()), Done, taken=True),
    Row("RCPT 251", at(Point.RCPT, Answer(251)), Done, taken=True),
    Row("RCPT 252", at(Point.RCPT, Answer(252)), Done, taken=True),
    Row("EHLO refused, HELO accepted", at(Point.EHLO, Answer(502)), Done, taken=True),
]


@pytest.mark.parametrize(
    "row", [*BEFORE_MAIL, *BEFORE_DATA, *FROM_DATA_ON, *AFTER_THE_DOT], ids=lambda row: row.name.replace(" ", "-")
)
async def test_what_a_relay_does_proves_this(row: Row) -> None:
    """Each answer, silence and break leads to the result that it proves, and fences only from DATA on."""
    async with ScriptedRelay(*row.script) as relay:
        attempt = an_attempt(a_message(**row.message), window=row.window)
        result = await an_adapter(relay, fields=row.relay).execute(attempt)
        await relay.settled()
    assert type(result) is row.expected, result
    assert len(relay.messages) == row.taken
    assert attempt.writes == row.fenced
    assert row.reason in getattr(result, "reason", "")
    assert row.stage in {"", result.evidence["stage"]}
    assert row.code in {None, code_of(result)}
    assert row.stop_reason in {None, getattr(result, "stop_reason", None)}
    assert ("DATA" in relay.verbs) == row.fenced


@pytest.mark.parametrize("row", BEFORE_MAIL, ids=lambda row: row.name.replace(" ", "-"))
async def test_a_relay_that_does_not_let_us_in_cools_the_kind(row: Row) -> None:
    """No attempt is spent while the relay cannot be reached: the whole kind waits a long wait."""
    async with ScriptedRelay(*row.script) as relay:
        result = await an_adapter(relay, fields=row.relay).execute(an_attempt())
    assert isinstance(result, Defer)
    assert (result.scope, result.wait) == ("kind", None)


@pytest.mark.parametrize(("attempt", "wait"), [(1, 900.0), (2, 1800.0), (5, 14_400.0), (30, 14_400.0)])
async def test_a_relay_that_wants_a_login_is_asked_seldom(
    attempt: int, wait: float, caplog: pytest.LogCaptureFixture
) -> None:
    """530 to MAIL is a matter of settings: an error is logged and the retries are far apart."""
    async with ScriptedRelay(On(Point.MAIL, Answer(530))) as relay:
        result = await an_adapter(relay).execute(an_attempt(attempt=attempt))
    assert isinstance(result, Retry)
    assert result.wait == wait
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_refused_recipient_stops_the_whole_message() -> None:
    """With one of three recipients refused no DATA is sent: RSET, QUIT, and nobody gets it."""
    script = On(Point.RCPT, Answer(550, "5.1.1 x"), nth=2)
    async with ScriptedRelay(script) as relay:
        result = await an_adapter(relay).execute(an_attempt(a_message(to=OTHERS)))
        await relay.settled()
    assert relay.verbs == ["EHLO", "MAIL", "RCPT", "RCPT", "RCPT", "RSET", "QUIT"]
    assert result.evidence["codes"] == [250, 550, 250]
    assert result.evidence["refused"] == ["550 5.1.1"]


async def test_a_message_over_the_size_limit_is_not_offered() -> None:
    """The relay's SIZE is compared before MAIL."""
    async with ScriptedRelay(offers=["SIZE 500"]) as relay:
        result = await an_adapter(relay).execute(an_attempt(a_message(text="long\n" * 500)))
        await relay.settled()
    assert isinstance(result, Failed)
    assert result.stop_reason is StopReason.REJECTED
    assert result.evidence["size_limit"] == 500
    assert relay.verbs == ["EHLO", "QUIT"]


@pytest.mark.parametrize("offer", ["SIZE", "SIZE 0", "SIZE many"])
async def test_a_size_without_a_limit_is_no_limit(offer: str) -> None:
    """SIZE 0 and a SIZE that says nothing limit nothing, and MAIL still names the size."""
    async with ScriptedRelay(offers=[offer]) as relay:
        result = await an_adapter(relay).execute(an_attempt())
    assert isinstance(result, Done)
    assert f"SIZE={relay.messages[0].size}" in relay.commands[1][1]


async def test_a_local_part_beyond_ascii_needs_smtputf8() -> None:
    """Such an address is undeliverable through a relay without the extension, and no MAIL is sent."""
    message = a_message(to=("jörg@example.com",))
    async with ScriptedRelay(offers=["8BITMIME"]) as relay:
        refused = await an_adapter(relay).execute(an_attempt(message))
    async with ScriptedRelay(offers=["8BITMIME", "SMTPUTF8"]) as able:
        sent = await an_adapter(able).execute(an_attempt(message))
    assert isinstance(refused, Failed)
    assert refused.stop_reason is StopReason.UNDELIVERABLE
    assert "MAIL" not in relay.verbs
    assert isinstance(sent, Done)
    assert able.commands[1][1].endswith(" SMTPUTF8 BODY=8BITMIME")
    assert able.messages[0].recipients == ("jörg@example.com",)


async def test_a_domain_beyond_ascii_travels_as_its_ascii_form() -> None:
    """An international domain needs nothing from the relay."""
    async with ScriptedRelay(offers=[]) as relay:
        result = await an_adapter(relay).execute(an_attempt(a_message(to=("jane@bücher.example",))))
    assert isinstance(result, Done)
    assert relay.messages[0].recipients == ("jane@xn--bcher-kva.example",)
    assert b"jane@xn--bcher-kva.example" in relay.messages[0].content


async def test_every_recipient_is_written_to_once() -> None:
    """To, Cc and Bcc make one envelope, without repeats, and the message does not betray the Bcc."""
    message = a_message(to=(JANE, "Jane <jane@EXAMPLE.com>"), cc=("bob@example.com",), bcc=("eve@example.com",))
    async with ScriptedRelay() as relay:
        result = await an_adapter(relay).execute(an_attempt(message))
    assert isinstance(result, Done)
    assert [address.lower() for address in relay.messages[0].recipients] == [
        JANE,
        "bob@example.com",
        "eve@example.com",
    ]
    assert b"eve" not in relay.messages[0].content.lower()
    assert b"bcc" not in relay.messages[0].content.lower()
