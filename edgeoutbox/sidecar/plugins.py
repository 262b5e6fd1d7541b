"""Adapters are found by their entry points, in the group `edgeoutbox.adapters`; this package imports none of them.

What an entry point names must offer `ConfigurableAdapter`. The other protocols here are optional: whoever offers one
gets the command that uses it.
"""

import importlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from edgeoutbox.adapter import Adapter, Check
from edgeoutbox.errors import ConfigurationError
from edgeoutbox.kinds import Kind
from edgeoutbox.sidecar.configuration import Configuration, KindTable, anchored
from edgeoutbox.sidecar.references import Secrets

GROUP = "edgeoutbox.adapters"


class ConfigurableAdapter(Protocol):
    """What an entry point of the group `edgeoutbox.adapters` names: usually the adapter's class."""

    def configure(self, kind_name: str, settings: Mapping[str, object]) -> Adapter[Any]:
        """The adapter of the kind (a class method when this is a class), as its table in the configuration says.

        `settings` is the table without `adapter`. References to secrets are resolved, and relative paths, in settings
        whose names end in `_dir`, `_file` or `_path` and in `cafile`, start from the file's folder. Settings from the
        environment are texts. Raises `ConfigurationError` naming the setting, never its value; an unknown setting is
        an error. Opens no connection.
        """


@runtime_checkable
class SendsTestMessage(Protocol):
    """Optional: an adapter that `doctor --to` can try out."""

    async def send_test_message(self, to: str) -> Check:
        """Send one short message, without an action, and say what became of it."""


class Captured(Protocol):
    """One message that was captured instead of sent."""

    @property
    def path(self) -> Path:
        """The file that it is in."""

    @property
    def action_id(self) -> int:
        """The action that it belongs to."""

    @property
    def recipients(self) -> Sequence[str]:
        """Whom it would have reached."""

    @property
    def subject(self) -> str:
        """What it is about."""

    @property
    def size(self) -> int:
        """Bytes."""


@runtime_checkable
class ListsCaptured(Protocol):
    """Optional: the module of an entry point that can read back what its adapter wrote into `capture_dir`."""

    def captured(self, folder: Path) -> Sequence[Captured]:
        """The captured messages of a folder, in the order of their actions."""


def make_adapters(
    configuration: Configuration, environment: Mapping[str, str], *, secrets_required: bool = True
) -> dict[str, Adapter[Any]]:
    """The adapter of every configured kind, by kind. Raises `ConfigurationError` naming the file and the kind.

    With `secrets_required` false, a secret that is not there becomes a placeholder, for commands that never send.
    """
    secrets = Secrets(environment, configuration.folder, secrets_required)
    return {kind: _made(kind, table, secrets, configuration) for kind, table in configuration.kinds.items()}


def list_captured(kind: str, table: KindTable, folder: Path) -> Sequence[Captured]:
    """What the adapter of a kind captured. Raises `ConfigurationError` when it captures nothing."""
    where = table.settings.get("capture_dir")
    if not isinstance(where, str):
        raise ConfigurationError(f"kind {kind}: has no capture_dir, so nothing of it was captured")
    module = importlib.import_module(_entry_point(kind, table).module)
    if not isinstance(module, ListsCaptured):
        raise ConfigurationError(f"kind {kind}: its adapter cannot list what it captured")
    found: Sequence[Captured] = module.captured(folder / where)
    return found


def find_server(adapter: str) -> str:
    """The module that runs as a provider on this machine: `testing` in the package of an adapter's entry point.

    As a program it prints one JSON line about itself once it listens. Raises `ConfigurationError` when no such adapter
    is installed.
    """
    package = _entry_point(adapter, KindTable()).module.partition(".")[0]
    return f"{package}.testing"


def adapter_name(kind: str, table: KindTable) -> str:
    """The name of the entry point that carries a kind out."""
    return table.adapter or kind


def _made(kind: str, table: KindTable, secrets: Secrets, configuration: Configuration) -> Adapter[Any]:
    try:
        entry_point = _entry_point(kind, table)
        settings = {
            name: anchored(name, secrets.resolve(value, f"kind {kind}: {name}"), configuration.folder)
            for name, value in table.settings.items()
        }
        adapter = _configured(_loaded(entry_point), kind, settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{configuration.source}: {error}") from None
    if adapter.kind.name != kind:
        raise ConfigurationError(
            f"kind {kind}: the adapter {entry_point.name} carries out {adapter.kind.name} and takes no other name"
        )
    return adapter


def _configured(offered: ConfigurableAdapter, kind: str, settings: Mapping[str, object]) -> Adapter[Any]:
    """What `configure` makes of the settings; an error of any other kind than it may raise is reported as its own."""
    try:
        adapter = offered.configure(kind, settings)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a third party's code raises; its text may hold a secret
        raise ConfigurationError(
            f"kind {kind}: configure raised {type(error).__name__}{_missing(error, settings)}; "
            "check the settings of the kind, or tell the adapter's author"
        ) from None
    if not isinstance(getattr(adapter, "kind", None), Kind):
        raise ConfigurationError(
            f"kind {kind}: configure returned no adapter ({type(adapter).__name__}); tell the adapter's author"
        )
    return adapter


def _missing(error: Exception, settings: Mapping[str, object]) -> str:
    """The name of a setting that was looked up and is not there; a text that stands in the settings is not shown."""
    name = error.args[0] if isinstance(error, KeyError) and error.args else None
    return f" ({name})" if isinstance(name, str) and name.isidentifier() and name not in repr(settings) else ""


def _entry_point(kind: str, table: KindTable) -> EntryPoint:
    known = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
    name = adapter_name(kind, table)
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"installed are: {', '.join(sorted(known)) or 'none'}"
        if known and not near and table.adapter is None:
            example = "email" if "email" in known else min(known)
            hint += f'; to carry the kind out by one of these, add its name to the table: adapter = "{example}"'
        raise ConfigurationError(f"kind {kind}: no adapter {name} is installed; {hint}")
    return known[name]


def _loaded(entry_point: EntryPoint) -> ConfigurableAdapter:
    try:
        offered = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"adapter {entry_point.name}: cannot be imported ({error})") from None
    if not hasattr(offered, "configure"):
        raise ConfigurationError(f"adapter {entry_point.name}: offers no `configure`")
    return cast("ConfigurableAdapter", offered)
