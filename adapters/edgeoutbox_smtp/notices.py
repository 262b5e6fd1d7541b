"""What the payload of an email may hold: an event that a notice makes a message of, or the message itself."""

import base64
import binascii
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from edgeoutbox import Notice, NotNeeded
from edgeoutbox_smtp.attachments import read_attachment, sha256_of
from edgeoutbox_smtp.emails import Addresses, Attachment, ContentType, Email, Filename, Headers, Text, UnsubscribeUrl
from edgeoutbox_smtp.errors import InvalidEmail

A_contra = TypeVar("A_contra", contravariant=True)


class EmailNotice(Notice[Email, A_contra], Generic[A_contra]):
    """An event that becomes an email. The payload holds the event: identifiers, not the message.

        class Receipt(EmailNotice[Shop]):
            notice: Literal["receipt"] = "receipt"
            order: int

            async def prepare(self, app: Shop) -> Email | NotNeeded:
                order = await app.order(self.order)
                if order.refunded:
                    return NotNeeded("the order was refunded")
                return Email(to=order.email, subject="Your receipt", text=order.receipt)

    `prepare` runs at enqueue and before every attempt, so that a retry reaches nobody who left in the meantime. What
    it raises before the message was handed over is a retry; `InvalidPayload` ends the action.
    """

    async def prepare(self, app: A_contra) -> Email | NotNeeded:
        """The email of this event now, or `NotNeeded`. `app` is what the application gave to the adapter."""
        raise NotImplementedError


class MessageAttachment(BaseModel):
    """A file of a literal message: `content` as base64, or a `path` below the adapter's `attachments_dir`.

    `sha256` is filled in at enqueue for a path: a file that changed since then is not sent.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    filename: Filename | None = None
    content_type: ContentType = "application/octet-stream"
    content: Annotated[str | None, Field(repr=False)] = None
    path: Annotated[str | None, Field(repr=False)] = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    def read(self, folder: Path | None, where: str) -> bytes:
        """The bytes; reads the file, so call it in a thread. Raises `InvalidEmail` naming `where`."""
        match self.content, self.path:
            case str(content), None:
                try:
                    found = base64.b64decode(content, validate=True)
                except (binascii.Error, ValueError):
                    raise InvalidEmail(f"{where}.content: is not base64") from None
            case None, str(path):
                found = read_attachment(folder, path, f"{where}.path")
            case _:
                raise InvalidEmail(f"{where}: give its content or its path, one of the two")
        if self.sha256 is not None and sha256_of(found) != self.sha256:
            raise InvalidEmail(f"{where}: its content is not what sha256 says; it changed since it was enqueued")
        return found

    def resolve(self, folder: Path | None, where: str) -> Attachment:
        """The attachment with its bytes. Raises `InvalidEmail`."""
        content = self.read(folder, where)
        filename = self.filename or (self.path or "").rpartition("/")[2]
        if not filename:
            raise InvalidEmail(f"{where}.filename: is needed with content")
        return Attachment(filename=filename, content=content, content_type=self.content_type)


class Message(EmailNotice[Any]):
    """The message itself, as the payload holds it: for a producer without code of its own, such as one INSERT."""

    model_config = ConfigDict(hide_input_in_errors=True)

    notice: Literal["message"] = "message"
    to: Addresses = ()
    cc: Addresses = ()
    bcc: Addresses = ()
    reply_to: Addresses = ()
    subject: Annotated[str, Field(repr=False)]
    text: Text = None
    html: Text = None
    unsubscribe: UnsubscribeUrl = None
    headers: Headers = Field(default_factory=dict)
    attachments: Annotated[tuple[MessageAttachment, ...], Field(repr=False)] = ()

    async def prepare(self, app: Any) -> Email:  # noqa: ARG002 - the signature of a notice
        """The email; without a folder for attachments, which only the adapter knows."""
        return self.email(None)

    def email(self, folder: Path | None) -> Email:
        """The email, with the files of the folder; reads them, so call it in a thread. Raises `InvalidEmail`."""
        files = (file.resolve(folder, f"attachments.{index}") for index, file in enumerate(self.attachments))
        return Email(
            to=self.to,
            cc=self.cc,
            bcc=self.bcc,
            reply_to=self.reply_to,
            subject=self.subject,
            text=self.text,
            html=self.html,
            unsubscribe=self.unsubscribe,
            headers=self.headers,
            attachments=tuple(files),
        )

    def sealed(self, folder: Path | None) -> "Message":
        """The same with the digest of every file; reads them, so call it in a thread. Raises `InvalidEmail`."""
        sealed = [
            file
            if file.path is None
            else file.model_copy(update={"sha256": sha256_of(file.read(folder, f"attachments.{index}"))})
            for index, file in enumerate(self.attachments)
        ]
        return self.model_copy(update={"attachments": tuple(sealed)})
