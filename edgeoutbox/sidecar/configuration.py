"""Settings: a flag, then `EDGEOUTBOX_*`, then `edgeoutbox.toml`, then the default.

A name that is not known is an error, wherever it stands: a setting that is misspelt must not silently be the default.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.model import validation_message
from edgeoutbox.sidecar.database import absolute_url
from edgeoutbox.sidecar.references import names_of_variables

FILE_NAME = "edgeoutbox.toml"
DEFAULT_DATABASE = "sqlite+apsw:///edgeoutbox.db"

PREFIX = "EDGEOUTBOX_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
DATABASE_VARIABLE = f"{PREFIX}DATABASE"
_KINDS = f"{PREFIX}KINDS__"
_TESTS = f"{PREFIX}TEST_"  # what only tests read, such as the server that they use

_PATHS = ("_dir", "_file", "_path")
_SECRET_NAMES = ("password", "token", "secret", "secrets", "api_key")


class KindTable(BaseModel):
    """The table `[kinds.NAME]`: which adapter carries the kind out, and that adapter's own settings.

    `adapter` names an entry point of the group `edgeoutbox.adapters`; left out, it is the one named like the kind.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    adapter: Annotated[str, Field(min_length=1)] | None = None

    @property
    def settings(self) -> Mapping[str, object]:
        """The adapter's own settings, with secrets still as references."""
        return self.model_extra or {}


class Settings(BaseModel):
    """What may stand in the file, and in `EDGEOUTBOX_*` under the same name in capitals.

    `concurrency` bounds the attempts that run at once; `grace` is how many seconds they may finish in when the
    process is told to stop.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    database: Annotated[str, Field(min_length=1)] = DEFAULT_DATABASE
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    grace: Annotated[float, Field(ge=0, le=3600)] = 10.0
    kinds: dict[str, KindTable] = Field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings that hold, and the folder that relative paths in them start from.

    `database` is a URL with an absolute path. `file` is the configuration file, when there is one. Nothing in here is
    a secret: those are references until an adapter is made.
    """

    database: str
    concurrency: int
    grace: float
    folder: Path
    file: Path | None = None
    kinds: Mapping[str, KindTable] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """The file's name, for messages."""
        return str(self.file or "the configuration")


def load(
    environment: Mapping[str, str], *, file: Path | None = None, database: str | None = None, folder: Path | None = None
) -> Configuration:
    """Read the configuration; `file` and `database` are flags and win.

    Without a `file`, `EDGEOUTBOX_CONFIG` names it, else it is `edgeoutbox.toml` in `folder` (the working directory),
    which may be missing. Raises `ConfigurationError` naming the file or variable and the key, never a value.
    """
    folder = (folder or Path.cwd()).absolute()
    named = file or _path(environment.get(CONFIG_VARIABLE))
    found = named or (folder / FILE_NAME if (folder / FILE_NAME).is_file() else None)
    path = None if found is None else folder / found
    table = {} if path is None else _read(path)
    base = folder if path is None else path.parent
    of_file = _checked(table, str(found))
    _refuse_literal_secrets(of_file.kinds, str(found))
    table["database"] = absolute_url(of_file.database, base)
    _refuse_unknown(environment, names_of_variables(table))
    merged = _checked({**table, **_of_environment(environment, table, folder)}, "the environment")
    chosen = absolute_url(database or merged.database, folder)
    return Configuration(chosen, merged.concurrency, merged.grace, base, path, merged.kinds)


def anchored(name: str, value: object, folder: Path) -> object:
    """A kind's setting, made absolute when its name says that it is a path."""
    if isinstance(value, str) and (name.endswith(_PATHS) or name == "cafile"):
        return str(folder / value)
    return value


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); name another with --config") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None


def _checked(table: Mapping[str, Any], source: str) -> Settings:
    try:
        return Settings.model_validate(dict(table))
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            if item["type"] == "extra_forbidden":
                name = str(item["loc"][0])
                raise ConfigurationError(f"{source}: unknown key {name}{_near(name, Settings.model_fields)}") from None
        raise ConfigurationError(f"{source}: {validation_message(error)}") from None


def _of_environment(environment: Mapping[str, str], table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings that the environment gives, on top of the kinds of the file."""
    given: dict[str, Any] = {
        name: environment[PREFIX + name.upper()]
        for name in Settings.model_fields
        if name != "kinds" and PREFIX + name.upper() in environment
    }
    kinds = {name: dict(settings) for name, settings in table.get("kinds", {}).items()}
    for variable, value in environment.items():
        if variable.startswith(_KINDS):
            kind, _, setting = variable.removeprefix(_KINDS).lower().partition("__")
            if not kind or not setting:
                raise ConfigurationError(f"{variable}: write {_KINDS}KIND__SETTING")
            kinds.setdefault(kind, {})[setting] = anchored(setting, value, folder)
    return {**given, "kinds": kinds}


def _refuse_unknown(environment: Mapping[str, str], referenced: Iterable[str]) -> None:
    """Refuse `EDGEOUTBOX_*` variables that mean nothing, unless the file names them as a secret."""
    known = {CONFIG_VARIABLE, *(PREFIX + name.upper() for name in Settings.model_fields if name != "kinds")}
    for variable in environment:
        ours = variable.startswith(PREFIX) and not variable.startswith((_KINDS, _TESTS))
        if ours and variable not in known | {*referenced}:
            raise ConfigurationError(f"the environment: unknown variable {variable}{_near(variable, known)}")


def _refuse_literal_secrets(kinds: Mapping[str, KindTable], source: str) -> None:
    for kind, table in kinds.items():
        for name in _literal_secrets(table.settings):
            raise ConfigurationError(
                f'{source}: kinds.{kind}.{name}: give a secret by reference, {{ env = "NAME" }} or '
                '{ file = "PATH" }, so that the file holds none'
            )


def _literal_secrets(settings: Mapping[str, object]) -> Iterator[str]:
    """The settings that stand there as text and are secrets by their names, in tables of tables too."""
    for name, value in settings.items():
        texts = value if isinstance(value, list) else [value]
        if name.endswith(_SECRET_NAMES) and any(isinstance(text, str) for text in texts):
            yield name
        elif isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _literal_secrets(value))


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
