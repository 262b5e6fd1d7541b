"""Notices, attachments, capture, preview and settings of the email adapter."""

import base64
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from edgeoutbox.adapter import NotNeeded
from edgeoutbox.errors import ConfigurationError, FenceRefused, InvalidPayload
from edgeoutbox.kinds import Delivery
from edgeoutbox.results import Cancelled, Done, Failed, Retry
from edgeoutbox.states import StopReason
from edgeoutbox.testing.relay import ScriptedRelay
from edgeoutbox_smtp import (
    Email,
    EmailNotice,
    InvalidEmail,
    Message,
    Relay,
    Security,
    SmtpAdapter,
    captured,
    message_id,
)
from tests.adapters.smtp_building import JANE, SENDER, a_message, an_adapter, an_attempt


class Shop:
    """An application with orders: what each one's receipt is, or why there is none."""

    def __init__(self, **orders: Email | NotNeeded | Exception) -> None:
        self.orders = orders


class Receipt(EmailNotice[Shop]):
    """The receipt of an order."""

    notice: Literal["receipt"] = "receipt"
    order: str

    async def prepare(self, app: Shop) -> Email | NotNeeded:
        """The receipt as the order stands now."""
        found = app.orders[self.order]
        if isinstance(found, Exception):
            raise found
        return found


RECEIPT = Email(to=JANE, subject="Receipt", text="Thank you.")


async def test_an_applications_notice_becomes_an_email() -> None:
    """The payload holds the event, and the message is made from what the application knows now."""
    shop = Shop(a=RECEIPT)
    async with ScriptedRelay() as relay:
        adapter = an_adapter(relay, notices=[Receipt], app=shop)
        payload = adapter.kind.variants.validate({"notice": "receipt", "order": "a"})
        shop.orders["a"] = RECEIPT.model_copy(update={"to": ("new@example.com",)})
        result = await adapter.execute(an_attempt(payload))
    assert isinstance(payload, Receipt)
    assert isinstance(result, Done)
    assert relay.messages[0].recipients == ("new@example.com",)


@pytest.mark.parametrize("sender", [None, "Shop <shop@Other.example>"])
async def test_the_id_of_a_message_can_be_computed(sender: str | None) -> None:
    """After a crash, key and sender say which Message-ID the relay may have in its log."""
    shop = Shop(a=RECEIPT if sender is None else RECEIPT.model_copy(update={"sender": sender}))
    async with ScriptedRelay() as relay:
        attempt = an_attempt(Receipt(order="a"))
        await an_adapter(relay, notices=[Receipt], app=shop).execute(attempt)
    [message] = relay.messages
    assert message.message_id == message_id(attempt.action.idempotency_key, sender or SENDER)


async def test_the_built_in_message_is_always_there() -> None:
    """A literal message needs no code of the application's, beside its own notices too."""
    adapter = SmtpAdapter(None, sender=SENDER, notices=[Receipt])
    payload = adapter.kind.variants.validate({"notice": "message", "to": JANE, "subject": "x", "text": "y"})
    assert isinstance(payload, Message)
    assert adapter.kind.delivery is Delivery.AT_MOST_ONCE


async def test_a_notice_that_is_not_needed_any_more_is_cancelled() -> None:
    """Nobody is connected to for somebody who unsubscribed in the meantime."""
    shop = Shop(a=NotNeeded("the order was refunded"))
    async with ScriptedRelay() as relay:
        attempt = an_attempt(Receipt(order="a"))
        result = await an_adapter(relay, notices=[Receipt], app=shop).execute(attempt)
    assert result == Cancelled(StopReason.NOT_NEEDED, "the order was refunded", {"stage": "notice"})
    assert (relay.connections, attempt.writes) == (0, 0)


async def test_a_notice_that_fails_rises() -> None:
    """An error of the application before the fence is the executor's to turn into a retry."""
    async with ScriptedRelay() as relay:
        adapter = an_adapter(relay, notices=[Receipt], app=Shop(a=RuntimeError("down")))
        with pytest.raises(RuntimeError, match="down"):
            await adapter.execute(an_attempt(Receipt(order="a")))
    assert relay.connections == 0


async def test_a_notice_that_refuses_its_event_fails_without_its_words() -> None:
    """What an application says about a value is not stored; what this package says about a field is."""
    shop = Shop(a=InvalidPayload(f"no such person: {JANE}"), b=InvalidEmail("to: is empty"))
    adapter = SmtpAdapter(None, sender=SENDER, notices=[Receipt], app=shop)
    theirs = await adapter.execute(an_attempt(Receipt(order="a")))
    ours = await adapter.execute(an_attempt(Receipt(order="b")))
    assert isinstance(theirs, Failed)
    assert isinstance(ours, Failed)
    assert (theirs.stop_reason, theirs.reason) == (StopReason.INVALID_PAYLOAD, "the notice refused its event")
    assert (ours.stop_reason, ours.reason) == (StopReason.INVALID_PAYLOAD, "to: is empty")


async def test_a_bad_event_is_refused_when_it_is_enqueued() -> None:
    """`prepare` makes the whole message; one that is not needed yet may be enqueued."""
    adapter = SmtpAdapter(None, sender=SENDER, notices=[Receipt], app=Shop(a=InvalidEmail("to: x"), b=NotNeeded()))
    with pytest.raises(InvalidPayload, match="to: x"):
        await adapter.prepare(Receipt(order="a"))
    assert await adapter.prepare(Receipt(order="b")) == Receipt(order="b")
    with pytest.raises(InvalidPayload, match="recipient"):
        await adapter.prepare(Message(subject="x", text="y"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("to", ["a@x.example, b@y.example"]), ("headers", {"Bcc": JANE}), ("text", "a\0b"), ("subject", None)],
)
def test_a_bad_message_is_refused_by_its_field(field: str, value: object) -> None:
    """The payload's own fields are checked as soon as it is read."""
    variants = SmtpAdapter(None, sender=SENDER).kind.variants
    with pytest.raises(InvalidPayload, match=field) as refused:
        variants.validate({"notice": "message", "to": JANE, "subject": "x", "text": "y", field: value})
    assert "y.example" not in str(refused.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of attachments beside a secret that does not belong to it."""
    (tmp_path / "secret.txt").write_text("secret")
    inner = tmp_path / "files"
    (inner / "deep").mkdir(parents=True)
    (inner / "a.txt").write_text("alpha")
    (inner / "deep" / "b.txt").write_text("beta")
    (inner / "link.txt").symlink_to(inner / "a.txt")
    (inner / "out.txt").symlink_to(tmp_path / "secret.txt")
    (inner / "shortcut").symlink_to(inner / "deep")
    os.mkfifo(inner / "pipe")
    return inner


def with_file(path: str, **fields: Any) -> Message:
    return a_message(attachments=[{"path": path, **fields}])


@pytest.mark.parametrize("path", ["a.txt", "deep/b.txt"])
async def test_a_file_is_sealed_and_sent(path: str, folder: Path) -> None:
    """Its digest goes into the payload at enqueue, and its bytes into the message at the attempt."""
    async with ScriptedRelay() as relay:
        adapter = an_adapter(relay, attachments_dir=folder)
        sealed = await adapter.prepare(with_file(path))
        result = await adapter.execute(an_attempt(sealed))
    content = (folder / path).read_bytes()
    assert isinstance(sealed, Message)
    assert sealed.attachments[0].sha256 == hashlib.sha256(content).hexdigest()
    assert isinstance(result, Done)
    assert base64.b64encode(content) in relay.messages[0].content


async def test_a_file_that_changed_is_not_sent(folder: Path) -> None:
    """What was enqueued, and perhaps approved, is what goes out, or nothing."""
    async with ScriptedRelay() as relay:
        adapter = an_adapter(relay, attachments_dir=folder)
        sealed = await adapter.prepare(with_file("a.txt"))
        (folder / "a.txt").write_text("altered")
        result = await adapter.execute(an_attempt(sealed))
    assert isinstance(result, Failed)
    assert result.stop_reason is StopReason.INVALID_PAYLOAD
    assert "changed" in result.reason
    assert relay.connections == 0


@pytest.mark.parametrize(
    "path",
    [
        *("none.txt", "deep", "deep/none.txt", "a.txt/b", "", "/etc/hostname", "../secret.txt", "deep/../a.txt"),
        *("./a.txt", "deep//b.txt", "link.txt", "out.txt", "shortcut/b.txt", "pipe", "a" * 300),
    ],
)
async def test_no_path_leads_out_of_the_folder(path: str, folder: Path) -> None:
    """Links, parents, pipes and absolute paths are refused, by the field's name and without the path."""
    adapter = SmtpAdapter(None, sender=SENDER, attachments_dir=folder)
    with pytest.raises(InvalidPayload, match=r"attachments\.0\.path") as refused:
        await adapter.prepare(with_file(path))
    assert len(path) < 5 or path not in str(refused.value)


async def test_without_a_folder_no_path_is_read() -> None:
    """Files are read only from a folder that somebody configured."""
    with pytest.raises(InvalidPayload, match="no attachments_dir"):
        await SmtpAdapter(None, sender=SENDER).prepare(with_file("a.txt"))


@pytest.mark.parametrize(
    ("attachment", "says"),
    [
        ({"content": "not base64!", "filename": "a"}, "content: is not base64"),
        ({"content": "YQ=="}, "filename: is needed"),
        ({"filename": "a"}, "one of the two"),
        ({"content": "YQ==", "path": "a.txt", "filename": "a"}, "one of the two"),
        ({"content": "YQ==", "filename": "a", "sha256": "0" * 64}, "is not what sha256 says"),
        ({"path": "a.txt", "sha256": "0" * 64}, "is not what sha256 says"),
    ],
)
async def test_a_wrong_attachment_is_refused(attachment: dict[str, Any], says: str, folder: Path) -> None:
    """Each rule of an attachment names its place."""
    adapter = SmtpAdapter(None, sender=SENDER, attachments_dir=folder)
    with pytest.raises(InvalidPayload, match=says) as refused:
        await adapter.prepare(a_message(attachments=[attachment]))
    assert str(refused.value).startswith("attachments.0")


async def test_a_file_to_approve_needs_its_digest(folder: Path) -> None:
    """A row that came by SQL without one could change after its approval."""
    adapter = SmtpAdapter(None, sender=SENDER, attachments_dir=folder, requires_approval=True)
    result = await adapter.execute(an_attempt(with_file("a.txt")))
    assert isinstance(result, Failed)
    assert "sha256" in result.reason


async def test_a_captured_message_is_a_file_of_its_owner(tmp_path: Path) -> None:
    """Capturing fences like sending, writes the whole message with its envelope, and ends Done."""
    adapter = SmtpAdapter(None, sender=SENDER, deliver="capture", capture_dir=tmp_path / "mail")
    attempt = an_attempt(a_message(bcc=("eve@example.com",)))
    result = await adapter.execute(attempt)
    again = await adapter.execute(an_attempt(a_message(bcc=("eve@example.com",))))
    (message,) = captured(tmp_path / "mail")
    assert isinstance(result, Done)
    assert result == again
    assert (result.evidence["captured"], attempt.writes) == (True, 1)
    assert (message.action_id, message.subject, message.mail_from) == (1, "Your receipt", "shop@example.com")
    assert message.recipients == (JANE, "eve@example.com")
    assert message.message_id == result.readback_ref
    assert message.path.name.startswith("000000000001-")
    assert stat.S_IMODE(message.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(message.path.parent.stat().st_mode) == 0o700
    assert list((tmp_path / "mail").iterdir()) == [message.path]


async def test_a_folder_that_cannot_be_written_is_a_retry(tmp_path: Path) -> None:
    """A message that could not be written whole is not there at all."""
    (tmp_path / "mail").write_text("a file is in the way")
    adapter = SmtpAdapter(None, sender=SENDER, deliver="capture", capture_dir=tmp_path / "mail")
    result = await adapter.execute(an_attempt())
    assert isinstance(result, Retry)
    assert str(tmp_path) not in repr(result)


async def test_a_refused_fence_captures_nothing(tmp_path: Path) -> None:
    """Without a fence there is no file."""
    adapter = SmtpAdapter(None, sender=SENDER, deliver="capture", capture_dir=tmp_path)
    with pytest.raises(FenceRefused):
        await adapter.execute(an_attempt(refuse=FenceRefused()))
    assert captured(tmp_path) == []
    assert captured(tmp_path / "none") == []


async def test_capturing_needs_no_relay(tmp_path: Path) -> None:
    """`check` and a test message say what happens to messages instead."""
    adapter = SmtpAdapter(None, sender=SENDER, deliver="capture", capture_dir=tmp_path)
    assert [(check.name, check.ok) for check in await adapter.check()] == [("deliver", True)]
    assert (await adapter.send_test_message(JANE)).ok
    assert [message.recipients for message in captured(tmp_path)] == [(JANE,)]


async def test_a_preview_shows_everything(folder: Path) -> None:
    """A person who approves sees both bodies, every recipient, and the files."""
    adapter = SmtpAdapter(None, sender=SENDER, attachments_dir=folder)
    shown = await adapter.preview(
        a_message(bcc=("eve@example.com",), html="<b>Other words.</b>", attachments=[{"path": "a.txt"}])
    )
    assert shown.splitlines() == [
        f"From: {SENDER}",
        f"To: {JANE}",
        "Bcc: eve@example.com",
        "Subject: Your receipt",
        "Attached: a.txt (application/octet-stream, 5 bytes)",
        "",
        "--- text ---",
        "Thank you.",
        "",
        "--- html ---",
        "<b>Other words.</b>",
    ]


async def test_a_preview_cannot_hide_anything() -> None:
    """Characters that move a cursor, reorder or vanish are shown as their code."""
    shown = await SmtpAdapter(None, sender=SENDER).preview(a_message(text="pay 1\x1b[2K\u202e\u200b000"))
    assert "pay 1\\u001b[2K\\u202e\\u200b000" in shown


async def test_a_preview_of_nothing_says_so() -> None:
    """A notice that is not needed any more has nothing to show."""
    adapter = SmtpAdapter(None, sender=SENDER, notices=[Receipt], app=Shop(a=NotNeeded("refunded")))
    assert await adapter.preview(Receipt(order="a")) == "Nothing would be sent: refunded"


TABLE: Mapping[str, object] = {"relay": "smtp://shop@mail.example", "password": "hunter2", "sender": SENDER}


def test_a_table_configures_everything(tmp_path: Path) -> None:
    """Every setting of the table reaches the adapter."""
    adapter = SmtpAdapter.configure(
        "newsletter",
        {
            **TABLE,
            "relay": "smtps://mail.example:4465",
            "username": "shop",
            "attachments_dir": str(tmp_path),
            "lease": 300,
            "write_window": 200,
            "max_attempts": 5,
            "retention_days": 7,
            "concurrency": 2,
            "requires_approval": True,
            "local_hostname": "app.example",
            "timeout": 3,
        },
    )
    kind = adapter.kind
    assert (kind.name, kind.lease, kind.write_window, kind.max_attempts) == ("newsletter", 300.0, 200.0, 5)
    assert (kind.retention_days, kind.concurrency, kind.requires_approval) == (7, 2, True)
    assert adapter._relay == Relay(
        host="mail.example",
        port=4465,
        security=Security.TLS,
        username="shop",
        password="hunter2",  # noqa: S106 - the password of a test
        local_hostname="app.example",
        timeout=3.0,
    )


@pytest.mark.parametrize(
    ("table", "port", "security"),
    [
        ({"relay": "smtp://shop@mail.example"}, 587, Security.STARTTLS),
        ({"relay": "smtps://shop@mail.example"}, 465, Security.TLS),
        ({"relay": "smtp://shop@[::1]:2525", "security": "plaintext"}, 2525, Security.PLAINTEXT),
        ({"relay": "smtp://shop%40x@mail.example", "security": "starttls"}, 587, Security.STARTTLS),
    ],
)
def test_a_relay_is_a_url(table: dict[str, object], port: int, security: Security) -> None:
    """The scheme says how the connection is protected; plaintext is only ever asked for by name."""
    relay = SmtpAdapter.configure("email", {**TABLE, **table})._relay
    assert relay is not None
    assert (relay.port, relay.security) == (port, security)


BAD_TABLES: dict[str, dict[str, object]] = {
    "sender: Field required": {"sender": ...},
    "sender: must be one address": {"sender": "hunter2"},
    "relay: is needed": {"relay": None},
    "relay: write smtp": {"relay": "http://hunter2"},
    "relay: not readable": {"relay": "smtp://[hunter2"},
    "relay: holds a password": {"relay": "smtp://shop:hunter2@mail.example"},
    "relay: the port": {"relay": "smtp://mail.example:99999"},
    "relay: the host": {"relay": "smtp://"},
    "relay: has more": {"relay": "smtp://mail.example/hunter2"},
    "security: contradicts": {"relay": "smtps://mail.example", "security": "plaintext"},
    "security: for TLS": {"security": "tls"},
    "security: Input should be": {"security": "hunter2"},
    "username: is given twice": {"username": "hunter2"},
    "username, password: give both": {"password": None},
    "username, password: cannot hold": {"password": "hunter2\0"},
    "local_hostname: must be ASCII": {"local_hostname": "a b"},
    "timeout: Input should be": {"timeout": 0},
    "lease: Input should be": {"lease": "hunter2"},
    "lease: must be longer": {"lease": 60, "write_window": 60},
    "retention_days: Input should be": {"retention_days": 0},
    "capture_dir: is needed": {"deliver": "capture"},
    "deliver: Input should be": {"deliver": "hunter2"},
    "surprise: Extra inputs": {"surprise": "hunter2"},
}


@pytest.mark.parametrize(("says", "change"), BAD_TABLES.items(), ids=BAD_TABLES.keys())
def test_a_wrong_setting_is_named(says: str, change: dict[str, object]) -> None:
    """The message names kind and setting, and never shows a value."""
    table = {name: value for name, value in {**TABLE, **change}.items() if value is not ...}
    with pytest.raises(ConfigurationError) as refused:
        SmtpAdapter.configure("email", table)
    assert str(refused.value).startswith(f"kind email: {says}")
    assert "hunter2" not in str(refused.value)


def test_the_password_is_not_shown() -> None:
    """Neither the relay's text form nor the adapter's holds it; `settings`, of which only a digest is kept, does."""
    adapter = SmtpAdapter.configure("email", TABLE)
    assert "hunter2" not in repr(adapter) + repr(adapter._relay)
    assert adapter.settings() != SmtpAdapter.configure("email", {**TABLE, "password": "other"}).settings()


@pytest.mark.parametrize("options", [{"deliver": "post"}, {"deliver": "capture"}, {"sender": "nobody"}])
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    """The same holds for an adapter that is made in code."""
    with pytest.raises(ConfigurationError):
        SmtpAdapter(None, **{"sender": SENDER, **options})


def test_a_url_is_no_relay() -> None:
    """A URL in the place of a `Relay` is refused at once, and the message says how to read it."""
    with pytest.raises(ConfigurationError, match=r"^relay: is a str; give a Relay, such as Relay\.parse\(") as refused:
        SmtpAdapter("smtp://hunter2.example", sender=SENDER)  # type: ignore[arg-type]
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("fields", [{"security": "ssl"}, {"host": "a b"}, {"timeout": 0}])
def test_a_wrong_relay_is_refused(fields: dict[str, Any]) -> None:
    """And for a relay."""
    with pytest.raises(ConfigurationError):
        Relay(**{"host": "mail.example", **fields})
