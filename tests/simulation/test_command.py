import json

import pytest

from edgeoutbox.storage.sqlite import claiming
from edgeoutbox.testing.simulate import main


def test_seeds_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and how much was simulated on standard error."""
    assert main(["--seeds", "5", "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("5 seeds, ")


def test_seeds_over_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Processes share the seeds, and each is run once."""
    assert main(["--seeds", "120", "--from", "40", "--jobs", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seeds"], told["failures"]) == (120, [])
    assert told["simulated_minutes"] > 120


def test_a_failure_names_the_command_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1; what is printed last replays the same failure."""
    monkeypatch.setattr(claiming, "BEGIN_WRITE", "SELECT ?")
    assert main(["--seeds", "3", "--jobs", "1"]) == 1
    replay = capsys.readouterr().out.strip().splitlines()[-1]
    assert replay.startswith("replay: python -m edgeoutbox.testing.simulate --seed ")
    arguments = replay.partition("simulate ")[2].split()
    assert main([*arguments, "--json"]) == 1
    [failure] = json.loads(capsys.readouterr().out)["failures"]
    assert failure["promise"] == "p7_no_call_without_its_stored_fence"
    assert failure["replay"].split()[3:] == arguments


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a sentence."""
    with pytest.raises(SystemExit) as refused:
        main(["--seeds", "0"])
    assert refused.value.code == 2
    assert "must be at least 1" in capsys.readouterr().err
