"""The disk: its files, its power, its planned faults; and the door through which SQLite uses it."""

import contextlib
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from edgeoutbox.storage.sqlite.drivers import ApswDriver, DriverConnection, OnConnect
from edgeoutbox.storage.sqlite.spelling import Connection
from edgeoutbox.testing.disk.faults import CUT_AFTER, SHORT_READ, Call, Fault, failure
from edgeoutbox.testing.disk.surviving import Kept, Survival, Truncation, Write

T = TypeVar("T")

SYNCS_ITS_FOLDER = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL

SHARED_MEMORY = "-shm"


class Disk:
    """One folder on a disk that fails as planned. `sector` is bytes: 512, or 4096.

    `slow` is called with the seconds that a slow call takes; `on_cut` when the power goes. What happens is a function
    of the seed and of the calls that are made. It may be used by several threads.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        seed: int = 0,
        sector: int = 512,
        slow: Callable[[float], None] = time.sleep,
        on_cut: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.powered = True
        self.calls: Counter[str] = Counter()
        self.struck: Counter[tuple[str, str]] = Counter()
        """How often which fault came to which kind of call."""
        self._draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._sector = sector
        self._slow = slow
        self._on_cut = on_cut
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._open: set[DiskFile] = set()
        self._vfs = DiskVfs(self, f"edgeoutbox-disk-{secrets.token_hex(4)}")
        self._start_from_files()

    def _start_from_files(self) -> None:
        """Everything that is in the folder now is certain."""
        names = (path for path in self.folder.iterdir() if path.is_file() and not path.name.endswith(SHARED_MEMORY))
        self._files = {str(path): Kept(bytearray(path.read_bytes())) for path in names}
        self._certain_names = dict(self._files)

    @property
    def vfs(self) -> str:
        """The name for `apsw.Connection(path, vfs=...)`."""
        return self._vfs.name

    def driver(self) -> "DiskDriver":
        """A driver for `SqliteStorage` whose files are on this disk."""
        return DiskDriver(vfs=self.vfs)

    def plan(self, *faults: Fault) -> None:
        """Let these things happen; each counts the calls from now on."""
        self._faults += faults

    def mend(self) -> None:
        """Forget every planned fault."""
        self._faults.clear()

    def cut(self) -> None:
        """Take the power away: every call fails until `restore`."""
        with self._lock:
            if self.powered:
                self.powered = False
                self._on_cut()

    def restore(self, *, lost: float | None = None, torn: float = 0.1) -> None:
        """Leave in the folder what survived, and give the power back, without planned faults.

        `lost` is the chance of each sector to be lost; by default it is drawn, and all or nothing often enough.
        Raises `RuntimeError` while a file is open.
        """
        if self._open:
            raise RuntimeError(f"{len(self._open)} files are still open; close every connection before restore()")
        if lost is None:
            lost = self._draw.choice((1.0, 0.0, self._draw.random()))
        survival = Survival(self._draw, self._sector, lost, torn)
        names = self._surviving_names(survival)
        for path in self.folder.iterdir():
            if str(path) in self._files or path.name.endswith(SHARED_MEMORY):
                path.unlink()
        for name, kept in names.items():
            kept.settle(survival)
            Path(name).write_bytes(kept.certain)
        self.mend()
        self._start_from_files()
        self.powered = True

    def write_certain(self, folder: Path) -> None:
        """Write to another folder what would be left if the power went now and everything unsynced were lost."""
        with self._lock:
            for name, kept in self._certain_names.items():
                (folder / Path(name).name).write_bytes(kept.certain)

    def close(self) -> None:
        """Forget the disk; its connections must be closed."""
        self._vfs.unregister()

    def _surviving_names(self, survival: Survival) -> dict[str, Kept]:
        names = dict(self._certain_names)
        for name in self._files.keys() | self._certain_names.keys():
            if self._files.get(name) is not names.get(name) and survival.whole():
                names.pop(name, None)
                if name in self._files:
                    names[name] = self._files[name]
        return names

    # What the files call.

    def call(self, call: Call, path: str, act: Callable[[], T], *, half: Callable[[], object] = lambda: None) -> T:
        """Make a call of the operating system, unless something is planned for it.

        `half` is what a call that fails may have done all the same.
        """
        with self._lock:
            if not self.powered:
                raise failure(call)
            self.calls[call] += 1
            strikes = [fault for fault in self._faults if fault.strikes(call, path)]
            for fault in strikes:
                self.struck[fault.what, call] += 1
                self._strike(fault, call, half)
            done = act()
            for fault in strikes:
                if fault.what == CUT_AFTER:
                    self.cut()
                elif isinstance(done, bytes) and fault.what == SHORT_READ:
                    done = done[: self._draw.randrange(len(done) or 1)]  # type: ignore[assignment]
            return done

    def _strike(self, fault: Fault, call: Call, half: Callable[[], object]) -> None:
        """What happens instead of a call, or before it."""
        match fault.what:
            case "slow":
                self._slow(fault.seconds)
            case "cut before":
                self.cut()
                raise failure(call)
            case "i/o error":
                half()
                raise failure(call)
            case "no space":
                half()
                raise failure(call, full=True)

    def opened(self, file: "DiskFile") -> None:
        """Note an open file. One that others made in the folder is as uncertain as one that was made here."""
        if file.path not in self._files:
            content = Path(file.path).read_bytes()
            self._files[file.path] = Kept(since=[Write(0, content)] if content else [])
        self._open.add(file)

    def closed(self, file: "DiskFile") -> None:
        """Note that a file is closed."""
        self._open.discard(file)

    def written(self, path: str, change: Write | Truncation) -> None:
        """Note what was done to a file."""
        if path in self._files:  # a file that was deleted while it is open is nobody's
            self._files[path].since.append(change)

    def synced(self, path: str, *, folder: bool) -> None:
        """Everything that was done to the file is certain now, and the folder's names if it was synced too."""
        self.half_synced(path, 0.0)
        if folder:
            self._certain_names = dict(self._files)

    def half_synced(self, path: str, lost: float | None = None) -> None:
        """After a sync that failed a part is on the disk, and the system believes that all is: no sync brings it."""
        if path in self._files:
            chance = self._draw.random() if lost is None else lost
            self._files[path].settle(Survival(self._draw, self._sector, chance, 0.0))

    def deleted(self, path: str, *, folder: bool) -> None:
        """The name is gone; for certain if the folder was synced."""
        self._files.pop(path, None)
        if folder:
            self._certain_names = dict(self._files)

    def some_of(self, content: bytes) -> bytes:
        """The beginning of what a failing write was to write."""
        return content[: self._draw.randrange(len(content) + 1)]


class DiskDriver(ApswDriver):
    """Opens connections that close as SQLite does: an error on the way is nobody's any more."""

    def open(self, path: str, busy_timeout: int, on_connect: OnConnect | None) -> Connection:
        """Open a connection for the calling thread."""
        opened = super().open(path, busy_timeout, on_connect)
        return DiskConnection(opened.raw) if isinstance(opened, DriverConnection) else opened


class DiskConnection(DriverConnection):
    """A connection on a `Disk`."""

    def close(self) -> None:
        """Close. SQLite says nothing of a last checkpoint that fails; apsw raises what a VFS in Python raised in it."""
        with contextlib.suppress(apsw.IOError, apsw.FullError, apsw.CantOpenError):
            super().close()


class DiskVfs(apsw.VFS):
    """SQLite's door to a `Disk`; everything that is not about files goes to the operating system."""

    def __init__(self, disk: Disk, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's own name
        """Open a file of the folder; temporary files have no name and are the operating system's."""
        if name is None:
            return super().xOpen(name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return self._disk.call("open", path, lambda: DiskFile(self._disk, path, name, flags))

    def xDelete(self, path: str, sync_folder: bool) -> None:  # noqa: N802 - SQLite's own name
        """Delete a file."""

        def act() -> bool:
            super(DiskVfs, self).xDelete(path, sync_folder)
            self._disk.deleted(path, folder=bool(sync_folder))
            return True

        self._disk.call("delete", path, act)

    def xAccess(self, path: str, flags: int) -> bool:  # noqa: N802 - SQLite's own name
        """Look whether a file is there."""
        return self._disk.call("access", path, lambda: super(DiskVfs, self).xAccess(path, flags))


class DiskFile(apsw.VFSFile):
    """One open file. Shared memory is the operating system's."""

    def __init__(self, disk: Disk, path: str, name: Any, flags: list[int]) -> None:
        self.path = path
        self._disk = disk
        self._syncs_folder = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & SYNCS_ITS_FOLDER)
        super().__init__("", name, flags)
        disk.opened(self)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's own name
        """Read; what comes back shorter than it was asked for is a short read, which SQLite fills with zeros."""
        return self._disk.call("read", self.path, lambda: bytes(super(DiskFile, self).xRead(amount, offset)))

    def xWrite(self, content: Any, offset: int) -> None:  # noqa: N802 - SQLite's own name
        """Write; a write that fails may have written its beginning."""
        whole = bytes(content)

        def write(part: bytes) -> bool:
            if part:
                super(DiskFile, self).xWrite(part, offset)
                self._disk.written(self.path, Write(offset, part))
            return True

        self._disk.call("write", self.path, lambda: write(whole), half=lambda: write(self._disk.some_of(whole)))

    def xTruncate(self, length: int) -> None:  # noqa: N802 - SQLite's own name
        """Set the length."""

        def act() -> bool:
            super(DiskFile, self).xTruncate(length)
            self._disk.written(self.path, Truncation(length))
            return True

        self._disk.call("truncate", self.path, act)

    def xSync(self, flags: int) -> None:  # noqa: ARG002, N802 - SQLite's own name
        """Make certain what was written. The operating system is not asked: what is certain is known here."""

        def act() -> bool:
            self._disk.synced(self.path, folder=self._syncs_folder)
            self._syncs_folder = False
            return True

        self._disk.call("sync", self.path, act, half=lambda: self._disk.half_synced(self.path))

    def xFileSize(self) -> int:  # noqa: N802 - SQLite's own name
        """The length."""
        return self._disk.call("size", self.path, super().xFileSize)

    def xLock(self, level: int) -> None:  # noqa: N802 - SQLite's own name
        """Take a lock."""
        self._disk.call("lock", self.path, lambda: super(DiskFile, self).xLock(level))

    def xClose(self) -> None:  # noqa: N802 - SQLite's own name
        """Close; without power too, as the end of a process does."""
        self._disk.closed(self)
        super().xClose()
