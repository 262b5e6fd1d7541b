"""What `doctor` learns from Slack without posting anything."""

import secrets
from collections.abc import Mapping, Sequence

from edgeoutbox import Check, Deadline
from edgeoutbox_slack.answers import Answer
from edgeoutbox_slack.client import Slack
from edgeoutbox_slack.codes import Meaning
from edgeoutbox_slack.marker import Identity, mark
from edgeoutbox_slack.places import Place
from edgeoutbox_slack.posts import Post
from edgeoutbox_slack.steps import POST, WHO, NotReached, identity_of, open_conversation

_POSTING = "chat:write"
_READING: Mapping[str, str] = {
    "channels:history": "public channels",
    "groups:history": "private channels",
    "im:history": "direct messages",
    "mpim:history": "group messages",
}
_DIRECT = ("im:write", "im:history")
_SORTS: Mapping[str, tuple[str, ...]] = {"C": ("channels", "groups"), "D": ("im",), "G": ("groups", "mpim")}
"""What a conversation may be to Slack's scopes, by the first letter of its id."""

_REINSTALL = "under OAuth & Permissions, then install the app again"
_INVITE = "invite the app there: /invite @its-name"

_MENDS: Mapping[str, str] = {
    "not_in_channel": _INVITE,
    "channel_not_found": f"look at the id; if it is a private channel, {_INVITE}",
    "is_archived": "unarchive it, or post elsewhere",
    "not_allowed_token_type": "use a bot's token, xoxb-...",
}
_NEW_TOKEN = "install the app again and set `token` to what it shows"  # noqa: S105 - advice, not a token


async def check_slack(slack: Slack, known: Identity, places: Sequence[Place], timeout: float) -> list[Check]:
    """Who we are, what we may do, and whether each place can be posted to and read back."""
    answer = await slack.read(WHO, {}, Deadline.after(timeout))
    if answer.meaning is not Meaning.CONFIRMED:
        return [Check("token", ok=False, detail=_mended(answer, "auth.test"))]
    checks = [Check("token", ok=True, detail="accepted"), _identity(known, answer), *_scopes(answer.scopes)]
    if not places:
        checks.append(Check("channels", ok=True, detail="none is looked at; name them in `channels`"))
    for place in places:
        checks += [_person(place, answer.scopes)] if place.is_person else await _channel(slack, place, timeout)
    return checks


async def try_out(slack: Slack, post: Post) -> Check:
    """Make one post without an action; it is of no key, so that nothing will look for it."""
    name = "test message"
    place = await open_conversation(slack, post.place, Deadline.after(slack.timeout))
    if isinstance(place, NotReached):
        return Check(name, ok=False, detail=place.answer.said)
    body = post.body(place.channel, mark(f"test:{secrets.token_hex(16)}"))
    answer = await slack.write(POST, body, Deadline.after(slack.timeout))
    return Check(name, ok=answer.meaning is Meaning.CONFIRMED, detail=answer.said)


def _identity(known: Identity, answer: Answer) -> Check:
    identity = identity_of(answer) if known == Identity() else known
    if isinstance(identity, NotReached):
        return Check("identity", ok=False, detail=identity.answer.said)
    return Check("identity", ok=True, detail=", ".join(filter(None, (identity.bot_id, identity.app_id))))


def _scopes(scopes: frozenset[str] | None) -> list[Check]:
    if scopes is None:
        return [Check("scopes", ok=True, detail="not told by Slack; each channel shows them")]
    posting = Check("scope to post", ok=True, detail=_POSTING)
    if _POSTING not in scopes:
        posting = Check("scope to post", ok=False, detail=f"add {_POSTING} {_REINSTALL}")
    missing = {scope: where for scope, where in _READING.items() if scope not in scopes}
    if len(missing) == len(_READING):
        detail = f"none: lost answers end UNCERTAIN; add {', '.join(missing)} {_REINSTALL}"
        return [posting, Check("scopes to read back", ok=False, detail=detail)]
    without = f"; without {', '.join(missing)} nothing in {', '.join(missing.values())} can be read back"
    have = ", ".join(scope for scope in _READING if scope in scopes)
    return [posting, Check("scopes to read back", ok=True, detail=f"{have}{without if missing else ''}")]


def _person(place: Place, scopes: frozenset[str] | None) -> Check:
    name = f"person {place.channel}"
    missing = [scope for scope in _DIRECT if scopes is not None and scope not in scopes]
    if missing:
        return Check(name, ok=False, detail=f"add {', '.join(missing)} {_REINSTALL}")
    return Check(name, ok=True, detail="the scopes for direct messages are there; nothing was opened")


async def _channel(slack: Slack, place: Place, timeout: float) -> list[Check]:
    name = f"channel {place.channel}"
    answer = await slack.read("conversations.info", {"channel": place.channel}, Deadline.after(timeout))
    if answer.meaning is not Meaning.CONFIRMED:
        unseen = Check(name, ok=False, detail=_mended(answer, _scopes_for(place, "read")))
        # The scope to look at a channel is needed for nothing else: its history may be readable all the same.
        return [unseen, await _history(slack, place, timeout)] if answer.code == "missing_scope" else [unseen]
    found = answer.body.get("channel")
    channel = found if isinstance(found, Mapping) else {}
    if channel.get("is_archived") is True:
        return [Check(name, ok=False, detail=f"is archived: {_MENDS['is_archived']}")]
    if channel.get("is_member") is False:
        return [Check(name, ok=False, detail=f"the app is no member: {_INVITE}")]
    return [Check(name, ok=True, detail="the app may post there"), await _history(slack, place, timeout)]


async def _history(slack: Slack, place: Place, timeout: float) -> Check:
    name = f"read back {place.channel}"
    arguments = {"channel": place.channel, "limit": 1, "include_all_metadata": True}
    answer = await slack.read("conversations.history", arguments, Deadline.after(timeout))
    if answer.meaning is Meaning.CONFIRMED and isinstance(answer.body.get("messages"), list):
        return Check(name, ok=True, detail="its history can be read")
    if answer.meaning is Meaning.CONFIRMED:
        return Check(name, ok=False, detail="Slack's answer is not readable: lost answers would end UNCERTAIN")
    return Check(name, ok=False, detail=_mended(answer, _scopes_for(place, "history")))


def _scopes_for(place: Place, right: str) -> str:
    return ", ".join(f"{sort}:{right}" for sort in _SORTS.get(place.channel[:1], _SORTS["C"]))


def _mended(answer: Answer, scopes: str) -> str:
    if answer.meaning is Meaning.LIMITED:
        return f"{answer.said}: ask again in {answer.rest:.0f} seconds"
    if answer.code == "missing_scope":
        return f"{answer.said}: add {scopes} {_REINSTALL}"
    if answer.meaning is Meaning.LOGIN:
        return f"{answer.said}: {_NEW_TOKEN}"
    mend = _MENDS.get(answer.code or "")
    return f"{answer.said}: {mend}" if mend else answer.said
