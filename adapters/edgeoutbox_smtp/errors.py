"""What this adapter raises beside the errors of `edgeoutbox`."""

from edgeoutbox import InvalidPayload


class InvalidEmail(InvalidPayload):
    """The message cannot be sent as it is; the text names the field and the rule, never the value."""
