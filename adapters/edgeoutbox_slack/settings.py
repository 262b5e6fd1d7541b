"""The table `[kinds.slack_post]` of a configuration file."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr

from edgeoutbox import KindLimits, KindSettings
from edgeoutbox_slack.connection import SLACK
from edgeoutbox_slack.posts import Channel

_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Pause = Annotated[float, Field(ge=0, le=3600)]
_Count = Annotated[int, Field(ge=1, le=10_000)]


class Settings(KindSettings):
    """Every setting, with its default. Durations are seconds. `token` and `proxy` arrive resolved."""

    token: SecretStr
    base_url: str = SLACK
    app_id: Annotated[str, Field(pattern="^A[A-Z0-9]+$")] | None = None
    bot_id: Annotated[str, Field(pattern="^B[A-Z0-9]+$")] | None = None
    proxy: SecretStr | None = None
    cafile: Path | None = None
    timeout: _Seconds = 10.0
    channels: tuple[Channel, ...] = ()
    post_interval: _Pause = 1.0
    history_interval: _Pause = 1.2
    first_look: _Seconds = 10.0
    next_look: _Seconds = 60.0
    page_size: Annotated[int, Field(ge=1, le=200)] = 200
    most_pages: _Count = 50

    def arguments(self) -> dict[str, Any]:
        """As `SlackAdapter` takes them."""
        secrets = {
            "token": self.token.get_secret_value(),
            "proxy": self.proxy.get_secret_value() if self.proxy else None,
        }
        return {**self.model_dump(exclude=set(KindLimits.__annotations__)), **self.limits(), **secrets}
