"""The body of a message as MIME parts, in lines that every relay carries: ASCII, ended by CRLF, short enough."""

import base64
import hashlib
import quopri
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from edgeoutbox_smtp.headers import LONGEST_LINE

_LINE_END = re.compile(r"\r\n|\r|\n")
_PLAIN = re.compile(r"[\t\n\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its header lines and its body, which ends with CRLF."""

    headers: tuple[str, ...]
    body: bytes

    def render(self) -> bytes:
        """The part as it stands in a message."""
        return "".join(f"{line}\r\n" for line in self.headers).encode() + b"\r\n" + self.body


def text_part(text: str, subtype: str) -> Part:
    """A text in the plainest encoding that carries it unchanged."""
    text = _LINE_END.sub("\n", text).removesuffix("\n") + "\n"
    if _PLAIN.fullmatch(text) and all(len(line) <= LONGEST_LINE for line in text.split("\n")):
        encoding, body = "7bit", text.encode("ascii")
    else:
        encoding, body = min(
            ("quoted-printable", quopri.encodestring(text.encode())),
            ("base64", base64.encodebytes(text.replace("\n", "\r\n").encode())),
            key=lambda pair: len(pair[1]),
        )
    headers = (f'Content-Type: text/{subtype}; charset="utf-8"', f"Content-Transfer-Encoding: {encoding}")
    return Part(headers, body.replace(b"\n", b"\r\n"))


def attachment_part(filename: str, content_type: str, content: bytes) -> Part:
    """A file, as base64."""
    body = base64.encodebytes(content).replace(b"\n", b"\r\n") or b"\r\n"
    headers = (
        f"Content-Type: {content_type}",
        "Content-Transfer-Encoding: base64",
        f"Content-Disposition: attachment;\r\n {_filename(filename)}",
    )
    return Part(headers, body)


def multipart(subtype: str, parts: Sequence[Part], seed: str) -> Part:
    """Several parts.

    Their boundary comes from the seed and their bytes: it is the same on every attempt, and nobody can write parts
    that contain it.
    """
    bodies = [part.render() for part in parts]
    boundary = "=_" + hashlib.sha256(b"\0".join([seed.encode(), subtype.encode(), *bodies])).hexdigest()[:40]
    # The line end before a delimiter belongs to it (RFC 2046 section 5.1.1), so a part keeps its own.
    line = f"--{boundary}".encode()
    body = line + b"\r\n" + (b"\r\n" + line + b"\r\n").join(bodies) + b"\r\n" + line + b"--\r\n"
    return Part((f'Content-Type: multipart/{subtype};\r\n boundary="{boundary}"',), body)


def _filename(name: str) -> str:
    if name.isascii() and "=?" not in name:
        quoted = re.sub(r'(["\\])', r"\\\1", name)
        return f'filename="{quoted}"'
    return f"filename*=utf-8''{quote(name, safe='')}"
