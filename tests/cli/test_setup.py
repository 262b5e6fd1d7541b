import asyncio
import sqlite3
import stat
from contextlib import closing

from edgeoutbox.sidecar import load, make_adapters
from edgeoutbox.testing.relay import ScriptedRelay
from edgeoutbox_webhook.testing import TEST_SECRET
from tests.cli.terminal import Terminal, message


def test_init(terminal: Terminal) -> None:
    """`init` writes a configuration that is valid once its secret is there, and a database for its owner alone."""
    terminal.run("init")
    configuration = load({}, folder=terminal.folder)
    assert make_adapters(configuration, {"SMTP_PASSWORD": "x"}).keys() == {"email"}
    assert "relay" in configuration.kinds["email"].settings
    assert stat.S_IMODE((terminal.folder / "edgeoutbox.db").stat().st_mode) == 0o600
    assert "edgeoutbox doctor --email" in terminal.said


def test_the_examples_of_init_are_valid(terminal: Terminal) -> None:
    """The tables that `init` writes as comments are complete: without their marks they configure kinds."""
    terminal.run("init", "--dev")
    file = terminal.folder / "edgeoutbox.toml"
    text, table, examples = file.read_text(encoding="utf-8").partition("# [kinds.slack_post]")
    uncommented = (table + examples).replace("\n# ", "\n").removeprefix("# ")
    file.write_text(text + uncommented, encoding="utf-8")
    secrets = {"SLACK_TOKEN": "xoxb-x", "BILLING_SECRET": TEST_SECRET}
    assert make_adapters(load({}, folder=terminal.folder), secrets).keys() == {"email", "slack_post", "webhook"}


def test_init_dev_sends_nothing(terminal: Terminal) -> None:
    """`init --dev` configures capture: what is enqueued becomes a file."""
    terminal.run("init", "--dev")
    assert load({}, folder=terminal.folder).kinds["email"].settings["deliver"] == "capture"
    terminal.run("enqueue", "email", "k", message())
    terminal.run("run", "--until-idle")
    [captured] = terminal.json("captured")
    assert (captured["recipients"], captured["subject"]) == (["jane@example.com"], "Thanks")
    assert terminal.json("show", "k")["attempts"][0]["evidence"]["captured"] is True


def test_init_overwrites_nothing(terminal: Terminal) -> None:
    """A configuration that is there stays as it is, and only the database that it lacks is made."""
    (terminal.folder / "edgeoutbox.toml").write_text("concurrency = 2", encoding="utf-8")
    terminal.run("init")
    assert "kept edgeoutbox.toml, created edgeoutbox.db" in terminal.said
    assert (terminal.folder / "edgeoutbox.toml").read_text(encoding="utf-8") == "concurrency = 2"
    assert terminal.json("list")["actions"] == []
    terminal.run("init")
    assert "kept edgeoutbox.toml, kept edgeoutbox.db" in terminal.said


def test_init_beside_an_applications_tables(terminal: Terminal) -> None:
    """`init --database` adds the tables to the application's own database and keeps what is in it."""
    with closing(sqlite3.connect("app.db")) as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
    terminal.run("init", "--database", "app.db")
    with closing(sqlite3.connect("app.db")) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"orders", "agent_action"} <= names
    assert terminal.json("list")["actions"] == []


def test_doctor(ready: Terminal) -> None:
    """`doctor` is content with a fresh database and a configured kind."""
    found = ready.json("doctor")
    assert found["ok"] is True
    assert {"database", "schema", "journal", "integrity", "email: deliver"} <= {
        each["name"] for each in found["checks"]
    }


def test_doctor_beside_an_application(terminal: Terminal) -> None:
    """Without a configuration file the providers are the application's: nothing is wrong; an empty file still is."""
    terminal.run("migrate", "--database", "app.db")
    out = terminal.run("doctor", "--database", "app.db")
    assert "there is no edgeoutbox.toml here and none was named, so no provider is looked at" in out
    (terminal.folder / "edgeoutbox.toml").touch()
    assert "edgeoutbox.toml: none is configured" in terminal.run("doctor", "--database", "app.db", exit_code=1)


def test_doctor_says_what_is_wrong(terminal: Terminal) -> None:
    """Nothing to work with: exit code 1, and each check says how to mend it."""
    assert "not ok" in terminal.run("doctor", exit_code=1)


def test_doctor_of_a_relay_that_is_not_there(ready: Terminal) -> None:
    """`doctor --email` looks only at email, and says that the relay cannot be reached."""
    ready.configure_relay(1)
    out = ready.run("doctor", "--email", exit_code=1)
    assert "email: relay" in out
    assert "127.0.0.1:1 (plaintext)" in out
    assert "integrity" not in out


async def test_doctor_of_a_relay(ready: Terminal) -> None:
    """`doctor --email` says what the relay offers and sends nothing; `--to` sends one message there."""
    async with ScriptedRelay() as relay:
        ready.configure_relay(relay.port)
        out = await asyncio.to_thread(ready.run, "doctor", "--email")
        assert "SIZE" in out
        assert relay.messages == []
        await asyncio.to_thread(ready.run, "doctor", "--email", "--to", "me@example.com")
        assert [each.recipients for each in relay.messages] == [("me@example.com",)]


def test_doctor_of_a_kind_that_is_not_there(terminal: Terminal) -> None:
    """What is not configured cannot be looked at."""
    terminal.run("doctor", "--email", exit_code=2)
    assert "kind email is not configured" in terminal.said


def test_doctor_to_sends_one_message(ready: Terminal) -> None:
    """`doctor --to` hands one message over, here to the folder; without it none is made."""
    ready.run("doctor", "--email")
    assert ready.json("captured") == []
    ready.run("doctor", "--email", "--to", "me@example.com")
    assert [each["recipients"] for each in ready.json("captured")] == [["me@example.com"]]


def test_init_elsewhere(terminal: Terminal) -> None:
    """A file in another folder names the database that was given here."""
    (terminal.folder / "etc").mkdir()
    terminal.run("init", "--dev", "--config", "etc/mail.toml", "--database", "app.db")
    terminal.run("enqueue", "email", "k", message(), "--config", "etc/mail.toml")
    assert len(terminal.json("list", "--database", "app.db")["actions"]) == 1


def test_environment_alone_configures(terminal: Terminal) -> None:
    """Without a file, variables configure a kind; their paths start from the working directory."""
    terminal.environment |= {
        "EDGEOUTBOX_DATABASE": "app.db",
        "EDGEOUTBOX_KINDS__EMAIL__SENDER": "a@example.com",
        "EDGEOUTBOX_KINDS__EMAIL__DELIVER": "capture",
        "EDGEOUTBOX_KINDS__EMAIL__CAPTURE_DIR": "mail",
    }
    terminal.run("run", "--until-idle")
    terminal.run("enqueue", "email", "k", message())
    terminal.run("run", "--until-idle")
    assert [each["recipients"] for each in terminal.json("captured")] == [["jane@example.com"]]
    assert len(list((terminal.folder / "mail").iterdir())) == 1


def test_doctor_of_a_kind_that_nobody_knows(ready: Terminal) -> None:
    """A misspelt kind that is due is not ok, beside a configured one; `captured` names files from here."""
    ready.run("enqueue", "emial", "k", "{}")
    out = ready.run("doctor", exit_code=1)
    assert "1 due, and no executor or configuration knows it; add [kinds.emial] or withdraw them" in out
    assert "none is running, and" not in out
    ready.run("enqueue", "email", "sent", message())
    assert "none is running, and what is due waits (1)" in ready.run("doctor", exit_code=1)
    ready.run("run", "--until-idle")
    assert "captured/" in ready.run("captured")
    assert str(ready.folder) not in ready.run("captured")
