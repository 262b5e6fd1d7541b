"""`run`: the sidecar."""

import logging
from typing import Annotated

import typer

from edgeoutbox.cli.commands import Place, command
from edgeoutbox.cli.exits import Exit
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.sidecar.database import refuse_folder
from edgeoutbox.sidecar.logs import log_to_stderr
from edgeoutbox.sidecar.plugins import make_adapters
from edgeoutbox.sidecar.service import serve


@command("run", panel="Start", example="edgeoutbox run --config /etc/edgeoutbox.toml")
async def run(
    place: Place,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is due any more")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON objects, one a line")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more")] = False,
) -> None:
    """Carry out what is in the database, until SIGTERM or SIGINT.

    The first signal lets running attempts finish, the second cancels them. Logs go to standard error.
    """
    log_to_stderr(level=logging.DEBUG if verbose else logging.INFO, as_json=log_json)
    configuration = place.configuration
    if not configuration.kinds:
        raise ConfigurationError(
            f"{configuration.source}: no kind is configured, so nothing could be carried out; add a table "
            "[kinds.email], or write an example with: edgeoutbox init"
        )
    refuse_folder(configuration.database)
    adapters = make_adapters(configuration, place.environment)
    if not await serve(configuration, adapters, until_idle=until_idle):
        raise typer.Exit(Exit.HURRIED)
