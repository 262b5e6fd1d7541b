"""Requests: what is refused at enqueue, by the name of the field and never by its value."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, Field

from edgeoutbox import ActionRequest, InvalidRequest
from edgeoutbox.model import MAX_PAYLOAD_BYTES, milliseconds
from edgeoutbox.testing.conformance.story import a_request

SECRET = "s3cret-alice@example.com"  # noqa: S105 - it stands for one

BAD: list[tuple[str, Any]] = [
    ("kind", ""),
    ("kind", SECRET),
    ("kind", "Email"),
    ("kind", "e" * 65),
    ("kind", "9mail"),
    ("kind", "email\n"),
    ("kind", None),
    ("idempotency_key", ""),
    ("idempotency_key", SECRET * 50),
    ("idempotency_key", f"{SECRET}\0"),
    ("idempotency_key", f"{SECRET}\ud800"),
    ("idempotency_key", 7),
    ("idempotency_key", None),
    ("lane_key", ""),
    ("lane_key", "l" * 513),
    ("lane_key", f"{SECRET}\0"),
    ("workspace_id", ""),
    ("run_id", f"{SECRET}\udfff"),
    ("subject_account_id", ""),
    ("payload", SECRET),
    ("payload", [1]),
    ("payload", None),
    ("payload", {"a": {"to": f"{SECRET}\0"}}),
    ("payload", {"a": [f"{SECRET}\ud800"]}),
    ("payload", {f"{SECRET}\0": 1}),
    ("payload", {"a": float("nan")}),
    ("payload", {"a": object()}),
    ("payload", {"a": b"bytes"}),
    ("payload", {"a": SECRET * 20_000}),
    ("max_attempts", 0),
    ("max_attempts", -1),
    ("max_attempts", 10_001),
    ("max_attempts", SECRET),
    ("due_at", SECRET),
    ("due_at", -1),
    ("due_at", datetime(2026, 1, 1)),  # noqa: DTZ001 - the naive datetime is what is refused
    ("due_at", 10**18),
    ("due_at", 1.5),
    ("expires_at", datetime(2026, 1, 1)),  # noqa: DTZ001 - the same
    ("expires_at", 253_402_300_800_000),
    ("trace_parent", SECRET),
    ("unknown_field", SECRET),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=[f"{field}-{index}" for index, (field, _) in enumerate(BAD)])
def test_p12_a_bad_field_is_named_and_its_value_is_not_shown(field: str, value: Any) -> None:
    """Every mistake is an InvalidRequest that says which field and which rule."""
    values: dict[str, Any] = {"kind": "email", "idempotency_key": "k", "payload": {}, field: value}
    with pytest.raises(InvalidRequest) as refusal:
        ActionRequest(**values)
    assert field in str(refusal.value)
    for text in (str(refusal.value), repr(refusal.value), str(refusal.value.__cause__)):
        assert "s3cret" not in text
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__


def test_a_missing_field_is_named() -> None:
    """Kind, key and payload must be given."""
    with pytest.raises(InvalidRequest, match=r"kind: .*; idempotency_key: .*; payload: "):
        ActionRequest()


def test_the_largest_request_is_accepted() -> None:
    """The limits are inside: 64 letters, 512 characters of any script, 256 KiB of UTF-8."""
    payload = {"a": "ß" * ((MAX_PAYLOAD_BYTES - 8) // 2)}
    request = ActionRequest(kind="k" * 64, idempotency_key="\U0001f600" * 512, lane_key="l" * 512, payload=payload)
    assert len(request.payload_text.encode()) == MAX_PAYLOAD_BYTES
    with pytest.raises(InvalidRequest, match="payload: 262145 bytes, at most 262144 are stored"):
        ActionRequest(kind="k", idempotency_key="k", payload={"a": "x" * (MAX_PAYLOAD_BYTES - 7)})


def test_a_moment_is_a_datetime_with_a_time_zone_or_milliseconds() -> None:
    """The same moment in any zone is the same number."""
    moment = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    east = moment.astimezone(timezone(timedelta(hours=9)))
    assert a_request(due_at=moment).due_at == a_request(due_at=east).due_at == milliseconds(moment) == 1_772_366_400_123
    assert a_request(due_at=1_772_366_400_123).due_at == 1_772_366_400_123


def test_a_model_is_stored_by_its_aliases() -> None:
    """What the adapter of the kind will read."""

    class Message(BaseModel):
        sender: str = Field(alias="from")

    assert a_request(payload=Message.model_validate({"from": "a"})).payload_text == '{"from":"a"}'


def test_a_request_is_frozen() -> None:
    """What was digested is what is stored."""
    request = a_request()
    with pytest.raises(Exception, match="frozen"):
        request.kind = "post"


def test_p12_an_action_shows_neither_payload_nor_subject() -> None:
    """Its repr goes into logs."""
    request = a_request(payload={"to": SECRET}, subject_account_id=SECRET)
    assert request.payload_text.count("s3cret") == 1
    from edgeoutbox.testing.attempt import an_action  # noqa: PLC0415 - the one use

    assert "s3cret" not in repr(an_action(payload=request.payload_text, subject_account_id=SECRET))
    assert "s3cret" not in repr(request)
    assert "s3cret" not in str(request)
