from tests.cli.terminal import Terminal, message


def test_pause_and_resume(ready: Terminal) -> None:
    """A paused kind is not carried out until it is resumed."""
    ready.run("enqueue", "email", "k", message())
    ready.run("pause", "email", "--by", "anna")
    ready.run("run", "--until-idle")
    assert ready.json("show", "k")["state"] == "ADMITTED"
    assert "paused by anna" in ready.run("backlog")
    ready.run("resume", "email")
    ready.run("run", "--until-idle")
    assert ready.json("show", "k")["state"] == "DONE"


def test_unknown_kind(ready: Terminal) -> None:
    """A kind that nobody declared can be neither paused nor shown."""
    ready.run("pause", "emial", "--by", "anna", exit_code=2)
    ready.run("kind", "emial", exit_code=1)
    assert "no program has declared a kind emial" in ready.said


def test_kind(ready: Terminal) -> None:
    """`kind` shows what holds, and `--allow` loosens it."""
    ready.run("run", "--until-idle")
    assert ready.json("kind", "email")["delivery"] == "at_most_once"
    assert [kind["name"] for kind in ready.json("kind")] == ["email"]
    loosened = ready.json("kind", "email", "--allow", "reads_back", "--allow", "no-approval")
    assert (loosened["delivery"], loosened["requires_approval"]) == ("reads_back", False)
    assert ready.json("kind", "email", "--allow", "approval")["requires_approval"] is True


def test_kind_refuses_what_it_does_not_know(ready: Terminal) -> None:
    """An unknown allowance, or one for no kind, is wrong usage."""
    ready.run("kind", "email", "--allow", "everything", exit_code=2)
    ready.run("kind", "--allow", "no-approval", exit_code=2)
