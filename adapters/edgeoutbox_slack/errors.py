"""What this adapter raises beside the errors of `edgeoutbox`."""

from edgeoutbox import InvalidPayload


class InvalidPost(InvalidPayload):
    """The post cannot be made as it is; the text names the field and the rule, never the value."""
