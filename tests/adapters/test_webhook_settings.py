"""Settings, preview, lane, destination and checks of the webhook adapter, and its receiver for tests."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from edgeoutbox.errors import ConfigurationError, InvalidPayload
from edgeoutbox.kinds import Delivery
from edgeoutbox.results import Defer, Done
from edgeoutbox.sidecar.references import Secrets
from edgeoutbox_webhook import Endpoint, WebhookAdapter, webhook_id
from edgeoutbox_webhook.testing import TEST_SECRET, Answer, Drop, Hang, Lost, WebhookReceiver
from tests.adapters.smtp_building import server_context
from tests.adapters.webhook_building import NOWHERE, a_call, an_adapter, an_attempt

OTHER = "whsec_" + base64.b64encode(b"p" * 32).decode()
BILLING: dict[str, Any] = {"url": "https://billing.example/hooks/hunter2", "secret": TEST_SECRET}
TABLE: dict[str, Any] = {"endpoints": {"billing": BILLING}}


def test_a_table_becomes_an_adapter(tmp_path: Path) -> None:
    """Every setting of a configuration file arrives where it belongs, under a kind's own name."""
    crm = {
        "url": "http://crm.internal:8000/",
        "secrets": [OTHER, TEST_SECRET],
        "allow_private": True,
        "allow_http": True,
    }
    adapter = WebhookAdapter.configure(
        "partner_hook",
        {
            "endpoints": {"billing": BILLING, "crm": crm},
            "delivery": "repeatable",
            "deduplicates_for": "24h",
            "cafile": str(tmp_path / "ca.pem"),
            "timeout": 3,
            "lease": 90,
            "write_window": 30,
            "max_attempts": 5,
            "retention_days": 7,
            "concurrency": 2,
            "requires_approval": True,
        },
    )
    kind = adapter.kind
    assert (kind.name, kind.delivery, kind.lease, kind.write_window) == (
        "partner_hook",
        Delivery.REPEATABLE,
        90.0,
        30.0,
    )
    assert (kind.max_attempts, kind.retention_days, kind.concurrency, kind.requires_approval) == (5, 7, 2, True)
    assert adapter._endpoints == {
        "billing": Endpoint("https://billing.example/hooks/hunter2", secrets=[TEST_SECRET]),
        "crm": Endpoint("http://crm.internal:8000/", secrets=[OTHER, TEST_SECRET], allow_private=True, allow_http=True),
    }
    assert adapter._connect_within == 3.0
    assert adapter._cafile == tmp_path / "ca.pem"


def test_a_table_without_anything_else_is_at_most_once() -> None:
    """Whatever the endpoints promise, repeating has to be asked for."""
    assert WebhookAdapter.configure("webhook", TABLE).kind.delivery is Delivery.AT_MOST_ONCE


def test_secrets_of_endpoints_are_given_by_reference(tmp_path: Path) -> None:
    """References are found inside the tables of endpoints, one by one and in lists."""
    (tmp_path / "old").write_text(TEST_SECRET + "\n", encoding="utf-8")
    secrets = Secrets({"URL": BILLING["url"], "NEW": OTHER}, tmp_path)
    given = {"billing": {"url": {"env": "URL"}, "secrets": [{"env": "NEW"}, {"file": "old"}]}}
    adapter = WebhookAdapter.configure("webhook", {"endpoints": secrets.resolve(given, "endpoints")})
    assert adapter._endpoints["billing"] == Endpoint(BILLING["url"], secrets=[OTHER, TEST_SECRET])


async def test_a_command_that_never_sends_needs_no_secret(tmp_path: Path) -> None:
    """Without its secrets the adapter still checks payloads; it sends nothing, and says why."""
    absent = Secrets({}, tmp_path, required=False)
    given = {"billing": {"url": {"env": "URL"}, "secret": {"env": "SECRET"}}}
    adapter = WebhookAdapter.configure("webhook", {"endpoints": absent.resolve(given, "endpoints")})
    await adapter.prepare(a_call())
    result = await adapter.execute(an_attempt())
    assert isinstance(result, Defer)
    assert [check.ok for check in await adapter.check()] == [False]


BAD_TABLES: dict[str, dict[str, Any]] = {
    "endpoints: Field required": {"endpoints": ...},
    "endpoints: Dictionary should have at least 1": {"endpoints": {}},
    "endpoints.a b.[key]: String should match": {"endpoints": {"a b": BILLING}},
    "endpoints.billing.url: Field required": {"endpoints": {"billing": {"secret": TEST_SECRET}}},
    "endpoints.billing.url: must start": {"endpoints": {"billing": {**BILLING, "url": "http://hunter2.example"}}},
    "endpoints.billing.secret: give it": {"endpoints": {"billing": {"url": BILLING["url"]}}},
    "endpoints.billing.secret: give it, or": {"endpoints": {"billing": {**BILLING, "secrets": [OTHER]}}},
    "endpoints.billing.secrets: a secret is": {"endpoints": {"billing": {**BILLING, "secret": "hunter2"}}},
    "endpoints.billing.secrets: give at most": {
        "endpoints": {"billing": {"url": BILLING["url"], "secrets": [OTHER, OTHER]}}
    },
    "endpoints.billing.allow_private: Input": {"endpoints": {"billing": {**BILLING, "allow_private": "hunter2"}}},
    "endpoints.billing.surprise: Extra": {"endpoints": {"billing": {**BILLING, "surprise": "hunter2"}}},
    "delivery: Input should be": {"delivery": "reads_back"},
    "deduplicates_for: say how long": {"delivery": "repeatable"},
    "deduplicates_for: means something": {"deduplicates_for": "24h"},
    "deduplicates_for: write a number": {"delivery": "repeatable", "deduplicates_for": "hunter2"},
    "deduplicates_for: must be longer": {"delivery": "repeatable", "deduplicates_for": "2m"},
    "lease: must be longer": {"lease": 60},
    "timeout: Input should be": {"timeout": 0},
    "surprise: Extra inputs": {"surprise": "hunter2"},
}


@pytest.mark.parametrize(("says", "change"), BAD_TABLES.items(), ids=BAD_TABLES.keys())
def test_a_wrong_setting_is_named(says: str, change: dict[str, Any]) -> None:
    """The message names kind and setting, and never shows a value."""
    table = {name: value for name, value in {**TABLE, **change}.items() if value is not ...}
    with pytest.raises(ConfigurationError) as refused:
        WebhookAdapter.configure("webhook", table)
    assert str(refused.value).startswith(f"kind webhook: {says}")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [{"endpoints": {}}, {"endpoints": {"a b": NOWHERE}}, {"delivery": "reads_back"}, {"timeout": 0}, {"lease": 1}],
)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    """The same holds for an adapter that is made in code."""
    with pytest.raises(ConfigurationError):
        WebhookAdapter(**{"endpoints": {"billing": NOWHERE}, **options})


def wrong(**endpoints: object) -> Any:
    """Endpoints as no type checker would let them through."""
    return endpoints


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: WebhookAdapter(wrong(billing={"url": "https://hunter2"})), "endpoints.billing: is a dict; give an"),
        (lambda: WebhookAdapter(wrong(billing="https://hunter2")), "endpoints.billing: is a str; give an Endpoint("),
        (lambda: WebhookAdapter(wrong().keys()), "endpoints: give a mapping"),
        (lambda: Endpoint("https://hunter2.example", secrets=TEST_SECRET), "secrets: is one text; give a list"),
        (lambda: Endpoint("http://localhost/hunter2"), "url: must start with https://; allow_private = true permits"),
        (lambda: Endpoint("http://127.0.0.1/hunter2"), "url: must start with https://; allow_private = true permits"),
        (lambda: Endpoint("http://hunter2.example"), "url: must start with https://; allow_http = true permits"),
    ],
)
def test_a_wrong_argument_says_what_to_give(make: Callable[[], object], says: str) -> None:
    """In code, too: the message names the argument and what belongs there, and shows no value."""
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert str(refused.value).startswith(says)
    assert "hunter2" not in str(refused.value)


async def test_the_id_of_a_call_can_be_computed() -> None:
    """After a crash, kind, endpoint and key say which `webhook-id` the receiver may have in its log."""
    async with WebhookReceiver() as receiver:
        attempt = an_attempt()
        await an_adapter(receiver).execute(attempt)
        assert receiver.effects == [webhook_id("webhook", "billing", attempt.action.idempotency_key)]


def test_nothing_private_is_shown() -> None:
    """Neither the adapter's text form nor its destination holds a path or a secret; `settings` changes with both."""
    adapter = WebhookAdapter.configure("webhook", TABLE)
    assert adapter.destination() == "billing (https://billing.example)"
    for text in (repr(adapter), repr(adapter._endpoints), adapter.destination()):
        assert "hunter2" not in text
        assert TEST_SECRET not in text
    changes: list[dict[str, Any]] = [{"secret": OTHER}, {"url": "https://billing.example/x"}, {"allow_private": True}]
    changed = {
        WebhookAdapter.configure("webhook", {"endpoints": {"billing": {**BILLING, **change}}}).settings()
        for change in changes
    }
    assert len(changed | {adapter.settings()}) == 4


def test_many_endpoints_are_not_all_named() -> None:
    """What is told about where calls go stays short."""
    adapter = WebhookAdapter({f"e{number}": NOWHERE for number in range(8)})
    assert adapter.destination().endswith("e4 (https://nowhere.invalid) and 3 more")


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"body": {}}, "endpoint"),
        ({"endpoint": "billing"}, "body"),
        ({"endpoint": "billing", "body": ["hunter2"]}, "body"),
        ({"endpoint": "https://hunter2.example", "body": {}}, "endpoint"),
        ({"endpoint": "billing", "body": {}, "type": "a\nb"}, "type"),
        ({"endpoint": "billing", "body": {}, "url": "https://hunter2.example"}, "url"),
        ({"endpoint": "billing", "body": {}, "headers": {}}, "headers"),
    ],
)
def test_a_payload_that_is_none_is_refused(payload: dict[str, Any], says: str) -> None:
    """A payload has a body and names an endpoint; it cannot say where to send, or with which headers."""
    adapter = WebhookAdapter.configure("webhook", TABLE)
    with pytest.raises(InvalidPayload, match=says) as refused:
        adapter.kind.variants.validate(payload)
    assert "hunter2" not in str(refused.value)


async def test_an_endpoint_that_is_not_configured_is_refused_at_enqueue() -> None:
    """A misspelt name is found where the call is made."""
    adapter = WebhookAdapter.configure("webhook", TABLE)
    with pytest.raises(InvalidPayload, match="endpoint: is not one"):
        await adapter.prepare(a_call(endpoint="biling"))


async def test_a_preview_shows_the_body_and_not_the_path() -> None:
    """Who decides about a call sees where it goes and what it says."""
    adapter = WebhookAdapter.configure("webhook", TABLE)
    text = await adapter.preview(a_call(type="invoice.paid", body={"name": "Zoë"}))
    assert "the endpoint billing, at https://billing.example\n" in text
    assert "Type: invoice.paid" in text
    assert '"name": "Zoë"' in text
    assert "hunter2" not in text
    assert "not configured here" in await adapter.preview(a_call(endpoint="crm"))


def test_the_natural_lane_is_the_endpoint() -> None:
    """Calls to one endpoint keep their order; those to another do not wait for them."""
    assert WebhookAdapter.configure("webhook", TABLE).lane(a_call()) == "webhook:billing"
    assert WebhookAdapter.configure("hook", TABLE).lane(a_call(endpoint="crm")) == "hook:crm"


async def test_a_check_connects_and_sends_nothing(tmp_path: Path) -> None:
    """Each endpoint is resolved, connected to and asked for TLS, and nothing of a call is written."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with WebhookReceiver(tls=server_context(authority, "127.0.0.1")) as secure, WebhookReceiver() as plain:
        rotating = Endpoint(secure.url, secrets=[OTHER, TEST_SECRET], allow_private=True)
        private = Endpoint(plain.url, secrets=[TEST_SECRET], allow_http=True)
        closed = Endpoint("http://127.0.0.1:1/hunter2", secrets=[TEST_SECRET], allow_private=True)
        adapter = WebhookAdapter(
            {"secure": rotating, "plain": plain.endpoint(), "private": private, "closed": closed},
            cafile=tmp_path / "ca.pem",
        )
        checks = {check.name: check for check in await adapter.check()}
        await secure.idle()
        await plain.idle()
        assert secure.received == plain.received == []
        assert (secure.connections, plain.connections) == (1, 1)
    assert [name for name, check in checks.items() if check.ok] == ["endpoint secure", "endpoint plain"]
    assert "TLSv1.3; 2 secrets sign" in checks["endpoint secure"].detail
    assert "without encryption" in checks["endpoint plain"].detail
    assert "allow_private" in checks["endpoint private"].detail
    assert "no connection" in checks["endpoint closed"].detail
    assert "hunter2" not in repr(checks)


async def test_a_cafile_that_is_none_is_named(tmp_path: Path) -> None:
    """The check says so, and an attempt waits for it to be mended."""
    adapter = WebhookAdapter({"billing": NOWHERE}, cafile=tmp_path / "missing.pem")
    assert [(check.ok, check.detail) for check in await adapter.check()] == [
        (False, "cafile: cannot be read as certificates")
    ]
    attempt = an_attempt()
    result = await adapter.execute(attempt)
    assert isinstance(result, Defer)
    assert attempt.writes == 0


async def test_the_receiver_refuses_what_it_cannot_verify() -> None:
    """A call signed with another secret gets a 401 and has no effect, whatever the script says."""
    async with WebhookReceiver(Answer(200), secrets=[OTHER]) as receiver:
        stranger = Endpoint(receiver.url, secrets=[TEST_SECRET], allow_private=True)
        result = await an_adapter(receiver, endpoints={"billing": stranger}).execute(an_attempt())
        assert "401" in repr(result)
        assert receiver.effects == []
        assert [request.verified for request in receiver.received] == [False]


async def test_the_receiver_acts_once_for_each_id_when_it_deduplicates() -> None:
    """Without that it acts every time, which shows what a repeat would do to such an endpoint."""
    for deduplicates, effects in ((True, 1), (False, 3)):
        async with WebhookReceiver(Lost(), Hang(takes=True), deduplicates=deduplicates) as receiver:
            for window in (60.0, 0.2, 60.0):
                await an_adapter(receiver).execute(an_attempt(window=window))
        assert len(receiver.effects) == effects


async def test_the_receiver_goes_through_its_script_and_then_takes_everything() -> None:
    """A step counts for one connection; what it says it takes is what it takes."""
    script = (Drop(), Lost(takes=False), Answer(500, takes=True), Answer(200, takes=False))
    async with WebhookReceiver(*script) as receiver:
        for number in range(5):
            await an_adapter(receiver).execute(an_attempt(action={"idempotency_key": f"n:{number}"}))
        requests = [request.webhook_id for request in receiver.received]
        assert receiver.connections == 5
        assert receiver.effects == [requests[-3], requests[-1]]


async def test_the_receiver_listens_on_ipv6_too() -> None:
    """Its URL is one that an endpoint takes."""
    async with WebhookReceiver(host="::1") as receiver:
        assert isinstance(await an_adapter(receiver).execute(an_attempt()), Done)
