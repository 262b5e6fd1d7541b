"""What `doctor` looks at in the database: each check says whether it holds, and how to mend it."""

import time
from collections.abc import Iterator

from edgeoutbox.adapter import Check
from edgeoutbox.errors import StorageError
from edgeoutbox.sidecar.database import Look, driver_of, path_of, require_database
from edgeoutbox.storage.sqlite.drivers import has_wal_reset_defect

_SEEN_WITHIN = 60
"""Seconds within which an executor that runs was seen."""

_VERSION = "SELECT sqlite_version()"
_JOURNAL = "PRAGMA journal_mode"
_QUICK_CHECK = "PRAGMA quick_check(3)"
_EXECUTORS = "SELECT owner, version, seen_at FROM agent_action_executor ORDER BY seen_at DESC"
_DUE = "SELECT COUNT(*) FROM agent_action WHERE state IN ('ADMITTED', 'EXECUTING') AND due_at <= {now}"
_WEATHER = """
SELECT kind, paused_by, cooling_reason FROM agent_action_kind
WHERE paused_by IS NOT NULL OR cooling_until > {now}
ORDER BY kind
"""


def check_database(url: str) -> Iterator[Check]:
    """Look at everything, without changing it; stops at what makes the rest impossible."""
    try:
        require_database(url)
    except StorageError as error:
        yield Check("database", ok=False, detail=str(error))
        return
    yield Check("database", ok=True, detail=str(path_of(url)))
    try:
        with Look(url) as look:
            yield from _look(look, driver_of(url))
    except StorageError as error:
        yield Check("database", ok=False, detail=str(error))


def _look(look: Look, driver: str) -> Iterator[Check]:
    version, readable_from = look.schema()
    yield Check("schema", ok=True, detail=f"version {version}, readable by builds of schema {readable_from} or later")
    yield _sqlite(look, driver)
    yield _journal(look)
    found = [str(row[0]) for row in look.rows(_QUICK_CHECK)]
    sound = found == ["ok"]
    yield Check(
        "integrity",
        ok=sound,
        detail="quick_check found nothing"
        if sound
        else f"{found[0]}; stop every program that uses the file, and restore a backup or use sqlite3 .recover",
    )
    yield _executors(look)
    yield from _weather(look)


def _sqlite(look: Look, driver: str) -> Check:
    [(text,)] = look.rows(_VERSION)
    affected = has_wal_reset_defect(tuple(int(part) for part in text.split(".")))
    mend = (
        "; this version can lose rows when another connection checkpoints beside ours: upgrade to 3.51.3, use "
        "sqlite+apsw:// in a process of its own, or call edgeoutbox.prepare() on your own connections"
    )
    return Check("sqlite", ok=not affected, detail=f"{text} through {driver}{mend if affected else ''}")


def _journal(look: Look) -> Check:
    [(mode,)] = look.rows(_JOURNAL)
    if str(mode).lower() == "wal":
        return Check("journal", ok=True, detail="write-ahead log")
    return Check("journal", ok=False, detail=f"{mode}, not wal; readers would block writers: start edgeoutbox run once")


def _executors(look: Look) -> Check:
    now = time.time() * 1000
    seen = [(owner, version) for owner, version, at in look.rows(_EXECUTORS) if at > now - _SEEN_WITHIN * 1000]
    if seen:
        return Check("executors", ok=True, detail=", ".join(f"{owner} ({version})" for owner, version in seen))
    [(waiting,)] = look.rows(_DUE.format(now=int(now)))
    nobody = f"none was seen in the last {_SEEN_WITHIN} seconds"
    if waiting:
        return Check("executors", ok=False, detail=f"{nobody}, and what is due waits ({waiting}): start edgeoutbox run")
    return Check("executors", ok=True, detail=f"{nobody}; nothing waits")


def _weather(look: Look) -> Iterator[Check]:
    for kind, paused_by, reason in look.rows(_WEATHER.format(now=int(time.time() * 1000))):
        what = f"paused by {paused_by}" if paused_by else f"cooling down: {reason}"
        yield Check(f"kind {kind}", ok=False, detail=f"{what}; go on with: edgeoutbox resume {kind}")
