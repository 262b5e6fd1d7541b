"""Slack and webhooks in a configuration file: several kinds of one adapter, tables in tables, secrets in them."""

from pathlib import Path
from typing import Any

import pytest

from edgeoutbox import Adapter, ConfigurationError
from edgeoutbox.sidecar import load, make_adapters
from edgeoutbox.sidecar.plugins import find_server
from edgeoutbox_slack import SlackAdapter
from edgeoutbox_webhook import WebhookAdapter
from edgeoutbox_webhook.testing import TEST_SECRET

TOKEN = "xoxb-hunter2"  # noqa: S105 - it opens nothing
FILE = """
[kinds.slack_post]
token = { env = "SLACK_TOKEN" }
channels = ["C0GENERAL", "U0JANE"]

[kinds.alerts]
adapter = "slack_post"
token = { file = "alerts-token" }
max_attempts = 3
requires_approval = true

[kinds.webhook.endpoints.billing]
url = "https://billing.example/in"
secret = { env = "BILLING_SECRET" }

[kinds.webhook.endpoints.crm]
url = { env = "CRM_URL" }
secrets = [{ env = "CRM_SECRET" }, { file = "crm-secret" }]

[kinds.partners]
adapter = "webhook"
delivery = "repeatable"
deduplicates_for = "24h"
endpoints = { env = { url = "https://env.example/in", secret = { file = "crm-secret" } } }
"""
ENVIRONMENT = {
    "SLACK_TOKEN": TOKEN,
    "BILLING_SECRET": TEST_SECRET,
    "CRM_URL": "https://crm.example/hunter2",
    "CRM_SECRET": "whsec_" + "bmV3ZXIsIGFuZCBhbHNvIDMyIGJ5dGVzIGxvbmcuLi4=",
}


def made(folder: Path, text: str = FILE, **options: bool) -> dict[str, Adapter[Any]]:
    """The adapters of a file, with the secrets of `FILE` around."""
    (folder / "edgeoutbox.toml").write_text(text, encoding="utf-8")
    (folder / "alerts-token").write_text("xoxb-of-the-alerts\n", encoding="utf-8")
    (folder / "crm-secret").write_text(TEST_SECRET + "\n", encoding="utf-8")
    return make_adapters(load(ENVIRONMENT, folder=folder), ENVIRONMENT, **options)


def test_kinds_of_one_adapter_are_kinds_of_their_own(tmp_path: Path) -> None:
    """Each has its name, its limits and its promise."""
    adapters = made(tmp_path)
    assert {name: type(adapter) for name, adapter in adapters.items()} == {
        "slack_post": SlackAdapter,
        "alerts": SlackAdapter,
        "webhook": WebhookAdapter,
        "partners": WebhookAdapter,
    }
    kinds = {name: adapter.kind for name, adapter in adapters.items()}
    assert {name: kind.name for name, kind in kinds.items()} == {name: name for name in adapters}
    assert (kinds["slack_post"].max_attempts, kinds["alerts"].max_attempts) == (12, 3)
    assert (kinds["slack_post"].requires_approval, kinds["alerts"].requires_approval) == (False, True)
    assert [str(kinds[name].delivery) for name in ("slack_post", "webhook", "partners")] == [
        *("reads_back", "at_most_once", "repeatable")
    ]


def test_secrets_reach_the_adapter_from_every_depth(tmp_path: Path) -> None:
    """References in tables of tables and in lists are resolved, and no secret stands in a text for people."""
    adapters = made(tmp_path)
    assert TOKEN in adapters["slack_post"].settings()
    assert "xoxb-of-the-alerts" in adapters["alerts"].settings()
    for secret in (TEST_SECRET, ENVIRONMENT["CRM_SECRET"], ENVIRONMENT["CRM_URL"]):
        assert secret in adapters["webhook"].settings()
    shown = "".join(f"{adapter!r} {adapter.kind!r} {adapter.destination()}" for adapter in adapters.values())
    assert "https://crm.example" in shown
    for secret in ("hunter2", "of-the-alerts", TEST_SECRET):
        assert secret not in shown


def test_an_endpoint_may_be_named_like_a_reference(tmp_path: Path) -> None:
    """A table that is called `env` is a table."""
    assert "env (https://env.example)" in made(tmp_path)["partners"].destination()


def test_the_environment_sets_a_kind_of_an_adapter(tmp_path: Path) -> None:
    """A variable sets one setting, also of a kind that has another name than its adapter."""
    variables = {**ENVIRONMENT, "EDGEOUTBOX_KINDS__ALERTS__MAX_ATTEMPTS": "5"}
    made(tmp_path)
    assert make_adapters(load(variables, folder=tmp_path), variables)["alerts"].kind.max_attempts == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[kinds.slack_post]\ntoken = "{TOKEN}"', "kinds.slack_post.token: give a secret by reference"),
        (
            '[kinds.webhook.endpoints.crm]\nurl = "https://crm.example"\nsecret = "whsec_hunter2"',
            "kinds.webhook.endpoints.crm.secret: give a secret by reference",
        ),
        (
            '[kinds.webhook.endpoints.crm]\nurl = "https://crm.example"\nsecrets = [{ env = "A" }, "whsec_hunter2"]',
            "kinds.webhook.endpoints.crm.secrets: give a secret by reference",
        ),
        (
            '[kinds.webhook.endpoints.crm]\nurl = "https://crm.example"\nsecret = { env = "MISSING" }',
            "kind webhook: endpoints.crm.secret: the environment variable MISSING is not set",
        ),
        (
            '[kinds.webhook.endpoints.crm]\nurl = "https://crm.example"\nsecret = { envv = "A" }',
            "kind webhook: endpoints.crm.secret: ",
        ),
        ('[kinds.slack_pots]\ntoken = { env = "A" }', "no adapter slack_pots is installed; did you mean slack_post?"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, text: str, said: str) -> None:
    """File, kind and setting are named at every depth, and no secret is repeated."""
    with pytest.raises(ConfigurationError) as raised:
        made(tmp_path, text)
    assert said in str(raised.value)
    assert "edgeoutbox.toml: " in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_who_never_sends_needs_no_secret(tmp_path: Path) -> None:
    """Payloads can be checked without any of them."""
    (tmp_path / "edgeoutbox.toml").write_text(FILE, encoding="utf-8")
    adapters = make_adapters(load({}, folder=tmp_path), {}, secrets_required=False)
    assert adapters.keys() == {"slack_post", "alerts", "webhook", "partners"}


def test_the_server_of_an_adapter_is_beside_its_entry_point() -> None:
    """It is the module `testing` of the same package; an adapter that is not installed is named."""
    assert find_server("slack_post") == "edgeoutbox_slack.testing"
    with pytest.raises(ConfigurationError, match="no adapter fax is installed"):
        find_server("fax")
