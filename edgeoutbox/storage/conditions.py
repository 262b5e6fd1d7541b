"""Which rows a build decodes, as one SQL condition over `payload` and `idempotency_key`."""

from collections.abc import Sequence
from typing import Protocol

from edgeoutbox.variants import AllOf, Condition, Each, KeySuffix, OneOf, Path, Scalar, Switch


class Json(Protocol):
    """How a database looks into JSON. `root` is an SQL expression, and a path leads through objects alone.

    The literals come from declared Python types, never from a payload, and are quoted all the same.
    """

    def absent(self, root: str, path: Path) -> str:
        """Nothing is there, or null."""

    def is_one(self, root: str, path: Path, values: Sequence[Scalar]) -> str:
        """One of these is there, of the same JSON type."""

    def each(self, root: str, path: Path, item: str, inner: str) -> str:
        """No array is there, or one whose elements all fulfil `inner`, which calls the element `item`.j."""

    def ends_with(self, column: str, text: str) -> str:
        """A column's text ends with this."""

    def quote(self, text: str) -> str:
        """A text as a literal."""


def render(condition: Condition, json: Json, root: str = "payload", depth: int = 0) -> str:
    """The condition in SQL; true for a row whose value is absent, like `edgeoutbox.variants.holds`."""
    match condition:
        case AllOf(parts):
            return "(" + " AND ".join(render(part, json, root, depth) for part in parts) + ")" if parts else "TRUE"
        case OneOf(path, values):
            return f"({json.absent(root, path)} OR {json.is_one(root, path, tuple(values))})"
        case Each(path, part):
            item = f"item{depth}"
            return json.each(root, path, item, render(part, json, f"{item}.j", depth + 1))
        case Switch(path, cases):
            branches = " OR ".join(
                f"({json.is_one(root, path, (tag,))} AND {render(part, json, root, depth)})" for tag, part in cases
            )
            return f"({json.absent(root, path)} OR {branches})"
        case KeySuffix(values):
            options = " OR ".join(
                f"idempotency_key = {json.quote(value)} OR {json.ends_with('idempotency_key', ':' + value)}"
                for value in values
            )
            return f"({options})"
