import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeoutbox import ConfigurationError
from edgeoutbox.adapter import Adapter
from edgeoutbox.sidecar import Configuration, load, make_adapters, plugins
from edgeoutbox.sidecar.plugins import list_captured


def configured(folder: Path, table: str) -> Configuration:
    (folder / "edgeoutbox.toml").write_text(table, encoding="utf-8")
    return load({}, folder=folder)


def made(folder: Path, table: str, environment: Mapping[str, str], **options: bool) -> dict[str, Adapter[Any]]:
    return make_adapters(configured(folder, table), environment, **options)


def test_adapter_of_the_kinds_name(tmp_path: Path) -> None:
    """A kind is carried out by the entry point of its name, as its table says."""
    adapters = made(tmp_path, '[kinds.email]\nsender = "a@example.com"\nrelay = "smtp://relay.test"\nlease = 90', {})
    assert (adapters["email"].kind.name, adapters["email"].kind.lease) == ("email", 90.0)


def test_adapter_by_name(tmp_path: Path) -> None:
    """Another name of a kind names its adapter."""
    table = '[kinds.newsletter]\nadapter = "email"\nsender = "a@example.com"\nrelay = "smtp://relay.test"'
    assert made(tmp_path, table, {})["newsletter"].kind.name == "newsletter"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[kinds.emial]", r"edgeoutbox\.toml: kind emial: no adapter emial is installed; did you mean email\?"),
        (
            "[kinds.fax]",
            'no adapter fax is installed; installed are: .*email, .*; .* add .* the table: adapter = "email"$',
        ),
        ('[kinds.fax]\nadapter = "pigeon"', "no adapter pigeon is installed; installed are: [^;]*$"),
        ('[kinds.email]\nsender = "a@example.com"\nrealy = "x"', r"edgeoutbox\.toml: kind email: realy: "),
        (
            '[kinds.email]\nsender = "a@example.com"\nrelay = "smtp://me@relay.test"\npassword = { env = "PW" }',
            r"edgeoutbox\.toml: kind email: password: the environment variable PW is not set",
        ),
    ],
)
def test_wrong_kind(tmp_path: Path, table: str, said: str) -> None:
    """A kind that cannot be made is named with the file and the setting."""
    with pytest.raises(ConfigurationError, match=said):
        made(tmp_path, table, {})


class Offered:
    """An entry point of a third party, whose `configure` does as the test says."""

    def __init__(self, configure: Callable[[str, Mapping[str, Any]], object]) -> None:
        self.name = "sms"
        self.configure = configure

    def load(self) -> "Offered":
        """It offers itself."""
        return self


@pytest.mark.parametrize(
    ("configure", "said"),
    [
        (lambda _, settings: settings["url"], "configure raised KeyError (url); check the settings"),
        (lambda _, settings: {}[settings["token"]], "configure raised KeyError; check the settings"),
        (lambda _, settings: int(settings["token"]), "configure raised ValueError; check the settings"),
        (lambda *_: None, "configure returned no adapter (NoneType); tell the adapter's author"),
    ],
)
def test_errors_of_a_third_party(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configure: Callable[[str, Mapping[str, Any]], object],
    said: str,
) -> None:
    """What else than `ConfigurationError` a `configure` raises is named, with the kind, and shows no value."""
    monkeypatch.setattr(plugins, "entry_points", lambda group: [Offered(configure)])  # noqa: ARG005 - its name is given
    with pytest.raises(ConfigurationError) as refused:
        made(tmp_path, '[kinds.sms]\ntoken = { env = "PW" }', {"PW": "hunter2"})
    assert f"edgeoutbox.toml: kind sms: {said}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_secret_is_never_shown(tmp_path: Path) -> None:
    """A secret reaches the adapter, and stands in no text of configuration or adapter."""
    table = '[kinds.email]\nsender = "a@example.com"\nrelay = "smtp://me@relay.test"\npassword = { env = "PW" }'
    configuration = configured(tmp_path, table)
    adapter = make_adapters(configuration, {"PW": "hunter2"})["email"]
    assert "hunter2" in adapter.settings()
    shown = f"{configuration!r} {adapter!r} {adapter.kind!r} {adapter.destination()}"
    assert "hunter2" not in shown


def test_destination_shows_no_user(tmp_path: Path) -> None:
    """Where a kind delivers to is shown as host, port and protection, and without the user."""
    table = '[kinds.email]\nsender = "a@example.com"\nrelay = "smtp://me@relay.test:2525"\npassword = { env = "PW" }'
    configuration = configured(tmp_path, table)
    shown = make_adapters(configuration, {"PW": "hunter2"})["email"].destination()
    assert shown.startswith("relay relay.test:2525 (")
    assert "me" not in shown


def test_paths_start_from_the_files_folder(tmp_path: Path) -> None:
    """A relative path in the file is relative to the file, wherever the program runs."""
    table = '[kinds.email]\nsender = "a@example.com"\ndeliver = "capture"\ncapture_dir = "mail"'
    configuration = configured(tmp_path, table)
    assert str(tmp_path / "mail") in make_adapters(configuration, {})["email"].settings()
    assert list_captured("email", configuration.kinds["email"], tmp_path) == []


def test_the_package_imports_no_adapter() -> None:
    """Reading the configuration module brings in no adapter: they come with their entry points."""
    theirs = ("edgeoutbox_", "aiosmtplib", "slack_sdk", "aiohttp")
    program = f"import sys, edgeoutbox.cli.app; print([name for name in sys.modules if name.startswith({theirs})])"
    found = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
