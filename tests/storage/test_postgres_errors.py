"""What Postgres says went wrong, as one of our errors: what is said of a row, and what of anything else."""

import psycopg
import pytest

from edgeoutbox.errors import DatabaseBusy, DatabaseUnavailable, ForbiddenByGuard, StorageError
from edgeoutbox.storage.postgres.errors import storage_error


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("22P05", ForbiddenByGuard),
        ("22001", ForbiddenByGuard),
        ("23502", ForbiddenByGuard),
        ("23514", ForbiddenByGuard),
        ("27000", ForbiddenByGuard),
        ("38000", ForbiddenByGuard),
        ("54001", ForbiddenByGuard),
        ("P0001", ForbiddenByGuard),
        ("40001", DatabaseBusy),
        ("57014", DatabaseBusy),
        ("25006", DatabaseUnavailable),
        ("53100", DatabaseUnavailable),
        ("57P01", DatabaseUnavailable),
        ("0A000", StorageError),
        ("25P02", StorageError),
        ("26000", StorageError),
        ("42501", StorageError),
        ("42703", StorageError),
        ("42P01", StorageError),
        ("42P05", StorageError),
    ],
)
def test_p9_only_what_is_said_of_the_row_is_a_refusal_of_the_row(state: str, kind: type[StorageError]) -> None:
    """An executor gives a confirmed result up for such a refusal alone."""
    assert type(storage_error(psycopg.errors.lookup(state)())) is kind


def test_p9_what_a_driver_does_not_even_send_is_a_refusal_of_the_row() -> None:
    """A text with a NUL in it has no SQLSTATE: it never reached the server."""
    assert type(storage_error(psycopg.DataError("it has a NUL"))) is ForbiddenByGuard
