"""The table `[kinds.email]` of a configuration file."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from edgeoutbox import ConfigurationError, KindSettings
from edgeoutbox_smtp.relay import Relay, Security

Delivering = Literal["send", "capture"]

_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Count = Annotated[int, Field(ge=1, le=10_000)]


class Settings(KindSettings):
    """Every setting, with its default. Durations are seconds. `password` arrives resolved."""

    sender: str
    relay: str | None = None
    security: Security | None = None
    username: str | None = None
    password: SecretStr | None = None
    cafile: Path | None = None
    local_hostname: str | None = None
    timeout: _Seconds = 20.0
    deliver: Delivering = "send"
    capture_dir: Path | None = None
    attachments_dir: Path | None = None

    def make_relay(self) -> Relay | None:
        """The relay, when one is given. Raises `ConfigurationError`."""
        if self.relay is None:
            if self.deliver == "send":
                raise ConfigurationError('relay: is needed to send; deliver = "capture" writes files instead')
            return None
        return Relay.parse(
            self.relay,
            security=self.security,
            username=self.username,
            password=None if self.password is None else self.password.get_secret_value(),
            timeout=self.timeout,
            local_hostname=self.local_hostname,
            cafile=self.cafile,
        )
