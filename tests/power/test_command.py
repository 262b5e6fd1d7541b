"""The command: what it prints lives that very life again, and what it cannot do it refuses."""

import sys

import pytest

from edgeoutbox.testing.disk import SLOW
from tests.power import faults
from tests.power.__main__ import main
from tests.power.life import Life


def test_a_broken_life_is_lived_again_by_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Tampered with as before."""
    assert main(["--synchronous", "OFF", "--cuts", "40"]) == 1
    told, again = capsys.readouterr().out.strip().splitlines()[-2:]
    assert main(again.removeprefix("again: python -m tests.power ").split()) == 1
    assert told in capsys.readouterr().out


def test_with_faults_the_printed_command_lives_with_faults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other lives of the same seeds are other lives."""
    monkeypatch.setattr(Life, "look", lambda self, **_: self.broken.append("seen"))
    assert main(["--faults", "--first", "3", "--cuts", "2"]) == 1
    assert capsys.readouterr().out.endswith("again: python -m tests.power --faults --seed 3\n")


def test_only_troubles_that_came_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what was planned for calls that the life did not make."""
    monkeypatch.setattr(faults, "TROUBLES", ((SLOW, "delete"),))
    monkeypatch.setattr(faults, "ordinary", lambda: dict.fromkeys(faults.CALLS, sys.maxsize))
    assert main(["--faults", "--cuts", "1", "--first", "5"]) == 0
    assert capsys.readouterr().out.startswith("1 lives, 0 troubles, ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--cuts 0", "must be at least 1"),
        ("--faults --synchronous NORMAL", "a life with --faults is not tampered with"),
        ("--seed 3 --cuts 5", "--seed is one life"),
        ("--seed 3 --first 5", "--seed is one life"),
    ],
)
def test_what_it_cannot_do_is_refused(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    """Exit code 2 and a sentence, before anything is lived."""
    with pytest.raises(SystemExit) as refused:
        main(arguments.split())
    assert refused.value.code == 2
    assert words in capsys.readouterr().err
