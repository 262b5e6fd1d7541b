"""What a recipient will see, as text for a person who decides whether it goes out."""

import unicodedata

from edgeoutbox_smtp.emails import Email

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def preview_text(email: Email, sender: str) -> str:
    """The message with all its parts, also those that a mail program would not show.

    Characters that act on a terminal, or that hide or reorder text, are written as their code: what a person
    approves must be what is there.
    """
    fields = [
        ("From", [email.sender or sender]),
        ("To", list(email.to)),
        ("Cc", list(email.cc)),
        ("Bcc", list(email.bcc)),
        ("Reply-To", list(email.reply_to)),
        ("Subject", [email.subject]),
        ("Unsubscribe", [email.unsubscribe] if email.unsubscribe else []),
        *((name, [value]) for name, value in email.headers.items()),
        (
            "Attached",
            [f"{file.filename} ({file.content_type}, {len(file.content)} bytes)" for file in email.attachments],
        ),
    ]
    lines = [f"{name}: {_visible(', '.join(values))}" for name, values in fields if values]
    for title, body in (("text", email.text), ("html", email.html)):
        if body is not None:
            lines += ["", f"--- {title} ---", *(_visible(line) for line in body.splitlines())]
    return "\n".join(lines)


def _visible(text: str) -> str:
    return "".join(char if char == "\t" or not _hides(char) else f"\\u{ord(char):04x}" for char in text)


def _hides(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN
