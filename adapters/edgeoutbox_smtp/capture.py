"""Messages as files instead of sent: for development, where nothing may leave by accident."""

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from pathlib import Path

from edgeoutbox_smtp.compose import Composed

_FROM = "X-Envelope-From"
_TO = "X-Envelope-To"


@dataclass(frozen=True, slots=True)
class CapturedEmail:
    """One captured message, with the envelope that a relay would have got."""

    path: Path
    action_id: int
    mail_from: str = field(repr=False)
    recipients: tuple[str, ...] = field(repr=False)
    subject: str = field(repr=False)
    message_id: str
    size: int
    message: EmailMessage = field(repr=False, compare=False)


def capture(folder: Path, composed: Composed, *, action_id: int, key: str) -> Path:
    """Write the message, whole or not at all, into a file that only its owner can read; blocks.

    The names sort by action. The same action writes the same file. Raises `OSError`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{action_id:012d}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.eml"
    envelope = [f"{_FROM}: {composed.mail_from}", *(f"{_TO}: {recipient}" for recipient in composed.recipients)]
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)  # its owner alone may read it
    try:
        with os.fdopen(handle, "wb") as file:
            file.write("".join(f"{line}\r\n" for line in envelope).encode() + composed.content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(folder / name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return folder / name


def captured(folder: Path) -> list[CapturedEmail]:
    """The captured messages of a folder, in the order of their actions; none when there is no such folder."""
    return [_read(path) for path in sorted(folder.glob("*.eml"))]


def _read(path: Path) -> CapturedEmail:
    content = path.read_bytes()
    message = BytesParser(policy=default).parsebytes(content)
    number = path.name.partition("-")[0]
    return CapturedEmail(
        path=path,
        action_id=int(number) if number.isdecimal() else 0,
        mail_from=str(message.get(_FROM, "")),
        recipients=tuple(str(value) for value in message.get_all(_TO, [])),
        subject=str(message.get("Subject", "")),
        message_id=str(message.get("Message-ID", "")),
        size=len(content),
        message=message,
    )
