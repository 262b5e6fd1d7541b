"""The payload of a webhook: a body, and the name of the endpoint that it is for."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from edgeoutbox import InvalidPayload

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"

EndpointName = Annotated[str, Field(pattern=NAME_PATTERN)]


class Webhook(BaseModel):
    """One call: `body` for the endpoint of this name, which the configuration knows.

    With a `type` the body travels in the envelope that Standard Webhooks recommends: `type`, `timestamp` (when the
    action was made) and `data`. Without one it is sent as it is.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    endpoint: EndpointName
    body: dict[str, Any] = Field(repr=False)
    type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")] | None = None

    def content(self, created_at: int) -> bytes:
        """The bytes that are signed and sent: canonical JSON, so the same for every attempt.

        `created_at` is the action's, in milliseconds. Raises `InvalidPayload` for what JSON cannot hold.
        """
        value: Any = self.body
        if self.type is not None:
            made = datetime.fromtimestamp(created_at / 1000, UTC).isoformat(timespec="milliseconds")
            value = {"type": self.type, "timestamp": made.replace("+00:00", "Z"), "data": self.body}
        try:
            text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            return text.encode()
        except (TypeError, ValueError, RecursionError):
            raise InvalidPayload("body: holds something that JSON cannot") from None
