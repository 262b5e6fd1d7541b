import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from edgeoutbox.cli.app import app

CAPTURE = """
[kinds.email]
sender = "Shop <shop@example.com>"
deliver = "capture"
capture_dir = "captured"
"""

RELAY = """
[kinds.email]
sender = "Shop <shop@example.com>"
relay = "smtp://127.0.0.1:{port}"
security = "plaintext"
"""

SLACK = """
[kinds.{kind}]
adapter = "slack_post"
token = {{ env = "SLACK_TOKEN" }}
base_url = "{base_url}"
channels = ["C0GENERAL"]
"""


def message(subject: str = "Thanks", to: str = "jane@example.com") -> str:
    """The payload of a literal email."""
    return json.dumps({"notice": "message", "to": to, "subject": subject, "text": "Paid."})


@dataclass
class Terminal:
    """The command line in a folder of its own. Whatever a command does, it leaves no traceback."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, exit_code: int = 0, typed: str | None = None) -> str:
        """Run in this process; returns standard output. Standard error is in `said`."""
        result = CliRunner().invoke(app, arguments, input=typed, env=self.environment)
        self.said = result.stderr
        assert result.exit_code == exit_code, f"{arguments}: {result.exit_code}\n{result.stdout}{result.stderr}"
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """Run with `--json` and read what was printed."""
        return json.loads(self.run(*arguments, "--json"))

    def configure(self, text: str = CAPTURE) -> None:
        """Create the database, and write the configuration."""
        if not (self.folder / "edgeoutbox.db").exists():
            self.run("init", "--dev")
        (self.folder / "edgeoutbox.toml").write_text(text, encoding="utf-8")

    def configure_relay(self, port: int, more: str = "") -> None:
        """The same, with a relay on this machine."""
        self.configure(RELAY.format(port=port) + more)

    def process(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run in a process of its own, to its end."""
        return subprocess.run(  # noqa: PLW1510, S603 - our own program; the caller looks at the exit code
            [sys.executable, "-m", "edgeoutbox", *arguments],
            cwd=self.folder,
            env=clean(os.environ) | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without settings of ours."""
    return {name: value for name, value in environment.items() if not name.startswith("EDGEOUTBOX_")}
