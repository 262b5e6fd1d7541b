"""The table of mutants fits the source: a refactoring sees here, in a second, which mutant it has to fit again."""

import pytest

from tests.mutants.copies import ROOT, mutate
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    """Each text that a mutant replaces stands in the product once, and is another one afterwards."""
    for file in {edit.file for edit in mutant.edits}:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert mutate(mutant.name, source, [edit for edit in mutant.edits if edit.file == file]) != source
