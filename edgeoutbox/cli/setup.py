"""`init`, `captured` and `doctor`: make it ready, and see whether it is."""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeoutbox.adapter import Adapter, Check
from edgeoutbox.cli.commands import JsonOption, Place, command
from edgeoutbox.cli.copying import said
from edgeoutbox.cli.exits import Exit
from edgeoutbox.cli.output import say, write_json, write_table
from edgeoutbox.cli.template import configuration_text
from edgeoutbox.errors import ConfigurationError, InvalidRequest, NoSchema
from edgeoutbox.outbox import Outbox
from edgeoutbox.sidecar.configuration import (
    CONFIG_VARIABLE,
    DATABASE_VARIABLE,
    DEFAULT_DATABASE,
    FILE_NAME,
    Configuration,
)
from edgeoutbox.sidecar.database import absolute_url, holds_password, is_file, path_of, require_database, shown
from edgeoutbox.sidecar.health import check_database
from edgeoutbox.sidecar.logs import log_to_stderr
from edgeoutbox.sidecar.plugins import SendsTestMessage, adapter_name, list_captured, make_adapters
from edgeoutbox.storage.places import place_of


@command("init", panel="Start", example="edgeoutbox init --dev")
async def init(
    place: Place,
    dev: Annotated[bool, typer.Option("--dev", help="Send nothing: write each message into a folder")] = False,
) -> None:
    """Write a commented edgeoutbox.toml here, and create its database. What is there already is kept."""
    file = Path.cwd() / (place.config or place.environment.get(CONFIG_VARIABLE) or FILE_NAME)
    if file.exists():
        say(f"kept {file.name}, {await _make_database(place.configuration.database)}")
        say(f"next: see that {file.name} is as you want it, then edgeoutbox doctor")
        return
    database = _named_database(place, file)
    made = await _make_database(absolute_url(database, file.parent))
    _write(file, configuration_text(database, capture=dev), mode=0o600 if holds_password(database) else 0o666)
    say(made)
    say(f"wrote {file.name}")
    say("next: edgeoutbox run" if dev else f"next: edit [kinds.email] in {file.name}, then edgeoutbox doctor --email")


def _named_database(place: Place, file: Path) -> str:
    """The database to be named in the file."""
    given = place.database or place.environment.get(DATABASE_VARIABLE)
    if given is None:
        return DEFAULT_DATABASE
    return given if file.parent == Path.cwd() else absolute_url(given, Path.cwd())


async def _make_database(url: str) -> str:
    """Create what is missing of a database, and say what that was."""
    if not is_file(url):
        return f"{shown(url)}: {said(await place_of(url).migrate())}"
    path = path_of(url)
    did = "created"
    if path.exists():
        did = "added the tables to"
        with suppress(NoSchema):
            require_database(url)
            did = "kept"
    async with Outbox(url):
        pass
    return f"{did} {path.name}"


def _write(file: Path, text: str, *, mode: int) -> None:
    """Make the file; `mode` is what it may be at most, as the umask takes away more."""
    try:
        with open(file, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, mode)) as new:
            new.write(text)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written ({error.strerror})") from None


@command("captured", panel="Look", example="edgeoutbox captured")
async def captured(
    place: Place,
    kind: Annotated[str, typer.Option("--kind", help="The kind that captures")] = "email",
    as_json: JsonOption = False,
) -> None:
    """List the messages that were written into a folder instead of sent."""
    configuration = place.configuration
    if kind not in configuration.kinds:
        raise ConfigurationError(f"{configuration.source}: kind {kind} is not configured")
    messages = list_captured(kind, configuration.kinds[kind], configuration.folder)
    rows = [
        (message.action_id, message.recipients, message.subject, message.size, message.path) for message in messages
    ]
    if as_json:
        names = ("action_id", "recipients", "subject", "size", "path")
        write_json([dict(zip(names, (*row[:-1], str(row[-1])), strict=True)) for row in rows])
        return
    columns = ("action", "to", "subject", "bytes", "file")
    write_table(
        columns,
        [(row[0], ", ".join(row[1]), row[2], row[3], _from_here(row[4])) for row in rows],
        none="nothing was captured yet",
        folds=("to", "subject", "file"),
    )


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@command("doctor", panel="Start", example="edgeoutbox doctor --email --to me@example.com")
async def doctor(
    place: Place,
    email: Annotated[bool, typer.Option("--email", help="Only email: connect, negotiate TLS, log in")] = False,
    slack: Annotated[
        bool, typer.Option("--slack", help="Only Slack: token, scopes, and each channel that `channels` names")
    ] = False,
    kind: Annotated[list[str] | None, typer.Option("--kind", help="Only these kinds", show_default=False)] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ADDRESS", help="Also send one test message: to an address, or a channel's id"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look at the database and at every configured provider, and say what is wrong and how to mend it.

    Sends nothing without --to.
    """
    log_to_stderr(level=logging.WARNING)
    configuration = place.configuration
    chosen = _chosen(configuration, kind or (), {"email": email, "slack_post": slack})
    checks = [] if chosen else list(check_database(configuration.database, configuration.kinds))
    try:
        adapters = make_adapters(configuration, place.environment)
    except ConfigurationError as error:
        checks.append(Check("configuration", ok=False, detail=str(error)))
    else:
        wanted = {name: adapter for name, adapter in adapters.items() if not chosen or name in chosen}
        for name, adapter in wanted.items():
            checks += [Check(f"{name}: {check.name}", check.ok, check.detail) for check in await _checked(adapter)]
        if to is not None:
            checks.append(await _sent(wanted, to))
        if not adapters:
            checks.append(_without_kinds(configuration))
    _write_checks(checks, as_json=as_json)
    if not all(check.ok for check in checks):
        raise typer.Exit(Exit.NOT_POSSIBLE)


def _chosen(configuration: Configuration, kinds: Sequence[str], adapters: Mapping[str, bool]) -> set[str]:
    """The kinds that were named, and all kinds of the adapters that were asked for; none of both means everything."""
    chosen = set(kinds)
    for adapter in (name for name, asked in adapters.items() if asked):
        chosen |= {kind for kind, table in configuration.kinds.items() if adapter_name(kind, table) == adapter} or {
            adapter
        }
    for name in sorted(chosen - configuration.kinds.keys()):
        raise ConfigurationError(f"{configuration.source}: kind {name} is not configured")
    return chosen


def _without_kinds(configuration: Configuration) -> Check:
    """Without a file it is an application's database, whose providers are configured there."""
    if configuration.file is None:
        detail = f"there is no {FILE_NAME} here and none was named, so no provider is looked at"
        return Check("kinds", ok=True, detail=detail)
    return Check("kinds", ok=False, detail=f"{configuration.source}: none is configured")


async def _checked(adapter: Adapter[Any]) -> Sequence[Check]:
    try:
        checks = await adapter.check()
    finally:
        await adapter.aclose()
    return [_with_place(check, adapter.destination()) for check in checks]


def _with_place(check: Check, destination: str) -> Check:
    """A relay that cannot be reached is named, to see whether it is the one that was meant."""
    if check.ok or check.name != "relay":
        return check
    return Check(check.name, ok=False, detail=f"{destination}: {check.detail}")


async def _sent(adapters: Mapping[str, Adapter[Any]], to: str) -> Check:
    able = {name: adapter for name, adapter in adapters.items() if isinstance(adapter, SendsTestMessage)}
    if len(able) != 1:
        raise InvalidRequest(
            "--to: name the kind to try with --kind" if able else "--to: no kind can send a test message"
        )
    [(name, adapter)] = able.items()
    check = await adapter.send_test_message(to)
    return Check(f"{name}: {check.name}", check.ok, check.detail)


def _write_checks(checks: Sequence[Check], *, as_json: bool) -> None:
    if as_json:
        found = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]
        write_json({"ok": all(check.ok for check in checks), "checks": found})
        return
    rows = [("ok" if check.ok else "not ok", check.name, check.detail) for check in checks]
    write_table(("", "what", "how it is"), rows, none="nothing was looked at", folds=("how it is",))
