"""Payloads of the kind: an event that a notice makes a post of, or the post itself."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import ConfigDict

from edgeoutbox import Notice, NotNeeded
from edgeoutbox_slack.places import Place
from edgeoutbox_slack.posts import Post, PostFields

A_contra = TypeVar("A_contra", contravariant=True)


class SlackNotice(Notice[Post, A_contra], Generic[A_contra]):
    """An event that becomes a post. The payload holds the event: identifiers, not the text.

        class Deployed(SlackNotice[Releases]):
            notice: Literal["deployed"] = "deployed"
            release: int

            async def prepare(self, app: Releases) -> Post | NotNeeded:
                release = await app.release(self.release)
                if release.rolled_back:
                    return NotNeeded("the release was rolled back")
                return Post(channel=release.team_channel, text=release.summary)

    `prepare` runs at enqueue and before every attempt that may post. What it raises before the post is a retry;
    `InvalidPayload` ends the action.
    """

    async def prepare(self, app: A_contra) -> Post | NotNeeded:
        """The post of this event now, or `NotNeeded`. `app` is what the application gave to the adapter."""
        raise NotImplementedError

    async def posted_to(self, app: A_contra) -> Place | None:
        """Where an earlier attempt of this event posted; asked when its answer was lost.

        By default where `prepare` would post now, and `None`, which leaves it unknown, when that is nowhere. Override
        it when the place can change.
        """
        post = await self.prepare(app)
        return post.place if isinstance(post, Post) else None

    def natural_lane(self) -> str | Place | None:
        """The lane for an action whose caller names none, made from the event alone.

        A `Place` stands for the kind's lane of that place; `None` leaves the action alone.
        """
        return None


class Message(SlackNotice[Any], PostFields):
    """The post itself, as the payload holds it: for a producer without code of its own, such as one INSERT."""

    model_config = ConfigDict(hide_input_in_errors=True)

    notice: Literal["message"] = "message"

    async def prepare(self, app: Any) -> Post:  # noqa: ARG002 - the signature of a notice
        """The post."""
        return Post(**{name: getattr(self, name) for name in PostFields.model_fields})

    def natural_lane(self) -> Place:
        """Its channel or thread."""
        return self.place
