import json
import logging
from collections.abc import Iterator

import pytest

from edgeoutbox import telemetry
from edgeoutbox.sidecar.logs import StandardError, log_to_stderr


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("edgeoutbox")
    levels = root.level, ours.level
    yield
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    for handler in [handler for handler in root.handlers if isinstance(handler, StandardError)]:
        root.removeHandler(handler)


def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """An event is one line, whatever is in it."""
    log_to_stderr()
    telemetry.event(logging.WARNING, "kind.cooling", action_kind="email", reason="two\nlines \x1b[31m")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(r"warning kind.cooling action_kind=email reason=two\nlines \x1b[31m")


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """With JSON an event is an object of its fields, and a plain message one with its text."""
    log_to_stderr(as_json=True)
    telemetry.event(logging.WARNING, "kind.cooling", action_kind="email")
    logging.getLogger("edgeoutbox.run").info("stopped")
    event, message = map(json.loads, capsys.readouterr().err.splitlines())
    assert (event["event"], event["action_kind"], event["level"]) == ("kind.cooling", "email", "warning")
    assert (message["message"], message["logger"]) == ("stopped", "edgeoutbox.run")


def test_exceptions_by_type_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign exception's text, which may hold anything, is not logged."""
    log_to_stderr()
    try:
        int("jane@example.com")
    except ValueError:
        logging.getLogger("edgeoutbox").exception("it failed")
    line = capsys.readouterr().err
    assert "it failed (ValueError)" in line
    assert "jane" not in line
