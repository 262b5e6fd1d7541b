"""Slack for edgeoutbox: each post made at most once, and looked for in the channel when its answer was lost.

`docs/adapters/slack.md` says what it promises and how it is configured.
"""

from edgeoutbox_slack.adapter import SlackAdapter
from edgeoutbox_slack.errors import InvalidPost
from edgeoutbox_slack.notices import Message, SlackNotice
from edgeoutbox_slack.places import Place
from edgeoutbox_slack.posts import Post

__all__ = ["InvalidPost", "Message", "Place", "Post", "SlackAdapter", "SlackNotice"]
