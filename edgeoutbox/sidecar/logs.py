"""What is logged, one line each on standard error: as text, or as JSON for machines."""

import json
import logging
import sys
from datetime import UTC, datetime

_FIELD = "event_"


class TextLines(logging.Formatter):
    """A line for people: local time, level, message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; what would break it, or act on a terminal, is escaped."""
        moment = datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")
        return f"{moment} {record.levelname.lower()} {_one_line(record.getMessage())}{_error(record)}"


class JsonLines(logging.Formatter):
    """A JSON object: `time` (UTC, ISO 8601), `level`, `event` when there is one with its fields, else `message`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": moment, "level": record.levelname.lower(), "logger": record.name}
        event = getattr(record, "event", None)
        if event is None:
            line["message"] = record.getMessage() + _error(record)
        else:
            line["event"] = event
            fields = {name: value for name, value in vars(record).items() if name.startswith(_FIELD)}
            line |= {name.removeprefix(_FIELD): value for name, value in fields.items()}
        return json.dumps(line, default=str)


class StandardError(logging.Handler):
    """Writes to whatever standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - what cannot be logged must not end what it is about
            self.handleError(record)


def log_to_stderr(*, level: int = logging.INFO, as_json: bool = False) -> None:
    """Send every log line of this process to standard error; other libraries' only from warnings on."""
    handler = StandardError()
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, StandardError):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("edgeoutbox").setLevel(level)


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _error(record: logging.LogRecord) -> str:
    # The type alone: messages of foreign exceptions may hold what must not be logged.
    error = record.exc_info[1] if record.exc_info else None
    return f" ({type(error).__name__})" if error is not None else ""
