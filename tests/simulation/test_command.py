import json
from types import SimpleNamespace

import pytest

from edgeoutbox.storage.sqlite import claiming
from edgeoutbox.testing.simulate import main
from edgeoutbox.testing.simulation import Model


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
    monkeypatch.setattr(claiming, "BEGIN_WRITE", "SELECT ?, ?")
    assert main(["--seeds", "3", "--jobs", "1"]) == 1
    replay = capsys.readouterr().out.strip().splitlines()[-1]
    assert replay.startswith("replay: python -m edgeoutbox.testing.simulate --seed ")
    arguments = replay.partition("simulate ")[2].split()
    assert main([*arguments, "--json"]) == 1
    [failure] = json.loads(capsys.readouterr().out)["failures"]
    assert failure["promise"] == "p7_no_call_without_its_stored_fence"
    assert failure["replay"].split()[3:] == arguments


def test_a_failure_that_needs_no_event_is_replayed_without_any(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong as executors start is shrunk to nothing, and the command says so."""
    monkeypatch.setattr(Model, "waiting", lambda *_: [SimpleNamespace(id=1, kind="letter", state="ADMITTED")])
    assert main(["--seed", "0", "--shrink"]) == 1
    replay = capsys.readouterr().out.strip().splitlines()[-1]
    assert replay.endswith("--seed 0 --only none")
    assert main([*replay.partition("simulate ")[2].split(), "--json"]) == 1
    [failure] = json.loads(capsys.readouterr().out)["failures"]
    assert failure["promise"] == "liveness"
    assert replay == f"replay: {failure['replay']}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--seeds 0", "must be at least 1"),
        ("--seed 1 --only abc", "'abc' is no list of events"),
        ("--seed 1 --only 0,999", "and no 999"),
        ("--seeds 1 --only 3", "--only goes with --seed"),
        ("--seeds 1 --shrink", "--shrink goes with --seed"),
        ("--seed 1 --from 3", "--from goes with --seeds"),
        ("--seed 1 --jobs 3", "--jobs goes with --seeds"),
    ],
)
def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    """Exit code 2 and a sentence, and nothing is run."""
    with pytest.raises(SystemExit) as refused:
        main(arguments.split())
    assert refused.value.code == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""
