"""Header lines, written here and not by the standard library.

Before Python 3.13 its email package decodes an encoded word in a value that it was given, and writes a line break
that was hidden in there as a real one: a subject could add a `Bcc:`. It also breaks long URLs into encoded words.
Here a value is refused or written as what it is, and the same value gives the same bytes on every Python.
"""

import base64
import re
from collections.abc import Sequence

from edgeoutbox_smtp.addresses import Address, refuse_unprintable

LONGEST_LINE = 998
"""Bytes of one line without its CRLF (RFC 5322 section 2.1.1)."""

_WIDTH = 76
_WORD_OVERHEAD = len("=?utf-8?B??=")
_WORD_BYTES = 45
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,75}")
_PLAIN_PHRASE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")

OWNED = frozenset(
    {
        *("from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id", "mime-version"),
        *("auto-submitted", "return-path", "received", "dkim-signature"),
    }
)
"""Headers that the message's own fields make; `Content-*` and `Resent-*` are among them."""

_MACHINE_READ = frozenset({"in-reply-to", "references", "precedence"})
_ONE_CLICK = "List-Unsubscribe=One-Click"


def check_header(name: str, value: str) -> None:
    """Raise `ValueError` for a header that an application may not set, or a value that could not be written."""
    lower = name.lower()
    if not _NAME.fullmatch(name):
        raise ValueError("a header name has letters, digits and hyphens")
    if lower in OWNED or lower.startswith(("content-", "resent-")):
        raise ValueError(f"{name} is made from the message's own fields")
    refuse_unprintable(value)
    if not value.strip():
        raise ValueError("a header cannot be empty")
    if lower in _MACHINE_READ or lower.startswith("list-"):
        if not value.isascii() or "=?" in value:
            raise ValueError("is read by machines and must be ASCII")
        if lower == "list-unsubscribe-post" and value.strip() != _ONE_CLICK:
            raise ValueError(f"must be {_ONE_CLICK} (RFC 8058)")
    if any(len(line) > LONGEST_LINE for line in text_header(name, value).split("\r\n")):
        raise ValueError(f"has a word that does not fit a line of {LONGEST_LINE} characters")


def text_header(name: str, value: str) -> str:
    """A header whose value is text, folded; without the last CRLF."""
    value = value.strip()
    if value.isascii() and "=?" not in value:
        return _folded(f"{name}:", re.findall(r" *[^ ]+", f" {value}"))
    return f"{name}: {_encoded_words(value, len(name) + 2)}"


def address_header(name: str, addresses: Sequence[Address]) -> str:
    """A header that lists addresses, one a line when they do not fit one line; without the last CRLF."""
    items = [_mailbox(address) for address in addresses]
    line = f"{name}: {', '.join(items)}"
    return line if len(line) <= _WIDTH and "\r\n" not in line else f"{name}: " + ",\r\n ".join(items)


def _mailbox(address: Address) -> str:
    if not address.name:
        return address.spec
    if not address.name.isascii() or "=?" in address.name:
        return f"{_encoded_words(address.name, _WIDTH // 2)} <{address.spec}>"
    if _PLAIN_PHRASE.fullmatch(address.name):
        return f"{address.name} <{address.spec}>"
    quoted = re.sub(r'(["\\])', r"\\\1", address.name)
    return f'"{quoted}" <{address.spec}>'


def _folded(first: str, words: list[str]) -> str:
    lines = [first]
    for word in words:
        if len(lines[-1]) + len(word) > _WIDTH and not (len(lines) == 1 and lines[0] == first):
            lines.append(word)
        else:
            lines[-1] += word
    return "\r\n".join(lines)


def _encoded_words(text: str, used: int) -> str:
    """The text as encoded words (RFC 2047), split between characters; `used` columns of the first line are taken."""
    words, word, room = [], b"", max(3, (_WIDTH - used - _WORD_OVERHEAD) // 4 * 3)
    for char in text:
        encoded = char.encode()
        if word and len(word) + len(encoded) > room:
            words.append(word)
            word, room = b"", _WORD_BYTES
        word += encoded
    words.append(word)
    return "\r\n ".join(f"=?utf-8?B?{base64.b64encode(word).decode()}?=" for word in words)
