"""The table `[kinds.webhook]` of a configuration file."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from edgeoutbox import ConfigurationError, KindSettings
from edgeoutbox_webhook.calls import EndpointName
from edgeoutbox_webhook.endpoints import Endpoint

_ABSENT = "(not here)"
"""What stands in for a secret that a command which never sends was not given."""

_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Count = Annotated[int, Field(ge=1, le=10_000)]


class EndpointTable(BaseModel):
    """The table of one endpoint. `url` and the secrets arrive resolved."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: SecretStr
    secret: SecretStr | None = None
    secrets: tuple[SecretStr, ...] = ()
    allow_private: bool = False
    allow_http: bool = False

    def make_endpoint(self) -> Endpoint:
        """The endpoint. Raises `ConfigurationError` naming the setting."""
        if (self.secret is None) == (not self.secrets):
            raise ConfigurationError("secret: give it, or `secrets` while it changes")
        given = (self.secret, *self.secrets)
        texts = [secret.get_secret_value() for secret in given if secret is not None]
        url = self.url.get_secret_value()
        return Endpoint(
            "https://url.not.here.invalid" if url == _ABSENT else url,
            secrets=[text for text in texts if text != _ABSENT],
            allow_private=self.allow_private,
            allow_http=self.allow_http,
        )


class Settings(KindSettings):
    """Every setting, with its default. Durations are seconds, but `deduplicates_for` may be a text such as `24h`."""

    endpoints: dict[EndpointName, EndpointTable] = Field(min_length=1)
    delivery: Literal["at_most_once", "repeatable"] = "at_most_once"
    deduplicates_for: str | float | None = None
    cafile: Path | None = None
    timeout: _Seconds = 20.0

    def make_endpoints(self) -> dict[str, Endpoint]:
        """The endpoints by name. Raises `ConfigurationError` naming endpoint and setting."""
        made = {}
        for name, table in self.endpoints.items():
            try:
                made[name] = table.make_endpoint()
            except ConfigurationError as error:
                raise ConfigurationError(f"endpoints.{name}.{error}") from None
        return made
