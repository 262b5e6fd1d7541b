"""What every command has in common: where it works, how it fails, how it is registered."""

import asyncio
import inspect
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.markup import escape

from edgeoutbox.cli.exits import MEANINGS, exit_of, message_of
from edgeoutbox.cli.output import say
from edgeoutbox.errors import EdgeoutboxError
from edgeoutbox.keys import refuse_unstorable_text
from edgeoutbox.sidecar.configuration import Configuration, load


class _Command(typer.core.TyperCommand):
    """A command whose help shows no type beside a flag, which takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


class _Group(typer.core.TyperGroup):
    """The same for the options of all commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


def _flags_without_type(options: list[Any]) -> list[Any]:
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


app = typer.Typer(
    cls=_Group,
    name="edgeoutbox",
    help="Effects on the outside world as rows of your own database, carried out as often as was meant.",
    epilog="\n".join(["Exit codes:", *(f"  {code.value}  {meaning}" for code, meaning in MEANINGS.items())]),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, which may be anything
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration [dim](else EDGEOUTBOX_CONFIG, else ./edgeoutbox.toml)[/dim]",
        rich_help_panel="Where",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="The database, a URL or a path [dim](else EDGEOUTBOX_DATABASE, else the configuration's)[/dim]",
        rich_help_panel="Where",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; times are milliseconds since 1970 UTC")]


@dataclass(frozen=True)
class Place:
    """Where a command works: which configuration and database it was told to use."""

    config: Path | None = None
    database: str | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of this process, which settings and secrets come from."""
        return os.environ

    @cached_property
    def configuration(self) -> Configuration:
        """The settings that hold. Raises `ConfigurationError`."""
        return load(self.environment, file=self.config, database=self.database)


def _say_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"edgeoutbox {version('edgeoutbox')}\n")
        raise typer.Exit


@app.callback()
def everywhere(
    context: typer.Context,
    config: ConfigOption = None,
    database: DatabaseOption = None,
    _: Annotated[
        bool, typer.Option("--version", help="Print the version", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Keep the options that were given before the command's name."""
    context.obj = Place(config, database)


Body = Callable[..., Awaitable[None]]


def command(name: str, *, panel: str, example: str) -> Callable[[Body], Body]:
    """Register an async function `(place, ...)` as a command.

    It gets the options `--config` and `--database` as its `place`, and neither when it takes none. An error of ours
    becomes one line on standard error and an exit code.
    """

    def register(body: Body) -> Body:
        def run(context: typer.Context, config: Path | None = None, database: str | None = None, **given: Any) -> None:
            before = context.obj if isinstance(context.obj, Place) else Place()
            place = Place(config or before.config, database or before.database)
            try:
                for option, value in given.items():
                    if isinstance(value, str):
                        refuse_unstorable_text(value, option)
                asyncio.run(_awaited(body(**given, **({"place": place} if placed else {}))))
            except EdgeoutboxError as error:
                say(f"error: {message_of(error)}")
                raise typer.Exit(exit_of(error)) from None

        signature = inspect.signature(body)
        placed = "place" in signature.parameters
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "place"]
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        shared = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)
            for key, annotation in (("config", ConfigOption), ("database", DatabaseOption))
            if placed
        ]
        ordered = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__signature__ = signature.replace(parameters=[context, *ordered, *shared])  # type: ignore[attr-defined] # what Typer reads
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (context, *ordered, *shared)}
        said = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(body) or "")  # wrapped for the terminal, not as it stands
        text = f"{said}\n\n[dim]Example:[/dim] {escape(example)}"
        app.command(name, cls=_Command, help=text, rich_help_panel=panel)(run)
        return body

    return register


async def _awaited(body: Awaitable[None]) -> None:
    await body
