"""Where a webhook goes and how it is signed. A payload names an endpoint; only the configuration says what it is."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from yarl import URL

from edgeoutbox import ConfigurationError
from edgeoutbox_webhook.addresses import is_loopback, is_public
from edgeoutbox_webhook.signing import secret_bytes

_CHARACTERS_OF_A_URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+")
_LONGEST_HOST = 253
_MOST_SECRETS = 10


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One receiver. Raises `ConfigurationError` naming what is wrong, never a value.

    `url` may hold a token in its path, so it is never shown; only its host is. `secrets` are `whsec_` texts, the
    newest first: each signs every call, so that the receiver can change over while both hold. A process that only
    enqueues may leave them out. `allow_private` permits addresses outside of the public internet, and plain `http`
    to this machine; `allow_http` permits plain `http` to any address that is allowed.
    """

    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    allow_private: bool = False
    allow_http: bool = False

    def __init__(
        self, url: str, *, secrets: Iterable[str] = (), allow_private: bool = False, allow_http: bool = False
    ) -> None:
        if isinstance(secrets, str):
            raise ConfigurationError("secrets: is one text; give a list of them")
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "secrets", tuple(secrets))
        object.__setattr__(self, "allow_private", allow_private)
        object.__setattr__(self, "allow_http", allow_http)
        self._refuse_nonsense()

    @property
    def target(self) -> URL:
        """The URL as it is requested: exactly as it was configured."""
        return URL(self.url, encoded=True)

    @property
    def host(self) -> str:
        """The host alone."""
        return self.target.raw_host or ""

    @property
    def origin(self) -> str:
        """Scheme, host and port: what may be shown."""
        target = self.target
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if target.explicit_port is None else f":{target.explicit_port}"
        return f"{target.scheme}://{host}{port}"

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys that sign."""
        return tuple(secret_bytes(secret) for secret in self.secrets)

    def permits(self, address: str) -> bool:
        """Whether a connection to this address may be opened."""
        if self.target.scheme == "http" and not self.allow_http:
            return is_loopback(address)
        return self.allow_private or is_public(address)

    def _refuse_nonsense(self) -> None:
        target = self._readable()
        if target.scheme not in {"https", "http"}:
            raise ConfigurationError("url: must start with https://")
        if target.user is not None or target.password is not None:
            raise ConfigurationError("url: holds a user or password; calls are signed instead")
        if target.raw_fragment:
            raise ConfigurationError("url: has a fragment, which is never sent")
        here = self.host.lower() == "localhost" or is_loopback(self.host)
        if target.scheme == "http" and not self.allow_http and not (here and self.allow_private):
            permits = "allow_private = true permits http to this machine" if here else "allow_http = true permits http"
            raise ConfigurationError(f"url: must start with https://; {permits}")
        if len(self.secrets) > _MOST_SECRETS or len(set(self.secrets)) != len(self.secrets):
            raise ConfigurationError(f"secrets: give at most {_MOST_SECRETS}, each once")
        for secret in self.secrets:
            try:
                secret_bytes(secret)
            except ValueError as error:
                raise ConfigurationError(f"secrets: {error}") from None

    def _readable(self) -> URL:
        if not isinstance(self.url, str) or not _CHARACTERS_OF_A_URL.fullmatch(self.url):
            raise ConfigurationError("url: write it in ASCII, with anything else percent-encoded")
        try:
            target = self.target
            host, port = target.raw_host or "", target.port  # yarl reads the port only when it is asked for
        except ValueError:
            raise ConfigurationError("url: not readable") from None
        if port == 0:
            raise ConfigurationError("url: the port is not one")
        if len(host) > _LONGEST_HOST or not (_IPV6 if ":" in host else _HOST).fullmatch(host):
            raise ConfigurationError("url: the host is not a name or an address")
        return target
