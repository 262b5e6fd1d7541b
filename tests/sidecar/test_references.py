from pathlib import Path

import pytest

from edgeoutbox import ConfigurationError
from edgeoutbox.sidecar.references import Secrets, names_of_variables


def test_resolves_variables_and_files(tmp_path: Path) -> None:
    """A reference becomes the secret, a file's without its last line end; everything else stays."""
    (tmp_path / "secret").write_text("from file\n", encoding="utf-8")
    secrets = Secrets({"NAME": "from variable"}, tmp_path)
    settings = {"a": {"env": "NAME"}, "b": {"file": "secret"}, "c": [{"env": "NAME"}, 3], "d": {"e": "text"}}
    resolved = secrets.resolve(settings, "kind x")
    assert resolved == {"a": "from variable", "b": "from file", "c": ["from variable", 3], "d": {"e": "text"}}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"env": "MISSING"}, "password: the environment variable MISSING is not set"),
        ({"env": "EMPTY"}, "password: the environment variable EMPTY is not set"),
        ({"file": "missing"}, r"password: the file missing cannot be read \(No such file"),
        ({"file": "empty"}, "password: the file empty is empty"),
        ({"env": 5}, "password: a reference is"),
        ({"env": "A", "file": "b"}, "password: a reference is"),
    ],
)
def test_missing_secret(tmp_path: Path, reference: dict[str, object], said: str) -> None:
    """A secret that is not there is an error that names the setting and the variable or file."""
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said):
        Secrets({"EMPTY": ""}, tmp_path).resolve(reference, "password")


def test_secrets_that_are_not_required(tmp_path: Path) -> None:
    """Whoever only checks payloads gets a placeholder for a secret that is not there."""
    assert Secrets({}, tmp_path, required=False).resolve({"env": "MISSING"}, "password") == "(not here)"


def test_names_of_variables() -> None:
    """The variables that a configuration refers to are found at every depth."""
    assert list(names_of_variables({"a": {"env": "ONE"}, "b": [{"c": {"env": "TWO"}}], "d": {"file": "x"}})) == [
        "ONE",
        "TWO",
    ]
