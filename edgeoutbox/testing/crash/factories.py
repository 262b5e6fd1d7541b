"""How one process tells another which callable to use: by its module, or by the file that it stands in."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edgeoutbox.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Reference:
    """A callable at the top of a module, or in a class there."""

    module: str
    file: str
    name: str

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> "Reference":
        """The reference to a callable. Raises `ConfigurationError` when another process could not find it."""
        name = getattr(factory, "__qualname__", "")
        module = getattr(factory, "__module__", "")
        try:
            file = inspect.getsourcefile(inspect.unwrap(factory))
        except TypeError:
            file = None
        if not name or "<" in name or file is None:
            raise ConfigurationError(
                f"{name or factory!r}: the program that is killed must find it; give a class or function that stands "
                "at the top of a file, and its arguments"
            )
        return cls(module, str(Path(file).absolute()), name)

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """`package.module:name` or `path/to/file.py:name`. Raises `ConfigurationError`."""
        where, colon, name = text.rpartition(":")
        if not colon or not where or not name:
            raise ConfigurationError(f"{text}: name a callable as package.module:name or path/to/file.py:name")
        if where.endswith(".py"):
            return cls(Path(where).stem, str(Path(where).absolute()), name)
        return cls(where, "", name)

    def load(self) -> Any:
        """Import it. What its module raises rises; `ConfigurationError` when the module has no such name."""
        found: Any = self._module()
        for part in self.name.split("."):
            if not hasattr(found, part):
                raise ConfigurationError(f"{self.module}:{self.name}: there is no {part} in {self.file or self.module}")
            found = getattr(found, part)
        return found

    def _module(self) -> ModuleType:
        if not self.file or self._importable():
            return importlib.import_module(self.module)
        if not Path(self.file).is_file():
            raise ConfigurationError(f"{self.file}: there is no such file")
        # A test file is usually no module that can be imported by its name.
        spec = importlib.util.spec_from_file_location(self.module, self.file)
        if spec is None or spec.loader is None:
            raise ConfigurationError(f"{self.file}: this is no file of Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module] = module
        spec.loader.exec_module(module)
        return module

    def _importable(self) -> bool:
        try:
            spec = importlib.util.find_spec(self.module)
        except (ImportError, ValueError):
            return False
        return spec is not None and spec.origin is not None and Path(spec.origin).absolute() == Path(self.file)
