"""An `Email` as the bytes that go over the wire, and its envelope: the same on every attempt."""

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesHeaderParser
from email.policy import default
from email.utils import format_datetime

from edgeoutbox_smtp.addresses import Address
from edgeoutbox_smtp.emails import Email
from edgeoutbox_smtp.errors import InvalidEmail
from edgeoutbox_smtp.headers import LONGEST_LINE, address_header, text_header
from edgeoutbox_smtp.mime import Part, attachment_part, multipart, text_part

_BARE_LINE_END = re.compile(rb"\r(?!\n)|(?<!\r)\n")


@dataclass(frozen=True, slots=True)
class Composed:
    """A message that is ready to be handed over. `smtputf8`: an address in it needs that extension."""

    mail_from: str = field(repr=False)
    recipients: tuple[str, ...] = field(repr=False)
    content: bytes = field(repr=False)
    message_id: str
    smtputf8: bool = False


def compose(email: Email, *, sender: str, key: str, created_at: int) -> Composed:
    """Write the message of the action with this idempotency key, created at these milliseconds since 1970 UTC.

    The key, the time and the message are all that the bytes depend on. Raises `InvalidEmail`.
    """
    author = Address.parse(email.sender or sender)
    to, cc, reply_to = ([Address.parse(text) for text in texts] for texts in (email.to, email.cc, email.reply_to))
    id_of_message = message_id(key, author.spec)
    lines = [address_header("From", [author])]
    lines.append(address_header("To", to) if to else "To: undisclosed-recipients:;")
    lines += [address_header(name, items) for name, items in (("Cc", cc), ("Reply-To", reply_to)) if items]
    lines += [text_header("Subject", email.subject)] if email.subject.strip() else []
    lines += [
        f"Date: {format_datetime(datetime.fromtimestamp(created_at // 1000, UTC))}",
        f"Message-ID: {id_of_message}",
        "Auto-Submitted: auto-generated",  # RFC 3834: so that no machine answers a machine
    ]
    lines += [text_header(name, value) for name, value in _all_headers(email).items()]
    body = _body(email, key)
    lines += ["MIME-Version: 1.0", *body.headers]
    content = Part(tuple(lines), body.body).render()
    _verify(content, lines)
    everyone = (author, *email.recipients, *reply_to)
    return Composed(
        mail_from=author.spec,
        recipients=tuple(address.spec for address in email.recipients),
        content=content,
        message_id=id_of_message,
        smtputf8=any(address.needs_smtputf8 for address in everyone),
    )


def message_id(idempotency_key: str, sender: str) -> str:
    """The Message-ID of an action's message, the same on every attempt, by its key and who the message comes from.

    Of the sender, `jane@example.com` or `Jane <jane@example.com>`, only the domain counts. Raises `ValueError` for what
    is no address.
    """
    return f"<{_digest('message-id', idempotency_key)[:40]}@{Address.parse(sender).domain.lower()}>"


def _all_headers(email: Email) -> dict[str, str]:
    if email.unsubscribe is None:
        return email.headers
    one_click = {
        "List-Unsubscribe": f"<{email.unsubscribe}>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    }
    return {**email.headers, **one_click}


def _body(email: Email, key: str) -> Part:
    texts = [("plain", email.text), ("html", email.html)]
    parts = [text_part(text, subtype) for subtype, text in texts if text is not None]
    body = parts[0] if len(parts) == 1 else multipart("alternative", parts, key)
    files = [attachment_part(file.filename, file.content_type, file.content) for file in email.attachments]
    return multipart("mixed", [body, *files], key) if files else body


def _verify(content: bytes, lines: list[str]) -> None:
    """Read the finished bytes as a recipient would: the headers that come out are the ones that were put in."""
    expected = [line.partition(":")[0] for line in lines]
    if BytesHeaderParser(policy=default).parsebytes(content).keys() != expected:
        raise InvalidEmail("headers: a value would become a header of its own")
    if _BARE_LINE_END.search(content) or b"\0" in content:
        raise InvalidEmail("message: has a line end or a NUL where none belongs")
    if any(len(line) > LONGEST_LINE for line in content.split(b"\r\n")):
        raise InvalidEmail(f"message: has a line over {LONGEST_LINE} bytes")


def _digest(purpose: str, key: str) -> str:
    return hashlib.sha256(f"edgeoutbox {purpose}\0{key}".encode()).hexdigest()
