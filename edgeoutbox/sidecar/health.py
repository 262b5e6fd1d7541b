"""What `doctor` looks at in the database: each check says whether it holds, and how to mend it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from edgeoutbox.adapter import Check
from edgeoutbox.errors import DatabaseBusy, StorageError
from edgeoutbox.sidecar.database import Look, driver_of, is_file, look_at, require_database, shown
from edgeoutbox.storage.postgres.errors import READ_ONLY
from edgeoutbox.storage.protocol import ExecutorRecord
from edgeoutbox.storage.sqlite.drivers import has_wal_reset_defect
from edgeoutbox.storage.sqlite.schema import require_readable
from edgeoutbox.storage.statements.executors import there
from edgeoutbox.storage.statements.kinds import HELD_BY

if TYPE_CHECKING:
    from edgeoutbox.sidecar.postgres import PostgresLook

_LOCK_WAIT = 1000
"""Milliseconds to wait for the write lock: a program that is well keeps it for a fraction of that."""

_VERSION = "SELECT sqlite_version()"
_JOURNAL = "PRAGMA journal_mode"
_QUICK_CHECK = "PRAGMA quick_check(3)"

# What could be claimed or taken over now: due heads, and lost leases. By kind; served by ix_agent_action_open.
_DUE = """
SELECT kind, COUNT(*) FROM agent_action
WHERE edgeoutbox_open(agent_action)
  AND ((state = 'ADMITTED' AND is_head = 1 AND due_at <= edgeoutbox_now())
       OR (state = 'EXECUTING' AND lease_expires_at <= edgeoutbox_now()))
  AND {condition}
GROUP BY kind
ORDER BY kind
"""

# What has not ended and is not due yet, and when the first of it will be. Served by ix_agent_action_open.
_LATER = """
SELECT COUNT(*),
       MIN(CASE WHEN state = 'EXECUTING' THEN lease_expires_at WHEN state = 'ADMITTED' AND is_head = 1 THEN due_at END)
FROM agent_action
WHERE edgeoutbox_open(agent_action)
  AND NOT (state = 'ADMITTED' AND is_head = 1 AND due_at <= edgeoutbox_now())
  AND NOT (state = 'EXECUTING' AND lease_expires_at <= edgeoutbox_now())
"""

_WEATHER = """
SELECT kind, paused_by, cooling_reason FROM agent_action_kind
WHERE paused_by IS NOT NULL OR cooling_until > edgeoutbox_now()
ORDER BY kind
"""


def check_database(url: str, configured: Collection[str] = ()) -> Iterator[Check]:
    """Look at everything, without changing it; stops at what makes the rest impossible.

    `configured` are the kinds that an executor of this configuration would carry out.
    """
    try:
        if is_file(url):
            require_database(url)
        with look_at(url) as look:
            version, readable_from = look.schema()
            require_readable(version, readable_from)
            yield Check("database", ok=True, detail=shown(url))
            readable = f"readable by builds of schema {readable_from} or later"
            yield Check("schema", ok=True, detail=f"version {version}, {readable}")
            if isinstance(look, Look):
                yield from _file(look, driver_of(url))
            else:
                yield _postgres(look)
            yield from _work(look, configured)
    except StorageError as error:
        yield Check("database", ok=False, detail=str(error))


def _postgres(look: "PostgresLook") -> Check:
    mend = f"; {READ_ONLY}" if look.standby else ""
    return Check("postgres", ok=not mend, detail=f"{look.version} through psycopg{mend}")


def _file(look: Look, driver: str) -> Iterator[Check]:
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
    yield _lock(look)


def _work(look: "Look | PostgresLook", configured: Collection[str]) -> Iterator[Check]:
    executors = look.taken(there())
    due = _due(look)
    yield _executors(look, executors, due, configured)
    yield from _unserved(look, executors, due, configured)
    for kind, what in _weather(look).items():
        yield Check(f"kind {kind}", ok=False, detail=f"{what}; {way_on(kind, what)}")


def way_on(kind: str, what: str) -> str:
    """How a kind that starts nothing for this reason goes on."""
    if HELD_BY in what:
        return "its actions are carried out there, and would be sent a second time here"
    return f"go on with: edgeoutbox resume {kind}"


def what_remains(url: str, configured: Collection[str]) -> str:
    """What is due and why it was not carried out, after an executor of these kinds found nothing more to do."""
    with look_at(url) as look:
        due, weather, later = _due(look), _weather(look), _later(look)
    if not due:
        return _nothing_due(later)
    unknown = {kind: "is not configured here" for kind in due if kind not in configured}
    why = {**unknown, **weather}
    reasons = ", ".join(f"{kind} {why.get(kind, 'was not taken: see edgeoutbox why')}" for kind in due)
    remain = f"{sum(due.values())} due remain{'s' if sum(due.values()) == 1 else ''}: {reasons}"
    return f"{remain}; {later}" if later else remain


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


def _lock(look: Look) -> Check:
    try:
        look.try_write_lock(_LOCK_WAIT)
    except DatabaseBusy:
        return Check("lock", ok=False, detail="another program holds the write lock; end its transaction")
    return Check("lock", ok=True, detail="the write lock is free")


def _executors(
    look: "Look | PostgresLook",
    executors: Sequence[ExecutorRecord],
    due: Mapping[str, int],
    configured: Collection[str],
) -> Check:
    """Who is there; what is due counts here if `edgeoutbox run` would carry it out."""
    if executors:
        return Check("executors", ok=True, detail=", ".join(f"{each.owner} ({each.version})" for each in executors))
    waiting = sum(count for kind, count in due.items() if kind in configured)
    if waiting:
        waits = f"none is running, and what is due waits ({waiting})"
        return Check("executors", ok=False, detail=f"{waits}: start edgeoutbox run")
    return Check("executors", ok=True, detail=f"none is running{'' if due else f'; {_nothing_due(_later(look))}'}")


def _unserved(
    look: "Look | PostgresLook",
    executors: Sequence[ExecutorRecord],
    due: Mapping[str, int],
    configured: Collection[str],
) -> Iterator[Check]:
    """What is due of a kind, or of a variant, that nobody carries out."""
    for kind, count in due.items():
        conditions = [executor.kinds[kind] for executor in executors if kind in executor.kinds]
        if conditions:
            unknown = _due(look, f"NOT ({' OR '.join(map(look.condition, conditions))})").get(kind, 0)
            if unknown:
                mend = "check what the payloads name, or start a build that knows it"
                detail = f"{unknown} due, of a variant that no running executor decodes; {mend}"
                yield Check(f"kind {kind}", ok=False, detail=detail)
        elif kind not in configured:
            detail = f"{count} due, and no executor or configuration knows it; add [kinds.{kind}] or withdraw them"
            yield Check(f"kind {kind}", ok=False, detail=detail)
        elif executors:
            detail = f"{count} due, and no running executor serves it; start edgeoutbox run"
            yield Check(f"kind {kind}", ok=False, detail=detail)


def _due(look: "Look | PostgresLook", condition: str = "1 = 1") -> dict[str, int]:
    return {str(kind): int(count) for kind, count in look.rows(_DUE.format(condition=condition))}


def _later(look: "Look | PostgresLook") -> str:
    """How many are unfinished beside what is due, and when the first of them will be due; empty without any."""
    [(count, first)] = look.rows(_LATER)
    at = datetime.fromtimestamp(first / 1000).astimezone().isoformat(" ", "seconds") if first is not None else None
    return f"{count} unfinished{f', the next at {at}' if at else ''}" if count else ""


def _nothing_due(later: str) -> str:
    return f"nothing is due; {later}" if later else "nothing waits"


def _weather(look: "Look | PostgresLook") -> dict[str, str]:
    return {
        str(kind): f"paused by {paused_by}" if paused_by else f"cooling down: {reason}"
        for kind, paused_by, reason in look.rows(_WEATHER)
    }
