"""Where a call may go: the public internet, and elsewhere only when its endpoint says so."""

import logging
from collections.abc import Callable

import pytest

from edgeoutbox.errors import ConfigurationError
from edgeoutbox.results import Defer, Done, Result
from edgeoutbox_webhook import Endpoint, WebhookAdapter
from edgeoutbox_webhook.addresses import is_public
from edgeoutbox_webhook.testing import TEST_SECRET, WebhookReceiver
from tests.adapters.webhook_building import ToldResolver, an_attempt

_NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.8.8.8 168.63.129.16
    169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1
    198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::7f00:1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b::127.0.0.1
    64:ff9b::a00:1 64:ff9b::169.254.169.254 64:ff9b:1::8.8.8.8 100::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2
    2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::1 2002:808:808::1 3fff::1 4000::1 5f00::1 fc00::1 fd00::1
    fd00:ec2::254 fe80::1 fe80::1%1 fec0::1 ff02::1 ff0e::1
    localhost 127.1 2130706433 0x7f.1 0177.0.0.1 1.2.3 1.2.3.4.5 :::
"""
_PUBLIC = """
    1.1.1.1 8.8.8.8 11.0.0.0 100.63.255.255 100.128.0.0 128.0.0.0 169.253.255.255 172.15.0.1 172.32.0.1 192.0.1.1
    192.167.0.1 198.17.0.1 198.20.0.1 223.255.255.255 2606:4700:4700::1111 2a00:1450::1 2001:4860:4860::8888
    64:ff9b::8.8.8.8
"""


@pytest.mark.parametrize("address", _NOT_PUBLIC.split())
def test_what_is_not_on_the_public_internet_is_refused(address: str) -> None:
    """Private, local, reserved, carried in another form, or no canonical address at all."""
    assert not is_public(address)
    assert not Endpoint("https://billing.example").permits(address)


@pytest.mark.parametrize("address", _PUBLIC.split())
def test_what_is_next_to_them_is_not(address: str) -> None:
    """The bounds of each network are where they should be; NAT64 counts as the address that it stands for."""
    assert is_public(address)
    assert Endpoint("https://billing.example").permits(address)


def test_an_endpoint_can_allow_private_addresses() -> None:
    """Then every address is permitted; for plain http to this machine, this machine only."""
    private = Endpoint("https://billing.example", allow_private=True)
    assert all(private.permits(address) for address in ("10.0.0.1", "::1", "8.8.8.8"))
    here = Endpoint("http://localhost:8000/", allow_private=True)
    assert here.permits("127.0.0.1")
    assert here.permits("::1")
    assert not here.permits("10.0.0.1")
    assert not here.permits("8.8.8.8")


async def attempted(endpoint: Endpoint, resolver: ToldResolver | None = None) -> Result:
    """The result of an attempt to this endpoint."""
    adapter = WebhookAdapter({"billing": endpoint}, resolver=resolver, timeout=5.0)
    attempt = an_attempt()
    result = await adapter.execute(attempt)
    assert attempt.writes == isinstance(result, Done)
    return result


HOSTS: dict[str, Callable[[WebhookReceiver], str]] = {
    "an address": lambda receiver: f"http://127.0.0.1:{receiver.port}/",
    "a name": lambda receiver: f"http://localhost:{receiver.port}/",
    "a short address": lambda receiver: f"http://127.1:{receiver.port}/",
    "a number": lambda receiver: f"http://2130706433:{receiver.port}/",
    "hexadecimal": lambda receiver: f"http://0x7f000001:{receiver.port}/",
    "this host": lambda receiver: f"http://0.0.0.0:{receiver.port}/",
    "mapped": lambda receiver: f"http://[::ffff:127.0.0.1]:{receiver.port}/",
}


@pytest.mark.parametrize("url", HOSTS.values(), ids=HOSTS.keys())
async def test_this_machine_is_not_reached_by_any_name(
    url: Callable[[WebhookReceiver], str], caplog: pytest.LogCaptureFixture
) -> None:
    """However the address is written, no connection is opened and no fence is asked for."""
    async with WebhookReceiver() as receiver:
        result = await attempted(Endpoint(url(receiver), secrets=[TEST_SECRET], allow_http=True))
        assert receiver.connections == 0
    assert isinstance(result, Defer)
    assert result.scope == "kind"
    assert "127" not in caplog.text


async def test_a_name_that_resolves_to_a_private_address_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """What a name says is judged at the address, and the log says what to do without naming the address."""
    async with WebhookReceiver() as receiver:
        endpoint = Endpoint(f"http://hooks.example:{receiver.port}/x", secrets=[TEST_SECRET], allow_http=True)
        with caplog.at_level(logging.ERROR):
            result = await attempted(endpoint, ToldResolver(["127.0.0.1"]))
        assert receiver.connections == 0
    assert isinstance(result, Defer)
    assert "allow_private" in result.reason
    assert "allow_private" in caplog.text
    assert "127.0.0.1" not in caplog.text + repr(result)


@pytest.fixture
def _as_if_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make 127.0.0.2 count as public, so that a test has a public address to be reached."""
    monkeypatch.setattr(
        "edgeoutbox_webhook.endpoints.is_public", lambda address: address == "127.0.0.2" or is_public(address)
    )


@pytest.mark.usefixtures("_as_if_public")
async def test_a_name_that_is_rebound_is_refused() -> None:
    """A name that was public once and resolves to this machine the next time is not reached there."""
    async with WebhookReceiver(host="127.0.0.2") as public, WebhookReceiver(port=public.port) as inside:
        endpoint = Endpoint(f"http://hooks.example:{public.port}/x", secrets=[TEST_SECRET], allow_http=True)
        resolver = ToldResolver(["127.0.0.2"], ["127.0.0.1"])
        assert isinstance(await attempted(endpoint, resolver), Done)
        assert isinstance(await attempted(endpoint, resolver), Defer)
        assert (public.connections, inside.connections) == (1, 0)
    assert resolver.asked == 2


@pytest.mark.usefixtures("_as_if_public")
async def test_a_name_is_resolved_once_for_each_attempt() -> None:
    """The address that was judged is the one that is connected to: there is no second question between them."""
    async with WebhookReceiver(host="127.0.0.2") as public, WebhookReceiver(port=public.port) as inside:
        endpoint = Endpoint(f"http://hooks.example:{public.port}/x", secrets=[TEST_SECRET], allow_http=True)
        resolver = ToldResolver(["127.0.0.1", "127.0.0.2"])
        assert isinstance(await attempted(endpoint, resolver), Done)
        assert inside.connections == 0
    assert resolver.asked == 1


async def test_a_name_of_this_machine_must_be_of_this_machine() -> None:
    """Plain http is allowed to `localhost` because nothing leaves the machine: so it must not."""
    endpoint = Endpoint("http://localhost:9/", secrets=[TEST_SECRET], allow_private=True)
    result = await attempted(endpoint, ToldResolver(["10.0.0.1"]))
    assert isinstance(result, Defer)
    assert "not permitted" in result.reason


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would connect to addresses that nobody judged."""
    async with WebhookReceiver() as receiver, WebhookReceiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert isinstance(await attempted(receiver.endpoint()), Done)
        assert proxy.connections == 0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://billing.example/", "must start with https"),
        ("http://10.0.0.1/", "must start with https"),
        ("ftp://billing.example/", "must start with https"),
        ("billing.example", "must start with https|not a name"),
        ("", "write it in ASCII"),
        ("https://", "not a name"),
        ("https:///hunter2", "not a name"),
        ("https://shop:hunter2@billing.example/", "user or password"),
        ("https://billing.example/#hunter2", "fragment"),
        ("https://billing.example/\r\nx-hunter2: 1", "ASCII"),
        ("https://billing.example/a hunter2", "ASCII"),
        ("https://billing.example\\@hunter2/", "ASCII"),
        ("https://büro.example/", "ASCII"),
        ("https://billing.example:0/", "port"),
        ("https://billing.example:99999/", "not readable"),
        ("https://billing.example:hunter2/", "not readable"),
        ("https://[hunter2/", "not readable"),
        ("https://[fe80::1%25eth0]/", "not a name"),
        ("https://hunter2..example/", "not a name"),
        ("https://-hunter2.example/", "not a name"),
        ("https://%68unter2.example/", "not a name"),
        (f"https://{'a' * 64}.example/", "not a name"),
        (f"https://{'a.' * 127}example/", "not a name"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, says: str) -> None:
    """The message says what is wrong, and shows nothing of the URL."""
    with pytest.raises(ConfigurationError, match=f"url: .*({says})") as refused:
        Endpoint(url)
    assert "hunter2" not in str(refused.value)


def test_a_url_is_requested_as_it_was_written_and_never_shown() -> None:
    """A token in its path is not re-encoded, and only scheme, host and port are shown."""
    endpoint = Endpoint("https://[2606:4700::1111]:8443/a%2fb?t=%2Bx;hunter2", secrets=[TEST_SECRET])
    assert endpoint.target.raw_path_qs == "/a%2fb?t=%2Bx;hunter2"
    assert endpoint.origin == "https://[2606:4700::1111]:8443"
    assert "hunter2" not in repr(endpoint)
    assert TEST_SECRET not in repr(endpoint)
