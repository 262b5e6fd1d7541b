"""The values that cross the public interface: requests in, actions and their history out.

Fields bear the names of the columns. Times are integer milliseconds since 1970 UTC, on the database's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from edgeoutbox.errors import InvalidRequest
from edgeoutbox.keys import canonical_json, digest, refuse_unstorable_text
from edgeoutbox.states import State, StopReason

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_KEY_LENGTH = 512
DEFAULT_WORKSPACE = "default"


def milliseconds(moment: datetime) -> int:
    """A timezone-aware datetime as milliseconds since 1970 UTC; a naive one raises `ValueError`."""
    if moment.tzinfo is None:
        msg = "must have a time zone, such as datetime.now(UTC)"
        raise ValueError(msg)
    return round(moment.timestamp() * 1000)


def _moment(value: Any) -> Any:
    return milliseconds(value) if isinstance(value, datetime) else value


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        refuse_unstorable_text(value, "text")
    return value


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True) if isinstance(value, BaseModel) else value


Moment = Annotated[int, BeforeValidator(_moment), Field(ge=0, le=253_402_300_799_999)]
Name = Annotated[str, BeforeValidator(_storable), Field(min_length=1, max_length=MAX_KEY_LENGTH)]


class ActionRequest(BaseModel):
    """One effect to carry out. Every field but `kind`, `idempotency_key` and `payload` may be left out.

    `payload` is a JSON object or a pydantic model, at most 256 KiB: identifiers where the adapter can read the
    rest. `lane_key`: actions of one lane never run at the same time, and start in the order of their ids; left out, it
    is the natural lane of the kind's adapter, if the outbox has one with a lane, else the action is alone.
    `due_at` and `expires_at` are timezone-aware datetimes, or milliseconds since 1970 UTC. Keys and lane names are
    written to logs: no personal data belongs in them. Raises `InvalidRequest`, naming the field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    idempotency_key: Name
    payload: Annotated[dict[str, Any], BeforeValidator(_plain), Field(repr=False)]
    lane_key: Name | None = None
    workspace_id: Name | None = DEFAULT_WORKSPACE
    run_id: Name | None = None
    subject_account_id: Name | None = Field(default=None, repr=False)
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    due_at: Moment | None = None
    expires_at: Moment | None = None
    trace_parent: Annotated[str, Field(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")] | None = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidRequest(validation_message(error)) from None

    @model_validator(mode="after")
    def _payload_fits(self) -> "ActionRequest":
        size = len(self.payload_text.encode())
        if size > MAX_PAYLOAD_BYTES:
            msg = f"payload: {size} bytes, at most {MAX_PAYLOAD_BYTES} are stored; keep identifiers, not content"
            raise ValueError(msg)
        return self

    @cached_property
    def payload_text(self) -> str:
        """The payload as canonical JSON, as it is stored."""
        return canonical_json(self.payload)

    @cached_property
    def payload_digest(self) -> str:
        """The digest of the payload: `sha256:` and 64 hex digits."""
        return digest(self.payload_text)


def validation_message(error: ValidationError) -> str:
    """A validation error as field names and rules, without any input value."""
    parts = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(step) for step in item["loc"]) or "request"
        message = item["msg"].removeprefix("Value error, ")
        parts.append(message if message.startswith(f"{where}:") else f"{where}: {message}")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue: the action that now holds the key.

    `created` is false when the key existed. `same_content` is false when the existing action differs in kind, lane
    or payload. `validated` is false when no adapter of the kind was there to check the payload.
    """

    id: int
    created: bool
    same_content: bool
    validated: bool
    state: State
    superseded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One row of `agent_action`, as it stood when it was read.

    `payload` is the stored JSON text, or `None` once the action ended; `Outbox.decode` gives the typed payload.
    """

    id: int
    kind: str
    workspace_id: str | None
    lane_key: str | None
    idempotency_key: str
    run_id: str | None
    payload: str | None = field(repr=False)
    payload_digest: str | None
    subject_account_id: str | None = field(repr=False)
    state: State
    is_head: bool
    epoch: int
    attempt: int
    max_attempts: int | None
    due_at: int
    expires_at: int | None
    lease_owner: str | None
    lease_expires_at: int | None
    write_started_at: int | None
    readback_ref: str | None
    stop_reason: StopReason | None
    last_error: str | None
    decided_by: str | None
    decided_at: int | None
    decision_note: str | None
    forget_at_end: bool
    trace_parent: str | None
    created_at: int
    admitted_at: int | None
    ended_at: int | None

    @property
    def ended(self) -> bool:
        """Whether the action has ended."""
        return self.state.ended


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One row of `agent_action_attempt`: what one claim of an action came to.

    `recorded` is true when the result changed the action, false when a later claim or end had overtaken it, and
    `None` while nothing has been settled: the attempt runs, or its process died.
    """

    action_id: int
    epoch: int
    attempt: int
    owner: str
    started_at: int
    write_started_at: int | None
    settled_at: int | None
    result: str | None
    reason: str | None
    evidence: Mapping[str, Any]
    readback_ref: str | None
    recorded: bool | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits of one kind. `served` says whether a running executor carries the kind out.

    `oldest_due_at` is that of the oldest admitted action that is due, in milliseconds since 1970 UTC.
    """

    kind: str
    served: bool
    proposed: int
    admitted: int
    executing: int
    uncertain: int
    failed: int
    oldest_due_at: int | None
    cooling_until: int | None
    cooling_reason: str | None
    paused_by: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some actions, newest first, and the cursor of the next page (`None` at the end)."""

    actions: tuple[Action, ...]
    cursor: int | None
