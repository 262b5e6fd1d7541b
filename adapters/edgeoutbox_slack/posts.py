"""A post before it is made: what an application's notice answers."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgeoutbox import validation_message
from edgeoutbox_slack.errors import InvalidPost
from edgeoutbox_slack.places import Place

LONGEST_TEXT = 4000
"""Slack may make several messages of a longer one, and then nobody can say whether all of them exist."""

LONGEST_MARKDOWN = 12_000
MOST_BLOCKS = 50
LONGEST_NAME = 80


def _clean(value: str) -> str:
    if "\0" in value:
        raise ValueError("contains a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("contains a character that has no encoding") from None
    return value


def _at_most(characters: int) -> AfterValidator:
    def check(value: str) -> str:
        # As Slack's own clients count: an emoji beyond the first 65,536 characters is two.
        if len(_clean(value).encode("utf-16-le")) // 2 > characters:
            raise ValueError(f"is longer than {characters} characters")
        return value

    return AfterValidator(check)


Channel = Annotated[str, Field(pattern=r"^[CGDUW][A-Z0-9]{1,30}$")]
Timestamp = Annotated[str, Field(pattern=r"^[0-9]{1,12}\.[0-9]{6}$")]
Emoji = Annotated[str, Field(pattern=r"^:[^:\s]{1,100}:$"), AfterValidator(_clean)]
Blocks = Annotated[tuple[dict[str, Any], ...], Field(repr=False, max_length=MOST_BLOCKS)]


class PostFields(BaseModel):
    """The fields of a post, which a literal message has too."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    channel: Channel
    text: Annotated[str, _at_most(LONGEST_TEXT)] | None = Field(default=None, repr=False)
    markdown_text: Annotated[str, _at_most(LONGEST_MARKDOWN)] | None = Field(default=None, repr=False)
    blocks: Blocks = ()
    thread_ts: Timestamp | None = None
    reply_broadcast: bool | None = None
    unfurl_links: bool | None = None
    unfurl_media: bool | None = None
    username: Annotated[str, _at_most(LONGEST_NAME)] | None = Field(default=None, repr=False)
    icon_emoji: Emoji | None = None

    @model_validator(mode="after")
    def _can_be_posted(self) -> "PostFields":
        if not (self.text and self.text.strip()) and not self.blocks and not (self.markdown_text or "").strip():
            raise ValueError("text: a post needs a text, blocks or a markdown_text")
        if self.markdown_text is not None and (self.text is not None or self.blocks):
            raise ValueError("markdown_text: goes without text and blocks")
        if self.reply_broadcast and self.thread_ts is None:
            raise ValueError("reply_broadcast: only a reply can be broadcast; give its thread_ts")
        return self

    @property
    def place(self) -> Place:
        """Where it goes."""
        return Place(self.channel, self.thread_ts)


class Post(PostFields):
    """One post. `channel` is the id of a channel, or of a user who gets it as a direct message.

    `text` has at most 4,000 characters; beside `blocks` it is what notifications show. `markdown_text` takes the place
    of both, with at most 12,000. `username` and `icon_emoji` need the scope `chat:write.customize`. Raises
    `InvalidPost`, naming the field.
    """

    model_config = ConfigDict(extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidPost(validation_message(error)) from None

    def body(self, channel: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `chat.postMessage`, the same for every attempt."""
        given = self.model_dump(mode="json", exclude={"channel"}, exclude_none=True)
        if not self.blocks:
            del given["blocks"]
        return {"channel": channel, **given, "metadata": metadata}
