"""A source and a destination of each kind."""

from pathlib import Path

import pytest

from edgeoutbox.testing.postgres import PostgresServer
from tests.cli.conftest import ready, terminal
from tests.copying.world import Database, make_database

__all__ = ["ready", "terminal"]

WAYS = (
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
    ("sqlite", "sqlite"),
    ("sqlite", "sqlite+apsw"),
    ("postgres", "postgres"),
)


@pytest.fixture(params=WAYS, ids=" to ".join)
def way(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: PostgresServer) -> tuple[Database, Database]:
    """Two databases, the second without tables."""
    source, destination = request.param
    return (
        make_database(source, tmp_path, postgres_server, "source"),
        make_database(destination, tmp_path, postgres_server, "destination", empty=True),
    )


@pytest.fixture(params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: PostgresServer) -> tuple[Database, Database]:
    """A source in SQLite and a destination of each kind, for what depends on the destination alone."""
    return (
        make_database("sqlite", tmp_path, postgres_server, "source"),
        make_database(request.param, tmp_path, postgres_server, "destination", empty=True),
    )
