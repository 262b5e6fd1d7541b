"""How Slack is reached: the token, the address, and what protects the way."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from edgeoutbox import ConfigurationError

SLACK = "https://slack.com/api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One token at one address.

    `timeout` is how many seconds connecting may take, and each request that only reads. `cafile` names the
    certificates to trust instead of the system's; `tls_context` replaces both. `proxy` is the only proxy that is ever
    used: no environment variable is read. Raises `ConfigurationError`.
    """

    token: str = field(repr=False)
    base_url: str = SLACK
    proxy: str | None = field(default=None, repr=False)
    cafile: Path | None = None
    timeout: float = 10.0
    tls_context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.token.strip() or not self.token.isascii() or not self.token.isprintable():
            raise ConfigurationError("token: must be printable ASCII, such as xoxb-...")
        if self.timeout <= 0:
            raise ConfigurationError("timeout: must be above zero seconds")
        _check_url("base_url", self.base_url, with_login=False)
        if not self.base_url.startswith("https:") and not _is_loopback(self.base_url):
            raise ConfigurationError("base_url: must be https://, or http:// to this machine")
        if self.proxy is not None:
            _check_url("proxy", self.proxy, with_login=True)

    @property
    def place(self) -> str:
        """The address without its scheme, to be shown."""
        return self.base_url.partition("://")[2].rstrip("/")

    def make_tls_context(self) -> ssl.SSLContext | None:
        """The context to negotiate TLS with; `None` for the usual one. Reads files: call it outside the event loop."""
        if self.tls_context is not None or self.cafile is None:
            return self.tls_context
        try:
            return ssl.create_default_context(cafile=self.cafile)
        except (OSError, ssl.SSLError):
            raise ConfigurationError("cafile: cannot be read as a file of certificates") from None


def _check_url(name: str, url: str, *, with_login: bool) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError(f"{name}: is not readable as a URL such as https://host/path")
    if parts.query or parts.fragment or (parts.username and not with_login):
        raise ConfigurationError(f"{name}: has more than a scheme, a host, a port and a path")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
