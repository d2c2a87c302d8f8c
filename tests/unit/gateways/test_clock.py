"""The time by which requests are signed: the machine's, or the service's where they differ."""

from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from trainyard.gateways.s3 import clock
from trainyard.gateways.s3.clock import Clock

NONE = timedelta()


def refusal(code: str, off: timedelta | None) -> dict[str, Any]:
    date = {} if off is None else {"date": format_datetime(clock.machine_time() + off)}
    return {"Error": {"Code": code}, "ResponseMetadata": {"HTTPHeaders": date}}


@pytest.mark.parametrize(
    ("code", "minutes", "right"),
    [
        ("RequestTimeTooSkewed", 120, True),
        ("RequestTimeTooSkewed", -20, True),
        ("RequestTimeTooSkewed", 0, False),
        ("RequestTimeTooSkewed", None, False),
        ("403", 120, True),
        ("403", 5, False),
        ("AccessDenied", 120, False),
    ],
)
def test_only_a_refusal_of_the_time_that_can_be_put_right_is_one(
    code: str, minutes: float | None, right: bool
) -> None:
    ours, off = Clock(), None if minutes is None else timedelta(minutes=minutes)
    assert ours.adjust(refusal(code, off), NONE) is right
    if right and off is not None:
        assert abs(ours.offset - off) < timedelta(seconds=3)
        assert abs(ours.now() - clock.machine_time() - off) < timedelta(seconds=3)
    else:
        assert ours.offset == NONE


def test_what_another_thread_put_right_is_asked_again_and_what_was_right_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, refused = Clock(), refusal("RequestTimeTooSkewed", timedelta(hours=2))
    assert ours.adjust(refused, NONE)
    assert ours.adjust(refused, NONE)  # signed before the first one was answered
    assert not ours.adjust(refused, ours.offset)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("date", ["", "yesterday", "Sat, 21 Nov 2026 10:00:00 -0000", None])
def test_an_answer_without_a_time_that_can_be_read_tells_none(date: str | None) -> None:
    headers = {} if date is None else {"date": date}
    assert clock.stated_offset({"ResponseMetadata": {"HTTPHeaders": headers}}) is None
    assert "It is" not in clock.difference("https://s3", None)
