"""What must be known before a post and before a look: who we are, and which conversation a person's id stands for."""

from dataclasses import dataclass

from edgeoutbox import Deadline
from edgeoutbox_slack.answers import Answer
from edgeoutbox_slack.client import Slack
from edgeoutbox_slack.codes import OPENING, Meaning
from edgeoutbox_slack.marker import Identity
from edgeoutbox_slack.places import Place

POST = "chat.postMessage"
WHO = "auth.test"
OPEN = "conversations.open"


@dataclass(frozen=True, slots=True)
class NotReached:
    """A step that did not work, and the request that was its reason."""

    answer: Answer
    method: str


@dataclass(frozen=True, slots=True)
class Reached:
    """Who we are, and the conversation: a place that is no person."""

    identity: Identity
    place: Place


async def reach(slack: Slack, known: Identity | None, place: Place, deadline: Deadline) -> Reached | NotReached:
    """Learn all that is needed before a post or a look, which changes nothing."""
    identity = known or await find_identity(slack, deadline)
    if isinstance(identity, NotReached):
        return identity
    opened = await open_conversation(slack, place, deadline)
    return opened if isinstance(opened, NotReached) else Reached(identity, opened)


async def find_identity(slack: Slack, deadline: Deadline) -> Identity | NotReached:
    """Ask whose token it is."""
    answer = await slack.read(WHO, {}, deadline)
    return identity_of(answer) if answer.meaning is Meaning.CONFIRMED else NotReached(answer, WHO)


def identity_of(answer: Answer) -> Identity | NotReached:
    """The ids in a confirmed answer to `auth.test`."""
    found = {name: value for name in ("bot_id", "app_id") if isinstance(value := answer.body.get(name), str) and value}
    if not found:
        said = "the token is of no bot, so that no post could be known as ours; use a bot's token, or set app_id"
        return NotReached(Answer(Meaning.LOGIN, said, status=answer.status), WHO)
    return Identity(**found)


async def open_conversation(slack: Slack, place: Place, deadline: Deadline) -> Place | NotReached:
    """The place itself, or for a person the place of the direct messages, which nobody sees being opened."""
    if not place.is_person:
        return place
    soon = Deadline.after(deadline.left(at_most=slack.timeout))
    answer = await slack.write(OPEN, {"users": place.channel}, soon, OPENING)
    if answer.meaning is not Meaning.CONFIRMED:
        return NotReached(answer, OPEN)
    channel = answer.body.get("channel")
    opened = channel.get("id") if isinstance(channel, dict) else None
    if not isinstance(opened, str) or not opened:
        return NotReached(Answer(Meaning.UNCLEAR, "Slack opened no conversation", status=answer.status), OPEN)
    return Place(opened, place.thread_ts)
