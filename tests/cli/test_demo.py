import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeoutbox.cli.demo.figures import Figures, Sent, figures
from edgeoutbox.cli.demo.stage import Stage
from edgeoutbox.states import State
from tests.cli.terminal import Terminal, clean

D, U = State.DONE, State.UNCERTAIN


def counted(states: list[State], arrivals: list[int]) -> Figures:
    """The figures of actions in one lane, whose messages arrived in this order."""
    actions = [Sent(number + 1, f"demo:{number}", "lane", state) for number, state in enumerate(states)]
    return figures(actions, [f"demo-{number}@demo.example" for number in arrivals], kills=1, seconds=1.234)


def test_everything_sent_once() -> None:
    """Every message once and in order is good, and so is an honest uncertain, arrived or not."""
    found = counted([D, U, U, D], [0, 1, 3])
    assert found == Figures(4, 2, 2, 1, 0, 0, 0, 1, 1.23)
    assert found.good


@pytest.mark.parametrize(
    ("states", "arrivals", "wrong"),
    [
        ([D, D], [0, 1, 1], {"duplicates": 1}),
        ([D, U], [0, 1, 1, 1], {"duplicates": 2}),
        ([D, D], [0], {"lost": 1}),
        ([D, State.ADMITTED], [0], {"lost": 1}),
        ([D, State.EXECUTING], [0, 1], {"lost": 1}),
        ([D, D, D], [0, 2, 1], {"out_of_order": 1}),
        ([D, D, D], [2, 1, 0], {"out_of_order": 2}),
    ],
)
def test_what_went_wrong_is_counted(states: list[State], arrivals: list[int], wrong: dict[str, int]) -> None:
    """A message that came twice, never or too early is found, and is not good."""
    found = counted(states, arrivals)
    assert {name: getattr(found, name) for name in ("duplicates", "lost", "out_of_order")} == {
        "duplicates": 0,
        "lost": 0,
        "out_of_order": 0,
        **wrong,
    }
    assert not found.good


@pytest.mark.parametrize("states", [[D, State.FAILED], [State.CANCELLED], []])
def test_what_was_not_sent_is_not_good(states: list[State]) -> None:
    """An email that ended otherwise, or no email at all, is no success."""
    assert not counted(states, [0] if states[:1] == [D] else []).good


async def test_a_stage_in_which_the_executor_dies_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing sends, everything counts as lost, and the demo ends by itself."""
    monkeypatch.setattr("edgeoutbox.cli.demo.stage._CONFIGURATION", "unknown = 1 # {port} {lanes}")
    told: list[str] = []
    stage = Stage(tmp_path, tell=told.append, progress=lambda _: None, emails=3, lanes=1)
    found = await stage.perform()
    assert (found.delivered, found.kills, found.good) == (0, 0, False)
    assert "unknown key unknown" in stage.log.read_text(encoding="utf-8")


def test_demo_has_a_place_of_its_own(terminal: Terminal) -> None:
    """Its help offers no configuration and no database: it would use neither."""
    text = terminal.run("demo", "--help")
    assert "--config" not in text
    assert "--database" not in text
    assert "--database" in terminal.run("list", "--help")


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for processes by their folder")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("options", "working_says"), [((), "sends them"), (("--slack",), "posts them")])
def test_demo_leaves_no_process(
    terminal: Terminal, options: tuple[str, ...], working_says: str, number: signal.Signals
) -> None:
    """A demo that is interrupted ends its processes."""
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "edgeoutbox", "demo", *options],
        cwd=terminal.folder,
        env=clean(os.environ) | {"TMPDIR": str(terminal.folder)},
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if working_says in line:
                demo.send_signal(number)
                break
        demo.stderr.read()
        assert demo.wait() == 1
    [folder] = terminal.folder.glob("edgeoutbox-demo-*")
    working = [process for process in Path("/proc").glob("[0-9]*") if works_in(process, folder)]
    assert working == []


def works_in(process: Path, folder: Path) -> bool:
    """Whether a process has this working directory."""
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_demo(terminal: Terminal) -> None:
    """200 emails, one kill: nothing twice, lost or out of order, and every figure adds up."""
    terminal.environment["EDGEOUTBOX_DATABASE"] = "sqlite:///of-somebody-else.db"
    terminal.environment["TMPDIR"] = str(terminal.folder)
    ended = terminal.process("demo", "--json")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"killed: the relay had 1\d\d messages, \d+ had ended in the database", ended.stderr)
    assert "goes on; what the killed one held waits for its leases to end, 3 s" in ended.stderr
    found = json.loads(ended.stdout)
    assert list(found) == [
        *("actions", "delivered", "uncertain", "uncertain_arrived"),
        *("duplicates", "lost", "out_of_order", "kills", "seconds"),
    ]
    assert (found["actions"], found["kills"]) == (200, 1)
    assert (found["duplicates"], found["lost"], found["out_of_order"]) == (0, 0, 0)
    assert found["delivered"] + found["uncertain"] == 200
    assert 0 < found["uncertain"] <= 20
    assert found["uncertain_arrived"] <= found["uncertain"]
    assert found["seconds"] < 20
    assert list(terminal.folder.iterdir()) == []
