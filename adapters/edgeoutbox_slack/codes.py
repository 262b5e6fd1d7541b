"""What each of Slack's error codes means, as a table.

The codes are those of https://docs.slack.dev/reference/methods/chat.postMessage. One that is not here may mean
anything, so it is `UNCLEAR`: a doubt never becomes a second post.
"""

from collections.abc import Mapping
from enum import StrEnum


class Meaning(StrEnum):
    """What an answer, or its absence, tells about the request."""

    CONFIRMED = "confirmed"
    """It was done, and says what was done."""
    LIMITED = "limited"
    """Too fast: nothing was done."""
    LATER = "later"
    """Nothing was done, and for a while nothing will be."""
    CUT = "cut"
    """Only a part of the request arrived: nothing was done."""
    LOGIN = "login"
    """The token is not accepted: nothing was done, for any request."""
    NO_PLACE = "no_place"
    """Nobody can receive it there."""
    NO_RIGHT = "no_right"
    """The app or the workspace is set up so that it is not allowed."""
    BAD_CONTENT = "bad_content"
    """What it holds is refused."""
    UNREACHABLE = "unreachable"
    """No connection: nothing was asked."""
    UNSENT = "unsent"
    """The time ran out before the first byte of the request was written."""
    UNCLEAR = "unclear"
    """It may have been done."""


_LISTED: Mapping[Meaning, tuple[str, ...]] = {
    Meaning.LIMITED: ("ratelimited", "rate_limited"),
    Meaning.LATER: ("message_limit_exceeded", "team_added_to_org", "org_login_required"),
    Meaning.CUT: ("request_timeout",),
    Meaning.UNCLEAR: ("fatal_error", "internal_error", "service_unavailable"),
    Meaning.LOGIN: (
        *("invalid_auth", "not_authed", "token_expired", "token_revoked", "account_inactive"),
        *("accesslimited", "two_factor_setup_required"),
    ),
    Meaning.NO_PLACE: (
        *("channel_not_found", "not_in_channel", "is_archived", "messages_tab_disabled", "cannot_reply_to_message"),
    ),
    Meaning.NO_RIGHT: (
        *("missing_scope", "no_permission", "access_denied", "not_allowed_token_type", "ekm_access_denied"),
        "unknown_method",
    ),
    Meaning.BAD_CONTENT: (
        *("msg_too_long", "no_text", "msg_blocks_too_long", "too_many_attachments"),
        *("attachment_payload_limit_exceeded", "markdown_text_conflict", "metadata_too_large"),
        *("metadata_must_be_sent_from_app", "invalid_charset", "invalid_form_data", "invalid_post_type"),
    ),
}

CODES: Mapping[str, Meaning] = {code: meaning for meaning, codes in _LISTED.items() for code in codes}

FAMILIES: Mapping[str, Meaning] = {
    "restricted_action": Meaning.NO_RIGHT,
    "deprecated_": Meaning.NO_RIGHT,
    "invalid_blocks": Meaning.BAD_CONTENT,
    "invalid_metadata_": Meaning.BAD_CONTENT,
    "invalid_arg": Meaning.BAD_CONTENT,
}
"""Codes that begin with these."""

OPENING: Mapping[str, Meaning] = dict.fromkeys(
    (
        *("user_not_found", "user_not_visible", "user_disabled", "users_not_found", "cannot_dm_bot"),
        *("not_enough_users", "method_not_supported_for_channel_type"),
    ),
    Meaning.NO_PLACE,
)
"""Codes that `conversations.open` has beside them."""


NO_MORE: Mapping[str, Meaning] = {}
"""A method that has no codes beside the listed ones."""


def look_up(code: str, more: Mapping[str, Meaning] = NO_MORE) -> tuple[Meaning, str | None]:
    """What a code means, and the name that may be stored: a known code, or the beginning that it has in common.

    A code that is not known has no name here: what it says is the provider's text.
    """
    known = CODES.get(code) or more.get(code)
    if known is not None:
        return known, code
    for beginning, meaning in FAMILIES.items():
        if code.startswith(beginning):
            return meaning, f"{beginning}*"
    return Meaning.UNCLEAR, None
