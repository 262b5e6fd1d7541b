"""How long an endpoint is left alone, and for how long a call may be repeated."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from edgeoutbox.errors import ConfigurationError
from edgeoutbox_webhook.repeating import Repeating, duration
from edgeoutbox_webhook.waits import LONG, LONGEST, Rests, doubling, retry_after, spread

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
MINUTE = 60_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("0", 1.0),
        ("0.0001", 1.0),
        ("14401", LONGEST),
        ("9" * 8000, LONGEST),
        ("Thu, 01 Jan 2026 00:02:00 GMT", 120.0),
        ("Thursday, 01-Jan-26 00:02:00 GMT", 120.0),
        ("Thu Jan  1 00:02:00 2026", 120.0),
        ("Thu, 01 Jan 2026 02:02:00 +0200", 120.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 1.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST),
        ("", None),
        (None, None),
        ("-1", None),
        ("+1", None),
        ("1e3", None),
        ("0x10", None),
        ("inf", None),
        ("nan", None),
        ("1_000", None),
        ("١٢", None),
        ("1,5", None),
        ("120, 60", None),
        ("soon", None),
        ("Thu, 99 Jan 2026 00:00:00 GMT", None),
        ("Thu, 01 Jan 99999 00:00:00 GMT", None),
        ("\0", None),
        (", ; :", None),
    ],
)
def test_what_a_retry_after_asks_for(text: str | None, seconds: float | None) -> None:
    """Seconds or a date, clamped to between one second and four hours; anything else asks for nothing."""
    assert retry_after(text, DATE) == seconds


def test_a_date_without_the_answers_own_counts_from_now() -> None:
    """The local clock stands in where the answer has no readable date."""
    later = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    for own in (None, "soon"):
        found = retry_after(later, own)
        assert found is not None
        assert 590.0 <= found <= 600.0


def test_waits_double_up_to_four_hours() -> None:
    """Fifteen minutes, thirty, and so on."""
    assert [doubling(LONG, times) for times in (0, 1, 3, 4, 5, 1000)] == [900, 1800, 7200, 14_400, 14_400, 14_400]
    assert all(100.0 <= spread(100.0) <= 110.0 for _ in range(100))


def test_an_endpoint_that_cannot_be_reached_rests_for_longer_each_time() -> None:
    """Attempts that fail at the same moment count once; a connection ends the rest and the count."""
    rests, now = Rests(), 5 * MINUTE
    assert rests.left("billing", now) == 0.0
    assert rests.unreachable("billing", now) == 900.0
    assert rests.unreachable("billing", now + MINUTE) == 840.0
    assert rests.left("billing", now + MINUTE) == 840.0
    assert rests.left("crm", now) == 0.0
    assert rests.unreachable("billing", now + 15 * MINUTE) == 1800.0
    rests.reached("billing")
    assert rests.left("billing", now + 15 * MINUTE) == 0.0
    assert rests.unreachable("billing", now + 15 * MINUTE) == 900.0


def test_an_endpoint_rests_as_long_as_the_longest_that_it_asked_for() -> None:
    """A shorter request that comes after a longer one does not end it."""
    rests = Rests()
    assert rests.asked("billing", 0, 600.0) == 600.0
    assert rests.asked("billing", MINUTE, 5.0) == 5.0
    assert rests.left("billing", MINUTE) == 540.0


def test_a_clock_that_was_set_back_ends_a_rest() -> None:
    """A rest that would last for more than the longest wait is a changed clock, not a rest."""
    rests = Rests()
    rests.unreachable("billing", 1_000_000 * MINUTE)
    assert rests.left("billing", 0) == 0.0


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400.0), ("30m", 1800.0), ("90 s", 90.0), ("7d", 604_800.0), (600, 600.0)]
)
def test_a_duration_is_a_number_with_a_unit(text: str | float, seconds: float) -> None:
    """Or a number of seconds."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1.5h", "24 hours", "1h30m", float("inf"), float("nan"), "٢h"])
def test_what_is_no_duration_is_refused(text: str | float) -> None:
    """The message names the setting."""
    with pytest.raises(ConfigurationError, match="deduplicates_for"):
        duration(text)


def test_a_repeat_must_arrive_while_its_id_is_known() -> None:
    """The time counts from the first write, less one write window and an allowance for clocks."""
    day = Repeating(86_400.0, 60.0)
    assert day.seconds == 86_400.0 - 60.0 - 864.0
    assert Repeating(600.0, 60.0).seconds == 600.0 - 60.0 - 60.0
    first = 1_000_000
    assert day.left(first, first) == day.seconds
    assert day.left(first, first + 85_475_000) == 1.0
    assert day.left(first, first + 85_476_000) == 0.0
    assert day.left(first, first - 1) == 0.0, "a clock behind the first write tells nothing"
