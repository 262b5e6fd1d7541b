"""What a kind of action promises, and the limits of its attempts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Generic, Self, TypedDict, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.model import validation_message
from edgeoutbox.variants import Variants

P = TypeVar("P")


class Delivery(StrEnum):
    """What a kind promises about a write whose outcome is unknown, strictest first."""

    AT_MOST_ONCE = "at_most_once"
    """Never written again: it ends UNCERTAIN."""
    READS_BACK = "reads_back"
    """The next attempt looks for the write at the provider before it writes."""
    REPEATABLE = "repeatable"
    """Written again with the same token; the provider deduplicates on it."""
    WRITES_NOTHING = "writes_nothing"
    """There is nothing to fence, such as a model draft; an attempt is bounded by its lease alone."""

    @property
    def strictness(self) -> int:
        """Higher is stricter; a declaration can only raise it."""
        return len(Delivery) - list(Delivery).index(self)


@dataclass(frozen=True, slots=True)
class Kind(Generic[P]):
    """One kind of action. Durations are seconds.

    `delivery`, `instance_level`, `requires_approval` and `retention_days` are stored with the database, for every
    process; the rest belongs to this process. `lease` bounds how long one claim owns the action, `write_window` how
    long one write may take: less than that left of the lease refuses the fence.
    """

    name: str
    variants: Variants[P] = field(repr=False)
    delivery: Delivery = Delivery.AT_MOST_ONCE
    lease: float = 120.0
    write_window: float = 60.0
    max_attempts: int = 30
    retention_days: int = 30
    concurrency: int = 8
    instance_level: bool = False
    requires_approval: bool = False

    def __init__(
        self,
        name: str,
        *,
        variants: Variants[P],
        delivery: Delivery | str = Delivery.AT_MOST_ONCE,
        lease: float = 120.0,
        write_window: float = 60.0,
        max_attempts: int = 30,
        retention_days: int = 30,
        concurrency: int = 8,
        instance_level: bool = False,
        requires_approval: bool = False,
    ) -> None:
        values: dict[str, Any] = {
            "name": name,
            "variants": variants,
            "delivery": Delivery(delivery),
            "lease": float(lease),
            "write_window": float(write_window),
            "max_attempts": max_attempts,
            "retention_days": retention_days,
            "concurrency": concurrency,
            "instance_level": instance_level,
            "requires_approval": requires_approval,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        _refuse_nonsense(self)


def _refuse_nonsense(kind: Kind[Any]) -> None:
    if not (kind.name[:1].isalpha() and kind.name.isascii() and kind.name.replace("_", "a").isalnum()):
        msg = f"kind {kind.name!r}: a name has lower-case letters, digits and underscores, and starts with a letter"
        raise ConfigurationError(msg)
    if kind.name != kind.name.lower() or len(kind.name) > 64:  # noqa: PLR2004 - the schema's own limit
        msg = f"kind {kind.name!r}: a name is lower-case and has at most 64 characters"
        raise ConfigurationError(msg)
    for name in ("lease", "write_window", "max_attempts", "concurrency"):
        if getattr(kind, name) <= 0:
            msg = f"kind {kind.name}: {name} must be above zero"
            raise ConfigurationError(msg)
    if kind.retention_days < 1:
        msg = f"kind {kind.name}: retention_days must be at least 1, so that a late repeat still finds its key"
        raise ConfigurationError(msg)


class KindLimits(TypedDict, total=False):
    """What whoever makes an adapter may set of its kind, by name; what is left out is the adapter's default."""

    lease: float
    write_window: float
    max_attempts: int
    retention_days: int
    concurrency: int
    requires_approval: bool


class KindSettings(BaseModel):
    """The settings that every kind has in a configuration table. An adapter's own settings extend it.

    Durations are seconds. What is `None` was not given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    lease: Annotated[float, Field(gt=0, le=86_400)] | None = None
    write_window: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] | None = None
    retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = None
    requires_approval: bool | None = None

    @classmethod
    def read(cls, kind: str, table: Mapping[str, object]) -> Self:
        """Check a table. Raises `ConfigurationError` naming kind and setting, never a value."""
        try:
            return cls.model_validate(dict(table))
        except ValidationError as error:
            raise ConfigurationError(f"kind {kind}: {validation_message(error)}") from None

    def limits(self) -> KindLimits:
        """The limits that were given."""
        given = {name: getattr(self, name) for name in KindLimits.__annotations__}
        return cast("KindLimits", {name: value for name, value in given.items() if value is not None})
