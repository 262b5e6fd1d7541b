"""The message as bytes: what goes in comes out, nothing else does, and every attempt writes the same."""

import base64
import re
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeoutbox_smtp import Attachment, Email, InvalidEmail
from edgeoutbox_smtp.addresses import Address
from edgeoutbox_smtp.compose import Composed, compose
from tests.adapters.smtp_building import JANE, SENDER

CREATED_AT = 1_767_225_600_123
ENCODED_BCC = "=?utf-8?q?a=0ABcc:_x=40y.example?="


def an_email(**fields: Any) -> Email:
    return Email(**{"to": JANE, "subject": "Hello", "text": "Hello.\n", **fields})


def composed(email: Email | None = None, key: str = "order:42") -> Composed:
    return compose(email or an_email(), sender=SENDER, key=key, created_at=CREATED_AT)


def parsed(email: Email) -> EmailMessage:
    message = message_from_bytes(composed(email).content, policy=default)
    assert isinstance(message, EmailMessage)
    return message


def raw_headers(email: Email) -> dict[str, str]:
    """The header lines as they stand, unfolded."""
    head = composed(email).content.partition(b"\r\n\r\n")[0].decode()
    lines = re.sub(r"\r\n(?=[ \t])", "", head).split("\r\n")
    return dict(line.split(": ", 1) for line in lines)


def test_every_attempt_writes_the_same_bytes() -> None:
    """Date, Message-ID and boundaries depend on the action alone."""
    email = an_email(html="<p>x</p>", attachments=[Attachment(filename="a.bin", content=b"abc")])
    first, second, other = composed(email), composed(email), composed(email, key="order:43")
    assert first == second
    assert first.message_id != other.message_id
    assert b"Date: Thu, 01 Jan 2026 00:00:00 +0000\r\n" in first.content


def test_the_bytes_of_a_message_are_pinned() -> None:
    """A release that changed these bytes would change them between two attempts of one action."""
    assert composed().content == (
        b"From: Shop <shop@example.com>\r\n"
        b"To: jane@example.com\r\n"
        b"Subject: Hello\r\n"
        b"Date: Thu, 01 Jan 2026 00:00:00 +0000\r\n"
        b"Message-ID: " + composed().message_id.encode() + b"\r\n"
        b"Auto-Submitted: auto-generated\r\n"
        b"MIME-Version: 1.0\r\n"
        b'Content-Type: text/plain; charset="utf-8"\r\n'
        b"Content-Transfer-Encoding: 7bit\r\n"
        b"\r\n"
        b"Hello.\r\n"
    )


def test_the_message_id_says_nothing_about_the_key() -> None:
    """It is a digest at the sender's domain."""
    assert re.fullmatch(r"<[0-9a-f]{40}@example\.com>", composed().message_id)


def test_a_boundary_cannot_be_written_on_purpose() -> None:
    """A text that quotes the boundary of the message without it changes the boundary."""
    plain = composed(an_email(html="<p>x</p>"))
    boundary = re.findall(rb'boundary="([^"]+)"', plain.content)[0].decode()
    email = an_email(html="<p>x</p>", text=f"--{boundary}--\n")
    message = parsed(email)
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    assert f"--{boundary}--" in str(message.get_body(("plain",)))


LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=120).map(str.strip).filter(bool)
BODY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=400)


@settings(max_examples=150, deadline=None)
@given(LINE)
@example(ENCODED_BCC)
@example("a" * 900)
@example("ü" * 300)
@example("two  spaces,  and a very long line that has to be folded somewhere between its words, twice")
def test_a_subject_comes_out_as_it_went_in(subject: str) -> None:
    """Whatever a subject looks like, a reader sees those characters and no other header."""
    email = an_email(subject=subject)
    written = raw_headers(email)["Subject"]
    words = re.findall(r"=\?utf-8\?B\?([^?]*)\?=", written)
    assert (b"".join(map(base64.b64decode, words)).decode() if words else written) == subject
    assert re.fullmatch(r"(=\?utf-8\?B\?[^?]*\?= ?)*", written) or "=?" not in written
    assert list(parsed(email).keys()) == list(parsed(an_email()).keys())


@settings(max_examples=100, deadline=None)
@given(BODY, BODY)
@example("a line over 998 characters: " + "x" * 1200, "\r\r\n\n")
@example(".\n..\n.x", "From here")
def test_bodies_come_out_as_they_went_in(text: str, html: str) -> None:
    """Text and HTML survive with their line ends made CRLF; no line is too long and none is bare."""
    message = composed(an_email(text=text, html=html))
    found = message_from_bytes(message.content, policy=default)
    assert isinstance(found, EmailMessage)
    bodies = [part.get_payload(decode=True) for part in found.iter_parts()]
    for put, got in zip((text, html), bodies, strict=True):
        assert isinstance(got, bytes)
        lines = re.sub(r"\r\n|\r|\n", "\r\n", put).removesuffix("\r\n")
        assert got.decode() == lines + "\r\n"
    assert all(len(line) <= 998 and b"\r" not in line and b"\n" not in line for line in message.content.split(b"\r\n"))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Jane", "Jane <jane@example.com>"),
        ('"Doe, Jane"', '"Doe, Jane" <jane@example.com>'),
        ("Jäne", "=?utf-8?B?SsOkbmU=?= <jane@example.com>"),
        ("=?utf-8?q?x?=", "=?utf-8?B?PT91dGYtOD9xP3g/PQ==?= <jane@example.com>"),
    ],
)
def test_a_display_name_is_written_as_what_it_is(name: str, written: str) -> None:
    """Names are quoted or encoded, and one that looks encoded is encoded once more."""
    assert raw_headers(an_email(to=f"{name} <{JANE}>", text="x"))["To"] == written


def test_a_long_list_of_recipients_is_folded() -> None:
    """No header line is longer than a line may be, and every address is there."""
    addresses = [f"Ünlü Person {number} <person-{number}@example.com>" for number in range(80)]
    message = parsed(an_email(to=addresses))
    assert [str(address) for address in message["To"].addresses] == addresses


HEADER_TRAPS = {
    "line break": "a\r\nBcc: x@y.example",
    "line feed": "a\nBcc: x@y.example",
    "carriage return": "a\rb",
    "NUL": "a\0b",
    "escape": "a\x1bb",
    "next line": "a\x85b",
    "line separator": "a\u2028b",
    "lone surrogate": "a\ud800b",
}


@pytest.mark.parametrize("value", HEADER_TRAPS.values(), ids=HEADER_TRAPS.keys())
@pytest.mark.parametrize("field", ["subject", "to", "cc", "bcc", "reply_to", "sender", "headers", "filename"])
def test_a_value_cannot_become_a_header(field: str, value: str) -> None:
    """Characters that could end a line are refused wherever they stand, naming the field and not the value."""
    traps: dict[str, Any] = {
        "headers": {"X-Topic": value},
        "filename": [{"filename": value, "content": b""}],
        "subject": value,
    }
    name = "attachments" if field == "filename" else field
    with pytest.raises(InvalidEmail) as refused:
        an_email(**{name: traps.get(field, f"{value} <x@example.com>")})
    assert field in str(refused.value)
    assert "y.example" not in str(refused.value)


@pytest.mark.parametrize("field", ["subject", "display name", "header", "filename"])
def test_an_encoded_word_stays_text(field: str) -> None:
    """What looks like an encoded line break and a Bcc is shown as it was typed, and adds no header."""
    match field:
        case "subject":
            email = an_email(subject=ENCODED_BCC)
        case "display name":
            email = an_email(to=f'"{ENCODED_BCC}" <{JANE}>')
        case "header":
            email = an_email(headers={"X-Topic": ENCODED_BCC})
        case _:
            email = an_email(attachments=[Attachment(filename=ENCODED_BCC, content=b"x")])
    message = composed(email)
    assert "bcc" not in {name.lower() for name in parsed(email)}
    assert ENCODED_BCC.encode() not in message.content
    assert message.recipients == (JANE,)


ADDRESS_TRAPS = [
    "",
    " ",
    "jane",
    "@example.com",
    "jane@",
    "a@x.example, b@y.example",
    "a@x.example,b@y.example",
    "a@x.example; b@y.example",
    "a@x.example b@y.example",
    "a@x.example, b <b@y.example>",
    "<a@x.example> b@y.example",
    "a <a@x.example> <b@y.example>",
    "Doe, Jane <jane@example.com>",
    "jane@@example.com",
    "jane@exa mple.com",
    "jane@-example.com",
    "jane@example..com",
    ".jane@example.com",
    "ja..ne@example.com",
    "jane@example.com>",
    "jane@[127.0.0.1]",
    "jane@faß.example",
    "jane@\uff45xample.com",
    "jane@" + "a" * 64 + ".com",
    "j" * 65 + "@example.com",
    "jane@" + ".".join(["abcdefgh"] * 32),
    "=?utf-8?q?a?=@example.com",
]


@pytest.mark.parametrize("value", ADDRESS_TRAPS)
def test_one_recipient_is_one_address(value: str) -> None:
    """A recipient that is none, or several, is refused by the field's name, without its value."""
    with pytest.raises(InvalidEmail) as refused:
        an_email(to=[value])
    assert str(refused.value).startswith("to.0: ")
    assert not value.strip() or value not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (JANE, JANE),
        (f"<{JANE}>", JANE),
        (f" Jane  <{JANE}> ", JANE),
        ("root@localhost", "root@localhost"),
        ("o'neil+tag@example.com", "o'neil+tag@example.com"),
        ("jane@BÜCHER.example", "jane@xn--bcher-kva.example"),
        ("jane@xn--bcher-kva.example", "jane@xn--bcher-kva.example"),
        ("jörg@example.com", "jörg@example.com"),
    ],
)
def test_an_address_is_read(text: str, spec: str) -> None:
    """Addresses with and without a name are read, and international domains get their ASCII form."""
    assert Address.parse(text).spec == spec


REFUSED: dict[str, dict[str, Any]] = {
    "to: a message needs a recipient": {"to": ()},
    "to: at most 100 recipients": {"to": [f"p{number}@example.com" for number in range(101)]},
    "text: a message needs a text or html": {"text": None},
    "text: contains a NUL character": {"text": "a\0b"},
    "html: contains a NUL character": {"html": "a\0b"},
    "text: contains a lone surrogate": {"text": "a\ud800b"},
    "subject: has a word that does not fit": {"subject": "x" * 995},
    "headers: has a word that does not fit": {"headers": {"X-Long": "x" * 995}},
    "headers: Bcc is made": {"headers": {"Bcc": JANE}},
    "headers: content-type is made": {"headers": {"content-type": "text/html"}},
    "headers: Resent-To is made": {"headers": {"Resent-To": JANE}},
    "headers: Date is made": {"headers": {"Date": "now"}},
    "headers: a header name": {"headers": {"X Y": "1"}},
    "headers: a header is given twice": {"headers": {"X-A": "1", "x-a": "2"}},
    "headers: a header cannot be empty": {"headers": {"X-A": " "}},
    "headers: must be List-Unsubscribe=One-Click": {
        "headers": {"List-Unsubscribe": "<https://a.example>", "List-Unsubscribe-Post": "yes"}
    },
    "headers: List-Unsubscribe-Post goes with": {"headers": {"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}},
    "headers: is read by machines": {"headers": {"List-Unsubscribe": "<https://\u00e4.example>"}},
    "unsubscribe: must be an https": {"unsubscribe": "http://a.example"},
    "unsubscribe: is given twice": {
        "unsubscribe": "https://a.example",
        "headers": {"List-Unsubscribe": "<https://b.example>"},
    },
    "attachments.0.filename: must be a name": {"attachments": [{"filename": "../a", "content": b""}]},
    "attachments.0.content_type: must be": {
        "attachments": [{"filename": "a", "content": b"", "content_type": "message/rfc822"}]
    },
    "surprise: Extra inputs": {"surprise": "private"},
}


@pytest.mark.parametrize(("says", "fields"), REFUSED.items(), ids=REFUSED.keys())
def test_what_cannot_be_sent_is_refused(says: str, fields: dict[str, Any]) -> None:
    """Each rule names the field it is about, and no value."""
    with pytest.raises(InvalidEmail) as refused:
        an_email(**fields)
    assert says in str(refused.value)
    assert "private" not in str(refused.value)


def test_a_long_unsubscribe_url_stays_whole() -> None:
    """The URL is neither folded nor encoded, and one-click goes with it (RFC 8058)."""
    url = "https://shop.example/unsubscribe?token=" + "t" * 700
    headers = raw_headers(an_email(unsubscribe=url))
    assert headers["List-Unsubscribe"] == f"<{url}>"
    assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert url.encode() in composed(an_email(unsubscribe=url)).content


def test_headers_of_the_application_are_kept() -> None:
    """References and the like come out as they were given."""
    given_headers = {"References": "<a@x.example> <b@x.example>", "X-Topic": "Grüße"}
    message = parsed(an_email(headers=given_headers))
    assert {name: message[name] for name in given_headers} == given_headers


@pytest.mark.parametrize(
    "filename", ["report.pdf", 'a "b" \\.txt'.replace("\\", ""), "bericht für märz.pdf", "=?x?.txt"]
)
def test_attachments_come_out_as_they_went_in(filename: str) -> None:
    """The name, the type and the bytes of a file survive."""
    content = bytes(range(256)) * 10
    email = an_email(attachments=[Attachment(filename=filename, content=content, content_type="application/pdf")])
    (file,) = parsed(email).iter_attachments()
    assert (file.get_filename(), file.get_content_type()) == (filename, "application/pdf")
    assert file.get_payload(decode=True) == content


def test_reply_to_and_sender_are_written() -> None:
    """A message may name another sender, which is the envelope's too, and where answers go."""
    email = an_email(sender="Billing <billing@shop.example>", reply_to="help@shop.example", cc="bob@example.com")
    headers = raw_headers(email)
    assert (headers["From"], headers["Reply-To"], headers["Cc"]) == (
        "Billing <billing@shop.example>",
        "help@shop.example",
        "bob@example.com",
    )
    assert composed(email).mail_from == "billing@shop.example"


def test_hidden_recipients_stay_hidden() -> None:
    """A message with Bcc alone says so, and names nobody."""
    email = an_email(to=(), bcc="eve@example.com")
    assert raw_headers(email)["To"] == "undisclosed-recipients:;"
    assert composed(email).recipients == ("eve@example.com",)
    assert b"eve" not in composed(email).content


def test_the_finished_bytes_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a value ever become a header after all, the message is refused before any connection."""
    monkeypatch.setattr(
        "edgeoutbox_smtp.compose.text_header", lambda name, value: f"{name}: {value}\r\nBcc: x@y.example"
    )
    with pytest.raises(InvalidEmail, match="a header of its own"):
        composed()


def test_a_message_does_not_show_itself() -> None:
    """The text form of a message, as a log line would have it, holds no address and no content."""
    email = an_email(text="a private sentence", attachments=[Attachment(filename="private.txt", content=b"private")])
    shown = repr(email) + repr(composed(email))
    assert "private" not in shown
    assert JANE not in shown
