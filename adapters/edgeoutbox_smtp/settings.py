"""The table `[kinds.email]` of a configuration file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from edgeoutbox import ConfigurationError, validation_message
from edgeoutbox_smtp.relay import Relay, Security

Delivering = Literal["send", "capture"]

_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Count = Annotated[int, Field(ge=1, le=10_000)]


class Settings(BaseModel):
    """Every setting, with its default. Durations are seconds. `password` arrives resolved."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

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
    lease: _Seconds = 120.0
    write_window: _Seconds = 60.0
    max_attempts: _Count = 30
    retention_days: Annotated[int, Field(ge=1, le=36_500)] = 30
    concurrency: _Count = 8
    requires_approval: bool = False

    @classmethod
    def read(cls, kind: str, table: Mapping[str, object]) -> "Settings":
        """Check a table. Raises `ConfigurationError` naming kind and setting, never a value."""
        try:
            return cls.model_validate(dict(table))
        except ValidationError as error:
            raise ConfigurationError(f"kind {kind}: {validation_message(error)}") from None

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
