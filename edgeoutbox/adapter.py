"""The seam between the outbox and a provider: what an adapter is given, and what it must offer.

An adapter carries out one kind. Its contract, the traps and the suite to run are in `adapters/README.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel

from edgeoutbox.kinds import Kind
from edgeoutbox.model import Action, ActionRequest, Enqueued
from edgeoutbox.results import Result

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
M_co = TypeVar("M_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)

EndedAction: TypeAlias = Action
"""An action that ended: it has a state, a stop reason and no payload."""


@dataclass(frozen=True, slots=True)
class WriteWindow:
    """How long the provider call may take. `seconds` counts from the moment the fence was stored.

    The executor cancels the attempt when the window ends; an adapter may use `seconds` for its own time-outs.
    """

    seconds: float


class Attempt(Protocol[P_co]):
    """One run of an adapter under one claim."""

    @property
    def payload(self) -> P_co:
        """The typed payload."""

    @property
    def action(self) -> Action:
        """The action as it was claimed."""

    @property
    def last(self) -> bool:
        """Whether this is the action's last attempt."""

    @property
    def inherited_write_at(self) -> int | None:
        """When an earlier attempt started a write that is not proven empty (milliseconds), else `None`.

        When it is set, a kind that reads back must look for that write before it writes.
        """

    @property
    def write_started_at(self) -> int | None:
        """When this attempt started its first write (milliseconds), else `None`."""

    async def begin_write(self) -> WriteWindow:
        """Store the fence durably; only after this returns may the provider be called.

        Raises `FenceRefused` when another claim took the action, it was erased, it expired, or less of the lease is
        left than the write window: let it rise. Raises `SecondWrite` for a second call in one attempt of an
        at-most-once kind, and `StorageError` when the database could not store the fence.
        """


class Transaction(Protocol):
    """The transaction that ended an action, as an ended hook sees it. Nothing else may be awaited in a hook."""

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; statements that control the transaction are refused."""

    async def enqueue(self, request: ActionRequest) -> Enqueued:
        """Enqueue a follow-up in the same transaction; it is stored as it is, neither validated nor prepared."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that `doctor` looked at: whether it holds, and what to do when it does not."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """A notice's answer when its message should not be sent any more; `reason` is our own words."""

    reason: str = ""


class Notice(BaseModel, Generic[M_co, A_contra]):
    """An event that becomes a message: the payload of a kind whose message is made late.

    A subclass declares `notice: Literal["name"] = "name"` and the event's fields, and makes the message in
    `prepare`. It runs at enqueue, so that a bad event is refused there, and again before every attempt, so that a
    retry does not reach somebody who unsubscribed in the meantime.
    """

    async def prepare(self, app: A_contra) -> M_co | NotNeeded:
        """The message of this event now. `app` is what the application gave to the adapter."""
        raise NotImplementedError


class Adapter(Protocol[P]):
    """What carries out one kind. Subclass it; only `kind` and `execute` must be written."""

    kind: Kind[P]

    async def execute(self, attempt: Attempt[P]) -> Result:
        """Carry out the effect once: call `attempt.begin_write()` just before the provider, then say what happened.

        Only the executor calls this.
        """
        ...

    async def ended(self, action: EndedAction, tx: Transaction) -> None:  # noqa: ARG002 - for those who override it
        """Move the application's own rows on when an action of this kind ended, whoever ended it.

        Runs in the transaction that ended it and may await nothing but `tx`. When it raises, its changes alone are
        undone and it is called again later.
        """
        return

    async def prepare(self, payload: P) -> P:
        """Check, at enqueue, that the payload can become a message, and return the payload to store.

        Raise `InvalidPayload` naming the field, never its value.
        """
        return payload

    def lane(self, payload: P) -> str | None:  # noqa: ARG002 - for those who override it
        """The natural lane of an effect, such as its channel, for an enqueue that names none; `None`: alone."""
        return None

    async def preview(self, payload: P) -> str:
        """What the recipient would see, as text for a person who decides about a proposal."""
        return payload.model_dump_json(indent=2) if isinstance(payload, BaseModel) else str(payload)

    async def check(self) -> Sequence[Check]:
        """Whether the provider is reachable and configured; sends nothing."""
        return ()

    def destination(self) -> str:
        """Where it delivers to, in a few words without user or password: `smtp.example.com:587 (starttls)`."""
        return "as its adapter knows"

    def settings(self) -> str:
        """A text that changes when the provider's settings change; starting with new ones ends a cooling.

        It may hold secrets: only a salted two-byte digest of it is stored.
        """
        return ""

    async def aclose(self) -> None:
        """Release connections. The adapter may be used again afterwards."""
        return


def has_ended_hook(adapter: "Adapter[Any]") -> bool:
    """Whether the adapter overrides `ended`."""
    return type(adapter).ended is not Adapter.ended
