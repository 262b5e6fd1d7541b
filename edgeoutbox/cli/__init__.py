"""The command line: `edgeoutbox`, or `python -m edgeoutbox`.

One room for each group of commands. `commands` is what they share (options, errors, exit codes by `exits`), `opening`
opens the database for them, `output` prints for people and for programs.
"""


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    from edgeoutbox.cli.app import app  # noqa: PLC0415 - an import of one room does not pay for all of them

    app()
