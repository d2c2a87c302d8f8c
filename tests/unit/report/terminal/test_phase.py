"""A phase with an injected clock: its line at every width, and the times of its log lines."""

import itertools
import logging

import pytest

from trainyard.report.terminal.phase import PhaseDisplay, bar

WIDTHS = (19, 39, 79, 119)
GB = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def live_lines(total: int | None, each: int, *, seconds: int, width: int, unit: str = "B") -> list[str]:
    """The line at each second of a phase in which `each` is done per second."""
    clock = Clock()
    display = PhaseDisplay("stored", clock=clock)
    display.begin("reading back the store", total, unit)
    lines = []
    for _ in range(seconds):
        lines.append(display.line(width))
        clock.now += 1.0
        display.advance(each)
    return lines


def test_a_line_has_the_amount_the_speed_and_the_time_left() -> None:
    last = live_lines(4_800_000_000, 300_000_000, seconds=5, width=119)[-1][1:]
    assert last == (
        " stored        reading back the store  1.2 of 4.8 GB  300.0 MB/s  0:12 left  ▕████            ▏"
    )


def test_units_other_than_bytes_are_counted_by_name() -> None:
    assert (
        "312 of 1,614 files  156 files/s  8.3 s left"
        in live_lines(1614, 156, seconds=3, width=119, unit="files")[-1]
    )


def test_a_line_fits_every_width_and_always_changes() -> None:
    for width, total, each in itertools.product(WIDTHS, (None, 0, 7, 4 * GB), (0, 1, GB // 3)):
        lines = live_lines(total, each, seconds=12, width=width)
        assert all(0 < len(line) <= width for line in lines)
        assert all(line[1:].startswith(" stored"[: width - 1]) for line in lines)
        still = [line[1:] for line in lines[3:]] if not each and width >= 39 else []
        assert len(set(still)) == len(still), "without progress the elapsed time still changes"


def test_the_least_important_parts_are_left_out_first() -> None:
    for width, there, gone in (
        (79, ["1.2 of 4.8 GB", "MB/s", "left"], "▕"),
        (70, ["1.2 of 4.8 GB", "left"], "MB/s"),
        (39, ["…", "1.2 of 4.8 GB"], "left"),
    ):
        line = live_lines(4_800_000_000, 300_000_000, seconds=5, width=width)[-1]
        assert all(part in line for part in there) and gone not in line, line


def test_bytes_that_were_read_twice_never_exceed_the_total() -> None:
    line = live_lines(10, 7, seconds=4, width=119)[-1]
    assert "10 of 10 B" in line
    assert "0.0 s left" in line


def test_the_line_says_waiting_when_no_bytes_arrive() -> None:
    clock = Clock()
    display = PhaseDisplay("stored", clock=clock)
    display.begin("fetching", 100)
    display.advance(50)
    clock.now += 7.0
    assert "50 of 100 B  waiting 7.0 s" in display.line(79)
    display.advance(1)
    assert "waiting" not in display.line(79)
    display.advance(49)
    clock.now += 3.0
    assert "100 of 100 B  ending 3.0 s" in display.line(79)


def log_lines(caplog: pytest.LogCaptureFixture, seconds: int, *, each: int = 0) -> list[tuple[float, str]]:
    """The times and texts of the log lines of a phase of that length, with two calls per second."""
    caplog.set_level(logging.INFO, logger="trainyard")
    caplog.clear()
    clock, found = Clock(), []
    display = PhaseDisplay("stored", clock=clock)
    display.begin("reading back the store", 4_800_000_000)
    for _ in range(2 * seconds):
        display.log_progress()
        found += [(clock.now - 50.0, record.getMessage()) for record in caplog.records]
        caplog.clear()
        clock.now += 0.5
        display.advance(each)
    return found


def test_work_of_two_seconds_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert log_lines(caplog, 2) == []


def test_long_work_is_logged_every_ten_seconds_and_later_at_least_every_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    moments = [moment for moment, _ in log_lines(caplog, 3600)]
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert moments[0] == 2.0
    assert all(10.0 <= gap <= 60.5 for gap in gaps)
    assert gaps[:5] == [10.0] * 5
    assert gaps[-1] >= 60.0


def test_a_log_line_has_the_figures_but_no_bar_or_spinner(caplog: pytest.LogCaptureFixture) -> None:
    lines = [text for _, text in log_lines(caplog, 13, each=150_000_000)]
    assert lines[1] == "stored: reading back the store, 3.6 of 4.8 GB, 300.0 MB/s, 4.0 s left"
    assert not any(set("\r\x1b▕█") & set(line) for line in lines)


def test_the_next_work_starts_from_zero(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainyard")
    clock = Clock()
    display = PhaseDisplay("stored", clock=clock)
    for what in ("listing", "reading", "hashing"):
        display.begin(what)
        clock.now += 1.9
        display.log_progress()
    assert not caplog.records
    assert display.line(79).endswith("hashing")


def test_the_bar_always_has_the_same_width() -> None:
    assert {len(bar(share)) for share in (0.0, 0.01, 0.5, 0.999, 1.0, 2.0)} == {18}
