"""The disk itself: what survives a cut, what does not, and what a fault does."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from edgeoutbox.testing.disk import CUT_AFTER, CUT_BEFORE, ERRORS, IO_ERROR, NO_SPACE, SHORT_READ, Disk, Fault
from edgeoutbox.testing.disk.surviving import Kept, Survival, Truncation, Write

SECTORS = 16
OLD, NEW = b"o" * 512 * SECTORS, b"n" * 512 * SECTORS
FILE_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
DATABASE, LOG = FILE_FLAGS | apsw.SQLITE_OPEN_MAIN_DB, FILE_FLAGS | apsw.SQLITE_OPEN_WAL


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk with one file on it."""
    (tmp_path / "old").write_bytes(OLD)
    disk = Disk(tmp_path, seed=3)
    yield disk
    disk.close()


def opened(disk: Disk, name: str, flags: int = DATABASE) -> apsw.VFSFile:
    """A file of the disk, opened as SQLite would."""
    return apsw.VFSFile(disk.vfs, str(disk.folder / name), [flags, 0])


def code_of(call: Callable[[], object]) -> int:
    """SQLite's own code for why a call failed."""
    with pytest.raises(apsw.Error) as failed:
        call()
    error: Any = failed.value
    return int(error.extendedresult)


def after_a_cut(disk: Disk, file: apsw.VFSFile, lost: float, torn: float = 0.0) -> bytes | None:
    """What is left of a file."""
    path = disk.folder / "old"
    disk.cut()
    file.xClose()
    disk.restore(lost=lost, torn=torn)
    return path.read_bytes() if path.exists() else None


def test_what_was_synced_survives(disk: Disk) -> None:
    """Even when everything that was not synced is lost."""
    file = opened(disk, "old")
    file.xWrite(NEW, 0)
    file.xSync(0)
    file.xWrite(OLD, 0)
    file.xTruncate(10)
    assert after_a_cut(disk, file, lost=1.0) == NEW


def test_what_was_not_synced_may_survive(disk: Disk) -> None:
    """All of it, when nothing is lost, in the order in which it was done."""
    file = opened(disk, "old")
    file.xWrite(NEW, 0)
    file.xTruncate(700)
    file.xWrite(b"!", 800)
    assert after_a_cut(disk, file, lost=0.0) == NEW[:700] + bytes(100) + b"!"


def test_sectors_are_lost_and_torn_one_by_one(disk: Disk) -> None:
    """Each sector is old, new, or new at its beginning and old at its end; nothing else, and of each some."""
    file = opened(disk, "old")
    file.xWrite(NEW, 0)
    left = after_a_cut(disk, file, lost=0.4, torn=0.5)
    assert left is not None
    kinds = set()
    for start in range(0, len(left), 512):
        sector = left[start : start + 512]
        new = sector.count(b"n")
        assert sector == b"n" * new + b"o" * (512 - new)
        kinds.add("old" if new == 0 else "new" if new == 512 else "torn")
    assert kinds == {"old", "new", "torn"}


@pytest.mark.parametrize(("sector", "parts"), [(512, [10, 512, 478]), (4096, [1000])])
def test_a_write_is_cut_at_the_sectors_of_the_disk(sector: int, parts: list[int]) -> None:
    """Not at its own beginning; the sector's size is the disk's."""
    survives = Survival(random.Random(1), sector, 0.0, 0.0)  # noqa: S311 - reproducible, not secret
    assert [len(part.content) for part in survives.parts(Write(502, bytes(1000)))] == parts


def test_a_new_file_is_certain_with_its_folder(disk: Disk) -> None:
    """A synced file may be gone, until the first sync of a log syncs the folder."""
    file = opened(disk, "new")
    file.xWrite(b"content", 0)
    file.xSync(0)
    assert (disk.folder / "new").exists()
    assert str(disk.folder / "new") not in disk._certain_names
    log = opened(disk, "new-wal", LOG)
    log.xSync(0)
    assert str(disk.folder / "new") in disk._certain_names
    for one in (file, log):
        one.xClose()
    disk.cut()
    disk.restore(lost=1.0)
    assert sorted(path.name for path in disk.folder.iterdir()) == ["new", "new-wal", "old"]


@pytest.mark.parametrize(("syncs", "left"), [(False, ["old"]), (True, [])])
def test_a_deleted_file_may_be_back(disk: Disk, syncs: bool, left: list[str]) -> None:
    """Unless its folder was synced."""
    disk._vfs.xDelete(str(disk.folder / "old"), syncs)
    disk.cut()
    disk.restore(lost=1.0)
    assert [path.name for path in disk.folder.iterdir()] == left


def test_shared_memory_is_lost(disk: Disk) -> None:
    """It is memory."""
    connection = apsw.Connection(str(disk.folder / "app.db"), vfs=disk.vfs)
    for statement in ("PRAGMA journal_mode = WAL", "CREATE TABLE one (a)", "INSERT INTO one VALUES (1)"):
        connection.execute(statement).fetchall()
    assert (disk.folder / "app.db-shm").exists()
    disk.cut()
    with pytest.raises(apsw.IOError):
        connection.close()
    disk.restore(lost=1.0)
    assert not (disk.folder / "app.db-shm").exists()
    assert apsw.Connection(str(disk.folder / "app.db")).execute("SELECT a FROM one").fetchall() == [(1,)]


def test_every_call_fails_without_power(disk: Disk) -> None:
    """Reads, writes, all of them, with SQLite's own codes; a file can be closed."""
    file = opened(disk, "old")
    disk.cut()
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: file.xRead(10, 0),
        "write": lambda: file.xWrite(b"x", 0),
        "truncate": lambda: file.xTruncate(0),
        "sync": lambda: file.xSync(0),
        "size": file.xFileSize,
        "lock": lambda: file.xLock(apsw.SQLITE_LOCK_SHARED),
        "delete": lambda: disk._vfs.xDelete(str(disk.folder / "old"), False),
        "access": lambda: disk._vfs.xAccess(str(disk.folder / "old"), 0),
        "open": lambda: opened(disk, "old"),
    }
    assert {name: code_of(call) for name, call in calls.items()} == ERRORS
    file.xClose()
    disk.restore()
    assert (disk.folder / "old").read_bytes() == OLD


def test_the_power_goes_before_a_call(disk: Disk) -> None:
    """The call fails and does nothing: here the second write."""
    disk.plan(Fault(CUT_BEFORE, "write", at=2))
    file = opened(disk, "old")
    file.xWrite(b"o", 0)
    with pytest.raises(apsw.IOError):
        file.xWrite(NEW, 0)
    assert after_a_cut(disk, file, lost=0.0) == OLD


def test_the_power_goes_after_a_call(disk: Disk) -> None:
    """The call is made and answered, and nothing after it."""
    disk.plan(Fault(CUT_AFTER, "sync"))
    file = opened(disk, "old")
    file.xWrite(NEW, 0)
    file.xSync(0)
    with pytest.raises(apsw.IOError):
        file.xRead(1, 0)
    assert after_a_cut(disk, file, lost=1.0) == NEW


def test_a_write_without_room_has_written_its_beginning(disk: Disk) -> None:
    """SQLite is told that the disk is full, and later there is room."""
    disk.plan(Fault(NO_SPACE, "write", times=2))
    file = opened(disk, "old")
    for _ in range(2):
        with pytest.raises(apsw.FullError):
            file.xWrite(NEW, 0)
    written = file.xRead(len(NEW), 0).count(b"n")
    assert 0 < written < len(NEW)
    file.xWrite(NEW, 0)
    assert file.xRead(len(NEW), 0) == NEW
    file.xClose()


def test_a_full_disk_can_be_read(disk: Disk) -> None:
    """What needs room fails, a write by the reason's own code; everything else goes on."""
    file = opened(disk, "old")
    disk.plan(Fault(NO_SPACE, times=10**6))
    assert code_of(lambda: file.xWrite(NEW, 0)) == apsw.SQLITE_FULL
    assert code_of(lambda: file.xTruncate(10)) == ERRORS["truncate"]
    assert code_of(lambda: file.xSync(0)) == ERRORS["sync"]
    assert code_of(lambda: opened(disk, "new")) == ERRORS["open"]
    file.xLock(apsw.SQLITE_LOCK_SHARED)
    assert len(file.xRead(len(OLD), 0)) == file.xFileSize() == len(OLD)
    file.xClose()


def test_a_lock_fails_as_planned(disk: Disk) -> None:
    """As every other call does."""
    file = opened(disk, "old")
    disk.plan(Fault(IO_ERROR, "lock"))
    assert code_of(lambda: file.xLock(apsw.SQLITE_LOCK_SHARED)) == ERRORS["lock"]
    file.xLock(apsw.SQLITE_LOCK_SHARED)
    file.xClose()


def test_what_a_failed_sync_lost_no_later_sync_brings_back() -> None:
    """The system believes that it is written: as on Linux, where the pages are clean after the error."""
    kept = Kept(bytearray(OLD), [Write(0, NEW), Truncation(600)])

    class Nothing:
        def whole(self) -> bool:
            return False

        def parts(self, _: Write) -> list[Write]:
            return []

    kept.settle(Nothing())  # type: ignore[arg-type]
    assert (bytes(kept.certain), kept.since) == (OLD, [])


def test_a_failed_sync_is_told(disk: Disk) -> None:
    """As SQLite's own layer says it; what was written can still be read."""
    disk.plan(Fault(IO_ERROR, "sync"))
    file = opened(disk, "old")
    file.xWrite(NEW, 0)
    assert code_of(lambda: file.xSync(0)) == apsw.SQLITE_IOERR_FSYNC
    assert file.xRead(len(NEW), 0) == NEW
    file.xClose()


def test_a_short_read_at_the_start_is_filled_with_zeros(disk: Disk) -> None:
    """A database of no bytes is a new one; one that ends in the middle of its header is none, and is left alone."""
    path = disk.folder / "app.db"
    connection = apsw.Connection(str(path), vfs=disk.vfs)
    connection.execute("CREATE TABLE one (a)")
    connection.close()
    whole = path.read_bytes()
    disk.plan(Fault(SHORT_READ, "read", file=".db", times=10**6))
    short = apsw.Connection(str(path), vfs=disk.vfs)
    with pytest.raises((apsw.NotADBError, apsw.CorruptError)):
        short.execute("SELECT a FROM one")
    short.close()
    disk.mend()
    assert path.read_bytes() == whole
    again = apsw.Connection(str(path), vfs=disk.vfs)
    assert again.execute("SELECT a FROM one").fetchall() == []
    again.close()


def test_files_must_be_closed_before_the_power_returns(disk: Disk) -> None:
    """A process that lost its power has no files open."""
    file = opened(disk, "old")
    disk.cut()
    with pytest.raises(RuntimeError, match="still open; close every connection"):
        disk.restore()
    file.xClose()
