"""Email for edgeoutbox: each message handed to an SMTP relay at most once, with an honest answer when nobody can know.

`docs/adapters/email.md` says what it promises and how it is configured.
"""

from edgeoutbox_smtp.adapter import SmtpAdapter
from edgeoutbox_smtp.capture import CapturedEmail, captured
from edgeoutbox_smtp.compose import message_id
from edgeoutbox_smtp.emails import Attachment, Email
from edgeoutbox_smtp.errors import InvalidEmail
from edgeoutbox_smtp.notices import EmailNotice, Message, MessageAttachment
from edgeoutbox_smtp.relay import Relay, Security

__all__ = [
    "Attachment",
    "CapturedEmail",
    "Email",
    "EmailNotice",
    "InvalidEmail",
    "Message",
    "MessageAttachment",
    "Relay",
    "Security",
    "SmtpAdapter",
    "captured",
    "message_id",
]
