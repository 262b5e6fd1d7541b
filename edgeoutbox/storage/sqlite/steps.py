"""The former room of `spelling`, kept until the tests of the schema import from there."""

from edgeoutbox.storage.sqlite.spelling import NOW, Connection

__all__ = ["NOW", "Connection"]
