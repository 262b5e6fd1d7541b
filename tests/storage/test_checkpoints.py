"""Checkpoints: the log is folded into the database, written over or cut, and never grows for long."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeoutbox.storage.sqlite import checkpoints
from edgeoutbox.storage.sqlite.checkpoints import CUT_AT, Checkpoints
from edgeoutbox.storage.sqlite.drivers import ApswDriver
from edgeoutbox.storage.sqlite.spelling import Connection

AT = 100_000
ROW = 10_000
"""Three pages, so a commit adds less than a fifth of `AT`."""
COMMIT = 20_000


class Copy(ApswDriver):
    """A copy of SQLite that says which version it is."""

    def __init__(self, version: tuple[int, ...]) -> None:
        super().__init__()
        self._version = version

    def version(self) -> tuple[int, ...]:
        """The version that it is said to be."""
        return self._version


FIXED = Copy((3, 51, 3))
AFFECTED = Copy((3, 51, 2))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is soon large."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_AT", AT)


@pytest.fixture
def writer(database: Path) -> Iterator[Connection]:
    """The connection that writes, and waits for nobody."""
    connection = FIXED.open(str(database), 0, None)
    connection.execute("CREATE TABLE said (text)")
    yield connection
    connection.close()


def write(made: Checkpoints, writer: Connection, database: Path, commits: int) -> list[int]:
    """Commit rows, with what is due after each; the size of the log after each."""
    sizes = []
    for _ in range(commits):
        writer.execute("INSERT INTO said VALUES (?)", ("x" * ROW,))
        if made.due():
            made.run(writer)
        sizes.append(log_of(database).stat().st_size)
    return sizes


def log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def folded(database: Path, tmp_path: Path) -> int:
    """How many rows the file has without its log."""
    alone = tmp_path / "alone.db"
    alone.write_bytes(database.read_bytes())
    connection = FIXED.open(str(alone), 0, None)
    [(rows,)] = connection.execute("SELECT COUNT(*) FROM said")
    connection.close()
    return int(rows)


def test_a_log_is_written_over(writer: Connection, database: Path, tmp_path: Path) -> None:
    """It keeps its size and is folded each time that it is full again: only what came since is not in the file."""
    sizes = write(Checkpoints(database, FIXED), writer, database, 60)
    assert 0 not in sizes
    assert AT <= sizes[20] <= sizes[-1] < CUT_AT * AT
    assert 60 - AT // ROW <= folded(database, tmp_path) <= 60


def test_a_log_that_is_written_over_is_cut_before_it_is_large(writer: Connection, database: Path) -> None:
    """Each time it grows by one commit; after many times it begins anew."""
    sizes = write(Checkpoints(database, FIXED), writer, database, 400)
    assert max(sizes) < CUT_AT * AT + COMMIT
    assert 0 in sizes


def test_a_log_is_cut_each_time_where_sqlite_can_miss_its_reset(writer: Connection, database: Path) -> None:
    """Before SQLite 3.51.3 nobody writes over a log."""
    sizes = write(Checkpoints(database, AFFECTED), writer, database, 60)
    assert max(sizes) < AT
    assert sizes.count(0) >= 60 * ROW // AT - 1


@pytest.mark.parametrize("copy", [FIXED, AFFECTED], ids=["fixed", "affected"])
def test_a_log_that_a_reader_needs_grows_and_comes_back(writer: Connection, database: Path, copy: Copy) -> None:
    """It is tried once for each `CHECKPOINT_AT` that it grows beside the reader, and cut when the reader has gone."""
    made = Checkpoints(database, copy)
    asked: list[str] = []
    reader = copy.open(str(database), 0, None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM said")

    class Asked:
        def execute(self, sql: str) -> list[tuple[int, ...]]:
            asked.append(sql)
            return writer.execute(sql)

    grown = 0
    for _ in range(40):
        writer.execute("INSERT INTO said VALUES (?)", ("x" * ROW,))
        if made.due():
            made.run(Asked())  # type: ignore[arg-type]
        grown = log_of(database).stat().st_size
    assert grown > 4 * AT
    assert 3 <= len(asked) <= grown // AT
    reader.close()
    assert write(made, writer, database, 2 * AT // ROW)[-1] < CUT_AT * AT
