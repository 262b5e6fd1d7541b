from pathlib import Path

import pytest

from edgeoutbox import ConfigurationError
from edgeoutbox.sidecar import load
from edgeoutbox.sidecar.database import absolute_url
from edgeoutbox.testing.postgres import VARIABLE


def write(folder: Path, text: str) -> Path:
    file = folder / "edgeoutbox.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults(tmp_path: Path) -> None:
    """Without a file or a variable everything has its default, and the database is in the working directory."""
    found = load({}, folder=tmp_path)
    assert found.database == f"sqlite+apsw:///{tmp_path}/edgeoutbox.db"
    assert (found.concurrency, found.grace, dict(found.kinds), found.file) == (64, 10.0, {}, None)


def test_precedence(tmp_path: Path) -> None:
    """A flag wins over the environment, the environment over the file, the file over the default."""
    write(tmp_path, 'database = "sqlite:///file.db"\nconcurrency = 3')
    variables = {"EDGEOUTBOX_DATABASE": "sqlite:///variable.db"}
    assert load({}, folder=tmp_path).database == f"sqlite:///{tmp_path}/file.db"
    assert load(variables, folder=tmp_path).database == f"sqlite:///{tmp_path}/variable.db"
    assert load(variables, folder=tmp_path, database="flag.db").database == f"sqlite+apsw:///{tmp_path}/flag.db"
    assert load(variables, folder=tmp_path).concurrency == 3
    assert load({"EDGEOUTBOX_CONCURRENCY": "7"}, folder=tmp_path).concurrency == 7


def test_environment_changes_a_kind(tmp_path: Path) -> None:
    """A variable sets one setting of a kind and leaves the others as the file has them."""
    write(tmp_path, '[kinds.email]\nsender = "a@example.com"\ndeliver = "send"')
    found = load({"EDGEOUTBOX_KINDS__EMAIL__DELIVER": "capture"}, folder=tmp_path)
    assert dict(found.kinds["email"].settings) == {"sender": "a@example.com", "deliver": "capture"}


def test_file_named_by_variable_and_by_flag(tmp_path: Path) -> None:
    """`EDGEOUTBOX_CONFIG` names the file, and a flag wins over it; paths in a file start from its own folder."""
    for name, concurrency in (("variable", 2), ("flag", 5)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f'concurrency = {concurrency}\ndatabase = "sqlite:///mine.db"')
    variables = {"EDGEOUTBOX_CONFIG": "variable/edgeoutbox.toml"}
    assert load(variables, folder=tmp_path).concurrency == 2
    found = load(variables, folder=tmp_path, file=Path("flag/edgeoutbox.toml"))
    assert (found.concurrency, found.database) == (5, f"sqlite:///{tmp_path}/flag/mine.db")


def test_default_database_stands_beside_the_file(tmp_path: Path) -> None:
    """The same file means the same database from every working directory."""
    (tmp_path / "there").mkdir()
    file = write(tmp_path / "there", "concurrency = 2")
    assert load({}, folder=tmp_path, file=file).database == f"sqlite+apsw:///{tmp_path}/there/edgeoutbox.db"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("concurency = 3", "edgeoutbox.toml: unknown key concurency; did you mean concurrency?"),
        ("concurrency = 0", "edgeoutbox.toml: concurrency: "),
        ("kinds = 3", "edgeoutbox.toml: kinds: "),
        ("concurrency = ", "edgeoutbox.toml: is not TOML: "),
        ('database = "mysql://host/app"', "url: write sqlite:///app.db or sqlite+apsw:///app.db"),
        ('[kinds.email]\npassword = "hunter2"', "edgeoutbox.toml: kinds.email.password: give a secret by reference"),
    ],
)
def test_wrong_file(tmp_path: Path, text: str, said: str) -> None:
    """A wrong setting is named with its file, and its value is not repeated."""
    write(tmp_path, text)
    with pytest.raises(ConfigurationError) as raised:
        load({}, folder=tmp_path)
    assert said in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_missing_file_that_was_asked_for(tmp_path: Path) -> None:
    """A file that was named must be there; only the default one may be missing."""
    with pytest.raises(ConfigurationError, match=r"other\.toml: cannot be read \(No such file"):
        load({}, folder=tmp_path, file=Path("other.toml"))


def test_unknown_variable(tmp_path: Path) -> None:
    """A misspelt variable is an error that names the near one; one of the file or of tests is not."""
    with pytest.raises(
        ConfigurationError, match="unknown variable EDGEOUTBOX_DATABSE; did you mean EDGEOUTBOX_DATABASE"
    ):
        load({"EDGEOUTBOX_DATABSE": "x.db"}, folder=tmp_path)
    write(tmp_path, '[kinds.email]\npassword = { env = "EDGEOUTBOX_SMTP_PASSWORD" }')
    assert "email" in load({"EDGEOUTBOX_SMTP_PASSWORD": "x", VARIABLE: "y"}, folder=tmp_path).kinds


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("app.db", "sqlite+apsw:////srv/app.db"),
        ("/data/app.db", "sqlite+apsw:////data/app.db"),
        ("a b#?.db", "sqlite+apsw:////srv/a%20b%23%3F.db"),
        ("sqlite:///app.db", "sqlite:////srv/app.db"),
        ("sqlite+apsw:////data/app.db", "sqlite+apsw:////data/app.db"),
    ],
)
def test_database_urls(given: str, url: str) -> None:
    """A path or a relative URL becomes an absolute URL, whatever characters are in it, and stays what it is then."""
    assert absolute_url(given, Path("/srv")) == url
    assert absolute_url(url, Path("/elsewhere")) == url
