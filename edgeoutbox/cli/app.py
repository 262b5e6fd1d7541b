"""Every command, and their order in the help."""

from edgeoutbox.cli import copying, deciding, enqueueing, kinds, privacy, reading, running, setup
from edgeoutbox.cli.commands import app
from edgeoutbox.cli.demo import command as demo

_ORDER = (
    *("demo", "init", "run", "doctor", "migrate", "copy"),
    *("enqueue", "propose"),
    *("list", "show", "why", "lane", "backlog", "captured"),
    *("admit", "refuse", "withdraw"),
    *("pause", "resume", "kind"),
    *("erase", "forget", "sweep"),
)

app.registered_commands.sort(key=lambda command: _ORDER.index(command.name or ""))

__all__ = ["app", "copying", "deciding", "demo", "enqueueing", "kinds", "privacy", "reading", "running", "setup"]
