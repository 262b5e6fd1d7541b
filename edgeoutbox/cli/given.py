"""What is given on the command line as text: payloads and times."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from edgeoutbox.errors import InvalidRequest
from edgeoutbox.keys import parse_json

_WAIT = re.compile(r"\+(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def payload(given: str) -> dict[str, Any]:
    """The payload of an argument: JSON, `@FILE`, or `-` for standard input. Raises `InvalidRequest`."""
    if given == "-":
        text = sys.stdin.read()
    elif given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"payload: {given[1:]} cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InvalidRequest(f"payload: {given[1:]} is not UTF-8") from None
    else:
        text = given
    found = parse_json(text)
    if not isinstance(found, dict):
        raise InvalidRequest("payload: must be a JSON object")
    return found


def time(given: str | None, field: str) -> datetime | None:
    """A time: ISO 8601 (local time unless it names a zone), or `+10m` from now. Raises `InvalidRequest`."""
    if given is None:
        return None
    wait = _WAIT.fullmatch(given)
    try:
        if wait:
            return datetime.now(UTC) + timedelta(**{_UNITS[wait[2]]: int(wait[1])})
        return datetime.fromisoformat(given).astimezone()
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{field}: write 2026-12-24T18:00, with a zone if not local, or +10m, +2h, +3d") from None
