"""Where messages are handed over, and how that connection is protected."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from edgeoutbox import ConfigurationError


class Security(StrEnum):
    """How the connection to the relay is protected; nothing ever falls back to less."""

    STARTTLS = "starttls"
    """The connection turns to TLS before anything else is said, or it is given up."""
    TLS = "tls"
    """The connection is TLS from its first byte."""
    PLAINTEXT = "plaintext"
    """Nothing is encrypted: a relay on this machine, or a network that you trust."""


_PORTS = {Security.STARTTLS: 587, Security.TLS: 465, Security.PLAINTEXT: 25}
_SCHEMES = {"smtp": Security.STARTTLS, "smtps": Security.TLS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """One SMTP relay.

    `port` is 587, 465 or 25 by `security` when it is left out. `timeout` is how many seconds connecting and each
    step may take; the reply to the whole message may take as long as the kind's write window. `local_hostname` is
    what we call ourselves in EHLO (our address as a literal when left out). `cafile` names the certificates to trust
    instead of the system's; `tls_context` replaces both with a context of your own. Raises `ConfigurationError`.
    """

    host: str
    port: int = 0
    security: Security = Security.STARTTLS
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout: float = 20.0
    local_hostname: str | None = None
    cafile: Path | None = None
    tls_context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            security = Security(self.security)
        except ValueError:
            raise ConfigurationError("security: choose starttls, tls or plaintext") from None
        object.__setattr__(self, "security", security)
        object.__setattr__(self, "port", self.port or _PORTS[security])
        if not _is_host(self.host):
            raise ConfigurationError("relay: the host is not a host name or an IP address")
        if not 0 < self.port < 65536:  # noqa: PLR2004 - the range of TCP ports
            raise ConfigurationError("relay: the port must be between 1 and 65535")
        if self.timeout <= 0:
            raise ConfigurationError("timeout: must be above zero seconds")
        if (self.username is None) != (self.password is None):
            raise ConfigurationError("username, password: give both, or neither for a relay without a login")
        if "\0" in (self.username or "") + (self.password or ""):
            raise ConfigurationError("username, password: cannot hold a NUL character")
        if self.local_hostname is not None and not _is_name_for_ehlo(self.local_hostname):
            raise ConfigurationError("local_hostname: must be ASCII without spaces or control characters")

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        security: Security | None = None,
        username: str | None = None,
        password: str | None = None,
        timeout: float = 20.0,
        local_hostname: str | None = None,
        cafile: Path | None = None,
    ) -> "Relay":
        """The relay of `smtp://user@host:587` (STARTTLS) or `smtps://user@host` (TLS).

        Plaintext needs `smtp://` and `security="plaintext"`. A password in the URL is refused: URLs are logged.
        """
        parts = _split(url)
        of_scheme = _SCHEMES[parts.scheme]
        if security is not None and security != of_scheme and of_scheme is Security.TLS:
            raise ConfigurationError("security: contradicts smtps://, which is TLS from the first byte")
        if security is Security.TLS and of_scheme is not Security.TLS:
            raise ConfigurationError('security: for TLS from the first byte write relay = "smtps://..."')
        of_url = unquote(parts.username) if parts.username else None
        if of_url is not None and username is not None and of_url != username:
            raise ConfigurationError("username: is given twice, here and in relay")
        return cls(
            host=parts.hostname or "",
            port=_port(parts),
            security=security or of_scheme,
            username=of_url if username is None else username,
            password=password,
            timeout=timeout,
            local_hostname=local_hostname,
            cafile=cafile,
        )

    def make_tls_context(self) -> ssl.SSLContext | None:
        """The context to negotiate TLS with; `None` for plaintext. Reads files: call it outside the event loop."""
        if self.security is Security.PLAINTEXT or self.tls_context is not None:
            return self.tls_context
        try:
            return ssl.create_default_context(cafile=self.cafile)
        except (OSError, ssl.SSLError):
            raise ConfigurationError("cafile: cannot be read as a file of certificates") from None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError("relay: not readable as a URL; write smtp://user@host:587") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError("relay: write smtp://host (STARTTLS) or smtps://host (TLS)")
    if parts.password is not None:
        raise ConfigurationError("relay: holds a password; give it as the setting `password`, by reference")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigurationError("relay: has more than a user, a host and a port")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or 0
    except ValueError:
        raise ConfigurationError("relay: the port must be between 1 and 65535") from None


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return bool(text) and text.isascii() and all(char.isalnum() or char in "-._" for char in text)
    return True


def _is_name_for_ehlo(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
