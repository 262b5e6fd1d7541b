"""Every mutant, by the part of the product that it breaks."""

from tests.mutants import adapters, executor, postgres, schema, storage
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *schema.MUTANTS,
    *storage.MUTANTS,
    *postgres.MUTANTS,
    *executor.MUTANTS,
    *adapters.MUTANTS,
)
