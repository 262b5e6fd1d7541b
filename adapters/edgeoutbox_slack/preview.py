"""What will be posted, as text for a person who decides whether it is."""

import json
import unicodedata

from edgeoutbox_slack.posts import Post

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def preview_text(post: Post) -> str:
    """The post with everything in it. Characters that hide, reorder or act on a terminal are written as their code."""
    flags = ("reply_broadcast", "unfurl_links", "unfurl_media")
    lines = [
        f"To: {post.channel}",
        *([f"Thread: {post.thread_ts}"] if post.thread_ts else []),
        *([f"As: {_visible(post.username)}"] if post.username else []),
        *([f"Icon: {_visible(post.icon_emoji)}"] if post.icon_emoji else []),
        *(f"{name}: {str(value).lower()}" for name in flags if (value := getattr(post, name)) is not None),
    ]
    for title, text in (("text", post.text), ("markdown", post.markdown_text)):
        if text is not None:
            lines += ["", f"--- {title} ---", *(_visible(line) for line in text.splitlines())]
    if post.blocks:
        blocks = json.dumps(list(post.blocks), indent=2, ensure_ascii=False)
        lines += ["", "--- blocks ---", *(_visible(line) for line in blocks.splitlines())]
    return "\n".join(lines)


def _visible(text: str) -> str:
    return "".join(char if char == "\t" or not _hides(char) else f"\\u{ord(char):04x}" for char in text)


def _hides(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN
