"""Secrets by reference: `{ env = "SMTP_PASSWORD" }` or `{ file = "smtp-password" }` in place of a text.

They are resolved when an adapter is made, and kept nowhere else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeoutbox.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Secrets:
    """Where references are looked up: the environment, and files below a folder.

    With `required` false a secret that is not there becomes a placeholder: enough to check a payload, not to send.
    """

    environment: Mapping[str, str]
    folder: Path
    required: bool = True

    def resolve(self, value: object, where: str) -> object:
        """A setting with its references replaced. Raises `ConfigurationError` naming the variable or the file."""
        match value:
            case {"env": str(name), **rest} if not rest:
                return self._given(self.environment.get(name), f"{where}: the environment variable {name} is not set")
            case {"file": str(name), **rest} if not rest:
                return self._given(*self._read(name, where))
            case Mapping():
                # A table of tables may well have one that is named like this.
                if any(name in value and not isinstance(value[name], Mapping) for name in ("env", "file")):
                    raise ConfigurationError(f'{where}: a reference is {{ env = "NAME" }} or {{ file = "PATH" }}')
                return {key: self.resolve(item, f"{where}.{key}") for key, item in value.items()}
            case list():
                return [self.resolve(item, where) for item in value]
            case _:
                return value

    def _read(self, name: str, where: str) -> tuple[str | None, str]:
        try:
            return (self.folder / name).read_text(encoding="utf-8").rstrip("\r\n"), f"{where}: the file {name} is empty"
        except OSError as error:
            return None, f"{where}: the file {name} cannot be read ({error.strerror})"
        except UnicodeDecodeError:
            return None, f"{where}: the file {name} is not UTF-8"

    def _given(self, secret: str | None, otherwise: str) -> str:
        if secret:
            return secret
        if self.required:
            raise ConfigurationError(otherwise)
        return "(not here)"


def names_of_variables(value: object) -> Iterator[str]:
    """The environment variables that references in a value name."""
    match value:
        case {"env": str(name), **rest} if not rest:
            yield name
        case Mapping():
            for item in value.values():
                yield from names_of_variables(item)
        case list():
            for item in value:
                yield from names_of_variables(item)
        case _:
            pass
