"""A mutant: one deliberate defect of the product, and the tests that must see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """In a file, the text that stands there exactly once, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A realistic mistake. `harm`: what it would do to a user. Each test of `killers` must fail by it.

    A killer without `[...]` fails when one of its cases does. Only cases for the database that the mutant concerns run.
    """

    name: str
    harm: str
    edits: tuple[Edit, ...]
    killers: tuple[str, ...]

    @property
    def of_postgres(self) -> bool:
        """Whether it stands in a room of Postgres, so that its tests need a server."""
        return any("postgres" in edit.file for edit in self.edits)
