"""A message before it is written: what an application's notice answers."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from edgeoutbox import validation_message
from edgeoutbox_smtp.addresses import Address, refuse_unprintable
from edgeoutbox_smtp.errors import InvalidEmail
from edgeoutbox_smtp.headers import check_header, text_header

MOST_RECIPIENTS = 100
"""More than these, a relay may refuse (RFC 5321 section 4.5.3.1.8)."""

_CONTENT_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_LONGEST_FILENAME = 255


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _address(value: str) -> str:
    Address.parse(value)
    return value


def _line(value: str) -> str:
    refuse_unprintable(value)
    return value


def _text(value: str | None) -> str | None:
    if value is not None:
        if "\0" in value:
            raise ValueError("contains a NUL character")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("contains a lone surrogate, which is not a character") from None
    return value


def _filename(value: str) -> str:
    refuse_unprintable(value)
    if not value.strip() or len(value.encode()) > _LONGEST_FILENAME or "/" in value or "\\" in value:
        raise ValueError(f"must be a name of at most {_LONGEST_FILENAME} bytes, without a folder")
    return value


def _content_type(value: str) -> str:
    if not _CONTENT_TYPE.fullmatch(value) or value.startswith(("multipart/", "message/")):
        raise ValueError("must be the type of one file, such as application/pdf")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        check_header(name, text)
    names = [name.lower() for name in value]
    if len(set(names)) != len(names):
        raise ValueError("a header is given twice")
    if "list-unsubscribe-post" in names and "list-unsubscribe" not in names:
        raise ValueError("List-Unsubscribe-Post goes with List-Unsubscribe")
    return value


def _https(value: str | None) -> str | None:
    if value is not None:
        if not value.startswith("https://") or any(char in value for char in "<>, "):
            raise ValueError("must be an https:// URL")
        check_header("List-Unsubscribe", f"<{value}>")
    return value


OneAddress = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[tuple[OneAddress, ...], BeforeValidator(_one_or_more), Field(repr=False)]
Text = Annotated[str | None, AfterValidator(_text), Field(repr=False)]
Filename = Annotated[str, AfterValidator(_filename)]
ContentType = Annotated[str, AfterValidator(_content_type)]
Headers = Annotated[dict[str, str], AfterValidator(_headers), Field(repr=False)]
UnsubscribeUrl = Annotated[str | None, AfterValidator(_https), Field(repr=False)]


class Attachment(BaseModel):
    """A file of a message: its name as the recipient sees it, its type, and its bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    filename: Filename
    content: Annotated[bytes, Field(repr=False)]
    content_type: ContentType = "application/octet-stream"


class Email(BaseModel):
    """One message. An address is `local@domain` or `Name <local@domain>`; a list may be given as one string.

    `sender` replaces the adapter's own. `unsubscribe` is a URL that unsubscribes on a POST, without asking: it
    becomes `List-Unsubscribe` and `List-Unsubscribe-Post` (RFC 8058). One recipient a message is recommended:
    several are all or nothing. Raises `InvalidEmail`, naming the field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    to: Addresses = ()
    cc: Addresses = ()
    bcc: Addresses = ()
    subject: Annotated[str, AfterValidator(_line), Field(repr=False, max_length=2000)]
    text: Text = None
    html: Text = None
    reply_to: Addresses = ()
    sender: Annotated[str | None, AfterValidator(lambda value: value and _address(value)), Field(repr=False)] = None
    unsubscribe: UnsubscribeUrl = None
    headers: Headers = Field(default_factory=dict)
    attachments: Annotated[tuple[Attachment, ...], Field(repr=False)] = ()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidEmail(validation_message(error)) from None

    @model_validator(mode="after")
    def _can_be_sent(self) -> "Email":
        if not self.to + self.cc + self.bcc:
            raise ValueError("to: a message needs a recipient")
        if len(self.recipients) > MOST_RECIPIENTS:
            raise ValueError(f"to: at most {MOST_RECIPIENTS} recipients; one action for each is better")
        if self.text is None and self.html is None:
            raise ValueError("text: a message needs a text or html")
        if self.unsubscribe and any(name.lower().startswith("list-unsubscribe") for name in self.headers):
            raise ValueError("unsubscribe: is given twice, here and in headers")
        if max(map(len, text_header("Subject", self.subject or "-").split("\r\n"))) > 998:  # noqa: PLR2004 - RFC 5322
            raise ValueError("subject: has a word that does not fit a line")
        return self

    @property
    def recipients(self) -> tuple[Address, ...]:
        """Everyone who gets the message, each once."""
        every = [Address.parse(text) for text in self.to + self.cc + self.bcc]
        return tuple({(address.local, address.domain.lower()): address for address in every}.values())
