"""Open the database for a command. None of these creates one."""

import getpass
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from edgeoutbox.cli.commands import Place
from edgeoutbox.errors import InvalidRequest, NoSuchAction
from edgeoutbox.model import Action
from edgeoutbox.outbox import Adapters, Outbox
from edgeoutbox.sidecar.database import require_there
from edgeoutbox.sidecar.logs import log_to_stderr
from edgeoutbox.sidecar.plugins import make_adapters

_DIGITS = 18
"""No id has more; SQLite's integers end a little later."""


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Outbox]:
    """The outbox without adapters: to ask, and to decide."""
    async with _opened(place, ()) as outbox:
        yield outbox


@asynccontextmanager
async def with_adapters(place: Place) -> AsyncIterator[Outbox]:
    """The outbox with the configured adapters, to check payloads and to show what they become; nothing is sent.

    Their secrets need not be here.
    """
    adapters = make_adapters(place.configuration, place.environment, secrets_required=False)
    async with _opened(place, adapters.values()) as outbox:
        yield outbox


@asynccontextmanager
async def _opened(place: Place, adapters: Adapters) -> AsyncIterator[Outbox]:
    log_to_stderr(level=logging.WARNING)
    await require_there(place.configuration.database)
    async with Outbox(place.configuration.database, adapters) as outbox:
        yield outbox


async def find(outbox: Outbox, given: str, *, by_key: bool = False) -> Action:
    """The action with this id or, when it is no number or `by_key`, this idempotency key. Raises `NoSuchAction`."""
    is_id = given.isdecimal() and len(given) <= _DIGITS and not by_key
    action = await outbox.get(int(given)) if is_id else await outbox.get(key=given)
    if action is None:
        what = f"the id {given}" if is_id else "this key"
        raise NoSuchAction(f"no action has {what}; it never existed, was erased, or its retention passed")
    return action


def at_terminal() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin.isatty()


def somebody() -> str:
    """Who runs the command, for the record. Raises `InvalidRequest` when the system does not say."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise InvalidRequest("by: this system does not say who you are; give --by NAME") from None
