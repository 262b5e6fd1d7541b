import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from edgeoutbox.errors import DatabaseBusy
from tests.cli.terminal import Terminal, message


@pytest.fixture
def filled(ready: Terminal) -> Terminal:
    """Two emails of one lane, one that was proposed, and one of another kind."""
    ready.run("enqueue", "email", "one", message(), "--lane", "mail:7", "--subject", "acc-7")
    ready.run("enqueue", "email", "two", message(), "--lane", "mail:7", "--run", "run-9")
    ready.run("propose", "email", "three", message())
    ready.run("enqueue", "fax", "four", '{"number": 5}')
    return ready


def keys(page: dict[str, list[dict[str, str]]]) -> list[str]:
    return [action["idempotency_key"] for action in page["actions"]]


def test_list(filled: Terminal) -> None:
    """Actions are listed newest first, page by page, without their payloads."""
    page = filled.json("list", "--limit", "3")
    assert keys(page) == ["four", "three", "two"]
    assert keys(filled.json("list", "--after", str(page["cursor"]))) == ["one"]
    assert "jane" not in json.dumps(page)
    assert filled.json("list", "--limit", "4")["cursor"] is None


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--state", "proposed"], ["three"]),
        (["--kind", "fax"], ["four"]),
        (["--lane", "mail:7"], ["two", "one"]),
        (["--run", "run-9"], ["two"]),
        (["--subject", "acc-7"], ["one"]),
        (["--state", "DONE"], []),
    ],
)
def test_list_filters(filled: Terminal, options: list[str], found: list[str]) -> None:
    """Each option narrows the list."""
    assert keys(filled.json("list", *options)) == found


def test_tables(filled: Terminal) -> None:
    """People get tables: one line for each action, and a message when there is none."""
    lines = filled.run("list").splitlines()
    assert [line.split()[0] for line in lines] == ["id", "4", "3", "2", "1"]
    assert filled.run("list", "--state", "DONE") == ""
    assert filled.said == "no action fits\n"


def test_show(filled: Terminal) -> None:
    """`show` finds an action by id or key, and gives its attempts and its sentence; the payload only on request."""
    filled.run("run", "--until-idle")
    shown = filled.json("show", "1")
    assert (shown["state"], shown["stop_reason"], shown["idempotency_key"]) == ("DONE", "CONFIRMED", "one")
    [attempt] = shown["attempts"]
    assert (attempt["result"], attempt["recorded"], attempt["epoch"]) == ("Done", True, 1)
    assert shown["why"] == "Action 1 (email) ended DONE: CONFIRMED; the provider confirmed it."
    assert "payload" not in shown
    text = filled.run("show", "one")
    assert "CONFIRMED" in text
    assert "jane@example.com" not in text
    assert "jane@example.com" in filled.run("show", "three", "--payload")


def test_a_key_that_is_a_number(filled: Terminal) -> None:
    """`--key` takes a number as a key."""
    filled.run("enqueue", "fax", "1", "{}")
    assert filled.json("show", "1")["idempotency_key"] == "one"
    assert filled.json("show", "1", "--key")["idempotency_key"] == "1"


def test_why(filled: Terminal) -> None:
    """`why` says one sentence."""
    assert "waits in its lane behind action 1" in filled.run("why", "two")
    assert filled.json("why", "three")["why"] == "Action 3 (email) waits for somebody to admit or refuse it."


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reader whose zone is not UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="needs a zone of this process's own")
@pytest.mark.usefixtures("in_new_york")
def test_times_are_the_readers(ready: Terminal) -> None:
    """The sentence has the local time of the table beside it; for programs it is in UTC."""
    ready.run("run", "--until-idle")
    ready.run("enqueue", "email", "k", message(), "--due", "2999-07-01T12:00:00+00:00")
    text = ready.run("show", "k")
    assert "due_at           2999-07-01 08:00:00" in text
    assert "is due at 2999-07-01 08:00:00;" in text
    assert "is due at 2999-07-01 08:00:00;" in ready.run("why", "k")
    for command in ("show", "why"):
        assert "is due at 2999-07-01 12:00:00+00:00;" in ready.json(command, "k")["why"]


def attempted(ready: Terminal, *statements: str) -> None:
    """What another program's attempts made of an action."""
    with closing(sqlite3.connect(ready.folder / "edgeoutbox.db", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def test_an_attempt_that_does_not_count(ready: Terminal) -> None:
    """A claim that was given back is shown as not counted, beside one that counts."""
    ready.run("enqueue", "email", "k", message())
    claim = (
        "UPDATE agent_action SET state = 'EXECUTING', epoch = epoch + 1, attempt = attempt + 1, lease_owner = 'x', "
        "lease_expires_at = 9e12"
    )
    give_back = (
        "UPDATE agent_action SET state = 'ADMITTED', attempt = attempt - {}, lease_owner = NULL, "
        "lease_expires_at = NULL"
    )
    settle = "UPDATE agent_action_attempt SET settled_at = 1, result = '{}', recorded = 1 WHERE epoch = {}"
    attempted(ready, claim, give_back.format(1), settle.format("Shutdown", 1))
    assert "Shutdown (not counted)" in ready.run("show", "k")
    attempted(ready, claim, give_back.format(0), settle.format("Retry", 2), claim)
    lines = ready.run("show", "k").splitlines()
    results = [line for line in lines if "Shutdown" in line or "Retry" in line]
    assert ["(not counted)" in line for line in results] == [True, False]


def test_lane(filled: Terminal) -> None:
    """`lane` lists what is open, in its order."""
    assert [action["idempotency_key"] for action in filled.json("lane", "mail:7")] == ["one", "two"]
    assert filled.json("lane", "nobody") == []


def test_backlog(filled: Terminal) -> None:
    """`backlog` counts by kind, also a kind that nobody serves."""
    found = {kind["kind"]: kind for kind in filled.json("backlog")}
    assert (found["email"]["admitted"], found["email"]["proposed"], found["fax"]["admitted"]) == (2, 1, 1)
    assert found["fax"]["served"] is False
    header, email, fax = filled.run("backlog").splitlines()
    assert header.split() == ["kind", "served", "proposed", "admitted", "oldest", "due"]
    assert (email.split()[:4], fax.split()[:3]) == (["email", "no", "1", "2"], ["fax", "no", "1"])


def test_backlog_on_a_narrow_terminal(ready: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a kind starts nothing stands in a line under its counts, whole."""
    ready.run("run", "--until-idle")
    ready.run("enqueue", "email", "k", message())
    by = "somebody who has a long name and writes the reason behind it"
    ready.run("pause", "email", "--by", by)
    assert ready.run("backlog").splitlines()[1].endswith(f"  paused by {by}")
    monkeypatch.setattr("edgeoutbox.cli.output._WIDE", 80)
    _, counts, why = ready.run("backlog").splitlines()
    assert counts.split()[:3] == ["email", "no", "1"]
    assert why == f"   paused by {by}"


@pytest.mark.parametrize("command", ["show", "why", "refuse", "withdraw", "forget"])
def test_nothing_there(ready: Terminal, command: str) -> None:
    """An action that does not exist is one line and exit code 1."""
    ready.run(command, "nothing", exit_code=1)
    assert ready.said.startswith("error: no action has this key")
    assert len(ready.said.splitlines()) == 1


@pytest.mark.parametrize("command", [["list"], ["why", "1"], ["backlog"], ["enqueue", "email", "k", "{}"], ["sweep"]])
def test_no_database(terminal: Terminal, command: list[str]) -> None:
    """Without a database every command says so with exit code 3, and makes none."""
    terminal.run(*command, exit_code=3)
    assert "edgeoutbox init" in terminal.said
    assert list(terminal.folder.iterdir()) == []


def test_a_file_that_is_no_database(terminal: Terminal) -> None:
    """A file of something else is exit code 3, and stays as it is."""
    (terminal.folder / "edgeoutbox.db").write_text("something else", encoding="utf-8")
    terminal.run("list", exit_code=3)
    assert "edgeoutbox.db is not an SQLite database; name another with --database" in terminal.said
    terminal.run("list", "--database", ".", exit_code=3)
    assert "is a folder" in terminal.said
    terminal.run("list", "--database", "mysql://x", exit_code=2)
    assert "url: write sqlite:///app.db or sqlite+apsw:///app.db" in terminal.said
    assert (terminal.folder / "edgeoutbox.db").read_text(encoding="utf-8") == "something else"


def test_wrong_configuration(ready: Terminal) -> None:
    """A wrong configuration is exit code 2, before anything is opened."""
    ready.configure("concurency = 3")
    ready.run("list", exit_code=2)
    assert "did you mean concurrency?" in ready.said


def test_options_on_either_side(ready: Terminal) -> None:
    """`--database` is understood before and after the command's name, and the later one wins."""
    ready.run("init", "--database", "other.db", "--config", "other.toml")
    ready.run("--database", "other.db", "enqueue", "fax", "k", "{}")
    assert keys(ready.json("list", "--database", "other.db")) == ["k"]
    assert keys(ready.json("--database", "edgeoutbox.db", "list", "--database", "other.db")) == ["k"]
    assert keys(ready.json("list")) == []


def test_control_characters_of_others(ready: Terminal) -> None:
    """What other programs named cannot act on the terminal."""
    ready.run("enqueue", "fax", "k\x1b[31m", "{}", "--lane", "x\u202ey")
    out = ready.run("list") + ready.run("show", "1")
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"k\x1b[31m" in out


def test_help_shows_exit_codes_and_examples(terminal: Terminal) -> None:
    """The help says what exit codes mean, and each command has an example."""
    text = terminal.run("--help")
    assert "Exit codes:" in text
    for command in ("demo", "init", "run", "enqueue", "propose", "list", "show", "why", "lane", "admit", "refuse"):
        assert f"Example: edgeoutbox {command}" in terminal.run(command, "--help")
    for command in ("withdraw", "pause", "resume", "kind", "backlog", "erase", "forget", "sweep", "captured", "doctor"):
        assert f"Example: edgeoutbox {command}" in terminal.run(command, "--help")


@pytest.mark.parametrize("named", ["9" * 5000, "99999999999999999999", "\udcff", "a\0b"])
def test_names_that_no_action_can_have(ready: Terminal, named: str) -> None:
    """A number that is too large, or what is no text, is an error like any other."""
    ready.run("why", named, exit_code=2 if named in {"\udcff", "a\0b"} else 1)
    assert ready.said.startswith("error: ")


def test_a_narrow_terminal(ready: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 80 columns keys and lanes are folded after their separators only, so that every part can be read."""
    monkeypatch.setattr("edgeoutbox.cli.output._WIDE", 80)
    key = "order:4242424242:receipt:customer-with-a-long-name:first"
    ready.run("enqueue", "email", key, message(), "--lane", "mail:account:seven-hundred-and-seventy-seven")
    out = ready.run("list")
    assert max(map(len, out.splitlines())) <= 80
    for part in ("order:", "4242424242:", "receipt:", "customer-", "name:", "first", "account:", "hundred-"):
        assert part in out


def test_reasons_on_a_narrow_terminal(ready: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long reason stands in a line under its row, so that keys stay whole; that of what is DONE is not repeated."""
    ready.run("enqueue", "email", "order:13:receipt", message(), "--lane", "order:13")
    ready.run("run", "--until-idle")
    ready.run("enqueue", "email", "order:14:receipt", message(), "--lane", "order:14")
    attempted(
        ready,
        "UPDATE agent_action SET state = 'EXECUTING', epoch = 1, attempt = 1, lease_owner = 'x', lease_expires_at = 2 "
        "WHERE state = 'ADMITTED'",
        "UPDATE agent_action SET write_started_at = 1 WHERE state = 'EXECUTING'",
    )
    ready.run("withdraw", "order:14:receipt", "--lost")
    header, uncertain, done = ready.run("list").splitlines()
    assert "reason" in header
    assert "UNCERTAIN  LEASE_LOST_AFTER_WRITE" in uncertain
    assert "CONFIRMED" not in done
    monkeypatch.setattr("edgeoutbox.cli.output._WIDE", 80)
    header, uncertain, reason, done = ready.run("list").splitlines()
    assert "reason" not in header
    assert uncertain.endswith("  order:14:receipt")
    assert reason == "   LEASE_LOST_AFTER_WRITE"
    assert done.endswith("  order:13:receipt")


def test_help_of_flags_and_states(terminal: Terminal) -> None:
    """A flag shows no type, and `--state` one short word."""
    text = terminal.run("list", "--help")
    assert "<bool>" not in text + terminal.run("--help")
    assert "STATE" in text
    assert "<proposed" not in text


def test_locked(ready: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that another program keeps locked is exit code 3, in the words of the command line."""

    async def busy(*_: object, **__: object) -> None:
        raise DatabaseBusy("give it as connection=")

    monkeypatch.setattr("edgeoutbox.outbox.Outbox.pause", busy)
    ready.run("pause", "email", exit_code=3)
    assert "another program holds what this needs; end its transaction and try again" in ready.said
    assert "connection=" not in ready.said
