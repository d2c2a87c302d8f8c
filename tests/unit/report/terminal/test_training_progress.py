import logging
import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from trainyard.report.terminal.training_progress import ProgressDisplay, event_line, log_line, summary_line

ROW = {"step": 312, "loss": 1.312, "tokens_per_second": 41_220.4, "time": 1.0}


def test_the_log_line_has_the_documented_format() -> None:
    row = {"step": 100, "loss": 2.8712, "val_loss": 2.9018, "tokens_per_second": 41_220.4, "mfu": 0.714}
    on_gpu = {**row, "gpu_memory_bytes": 8_000_000_000}
    assert log_line(on_gpu, 600) == "step 100/600 loss 2.871 val_loss 2.902 tokens/s 41,220 mfu 0.71"
    assert log_line(row, 600) == "step 100/600 loss 2.871 val_loss 2.902 tokens/s 41,220"
    assert log_line({key: row[key] for key in ("step", "loss", "tokens_per_second")}, 600) == (
        "step 100/600 loss 2.871 tokens/s 41,220"
    )


def test_important_events_become_sentences_and_others_nothing() -> None:
    saved = event_line("checkpoint_saved", {"step": 200, "bytes": 43_100_000, "seconds": 0.0112})
    assert saved == "checkpoint step-00000200 saved: 43.1 MB, blocked 11 ms"
    removed = event_line("checkpoint_removed", {"step": 100, "keep_last": 2})
    assert removed == "checkpoint step-00000100 removed (keep_last 2)"
    assert event_line("something_else", {}) is None
    degraded = event_line("network_degraded", {"step": 1, "reason": "TCP between machines"})
    assert degraded == "network: TCP between machines"


@pytest.mark.parametrize("live", [False, True])
def test_a_degraded_network_is_a_warning_everywhere(caplog: pytest.LogCaptureFixture, live: bool) -> None:
    ProgressDisplay(live=live).on_event("network_degraded", {"step": 1, "reason": "TCP between machines"})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "network: TCP between machines")
    ]


def test_the_summary_compares_and_leaves_out_unknown_figures() -> None:
    outcome = {"steps": 600, "tokens": 19_660_800, "seconds": 112.0, "first_loss": 5.56, "final_loss": 1.081}
    assert summary_line(outcome) == "600 steps, 19.7 M tokens in 1:52 · loss 5.56 → 1.08"
    assert summary_line({**outcome, "bits_per_byte": 1.714}).endswith(" · validation 1.71 bits/byte")


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_live_line_fits_the_terminal() -> None:
    row = {**ROW, "val_loss": 1.3, "val_bits_per_byte": 1.9}
    for columns, there, gone in (
        (120, ["bits/byte", "41.2 k tok/s", " left", "▕"], []),
        (90, ["bits/byte", "41.2 k tok/s", " left"], ["▕"]),
        (80, ["41.2 k tok/s", " left"], ["▕", "bits/byte"]),
        (60, [" left"], ["▕", "bits/byte", "tok/s"]),
        (20, [" training      ste"], ["loss"]),
    ):
        line = live_lines(row, width=columns - 1)[-1]
        assert len(line) < columns
        assert all(part in line for part in there), line
        assert not any(part in line for part in gone), line


def test_the_live_line_shows_bits_per_byte_after_a_validation() -> None:
    """Before the first validation the bytes per token are not known, so the unit is not shown."""
    validated = {**ROW, "step": 2, "loss": 2.0, "val_loss": math.log(2), "val_bits_per_byte": 0.25}
    last = {**ROW, "step": 600, "loss": 4 * math.log(2)}
    before, at, after = live_lines({**ROW, "step": 1}, validated, last)
    assert "bits" not in before
    assert "loss 2.000  0.72 bits/byte" in at
    assert "loss 2.773  1.00 bits/byte" in after


def live_lines(*rows: dict[str, float], width: int = 119) -> list[str]:
    """The lines on a terminal after each of `rows`, which come one second apart."""
    clock, lines = Clock(), []
    display = ProgressDisplay(live=True, clock=clock)
    display.on_event("started", {"step": 0, "steps": 600, "run_id": "r"})
    for row in rows:
        clock.now += 1.0
        display.on_row(row)
        lines.append(display.line(width))
    return lines


@pytest.mark.parametrize("width", [39, 79, 119])
def test_the_live_line_changes_every_second_after_two_seconds(width: int) -> None:
    """For every kind of work: lines fit, and lines one second apart differ once the work takes 2 s."""
    clock = Clock()
    display = ProgressDisplay(live=True, clock=clock)
    moments: list[Callable[[], None]] = [
        lambda: display.begin("importing torch"),
        lambda: display.begin("reading", 12_000_000),
        lambda: display.on_event("working", {"what": "loading step-00000100, which has a long name"}),
        lambda: display.on_event("started", {"step": 0, "steps": 600, "run_id": "r", "compiles": True}),
        lambda: display.on_row({**ROW, "step": 1}),
        lambda: display.on_event("working", {"what": "validating step 2"}),
        lambda: display.on_event("working", {"what": ""}),
        lambda: display.on_row({**ROW, "step": 600, "val_loss": 1.3, "val_bits_per_byte": 1.9}),
        lambda: display.on_event("working", {"what": "writing a sample"}),
    ]
    for begin in moments:
        begin()
        lines = []
        for _ in range(8):
            lines.append(display.line(width)[1:])
            clock.now += 1.0
        assert all(0 < len(line) < width for line in lines)
        assert all(before != after for before, after in pairwise(lines[2:])), lines


def test_the_first_step_shows_compiling_and_a_hang_ends_the_live_line() -> None:
    display = ProgressDisplay(live=True, clock=Clock())
    display.on_event("started", {"step": 9, "steps": 600, "run_id": "r", "compiles": True})
    assert "step 10/600, compiling" in display.line(79)
    display.on_event("hang_suspected", {"step": 9})
    assert display.line(79) == ""


def test_a_log_reports_a_long_step_first_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainyard")
    clock = Clock()
    display = ProgressDisplay(live=False, clock=clock)
    display.on_event("started", {"step": 0, "steps": 600, "run_id": "r"})
    display.on_row({**ROW, "step": 1})
    caplog.clear()
    told = []
    for _ in range(1200):
        clock.now += 0.5
        display.log_progress()
        if caplog.records:
            told.append(round(clock.now - 1000))
            caplog.clear()
    assert told == [60, 120, 240, 480]


def test_a_log_gets_plain_lines_but_not_one_per_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainyard")
    display = ProgressDisplay(live=False)
    display.on_event("started", {"step": 0, "steps": 600, "run_id": "r"})
    for step in range(1, 101):
        display.on_row({**ROW, "step": step} | ({"val_loss": 1.5} if step == 50 else {}))
    display.on_row({**ROW, "step": 600})
    steps = [record.message.split()[1] for record in caplog.records if record.message.startswith("step")]
    assert steps == ["1/600", "50/600", "600/600"]
    assert not any("\r" in record.message for record in caplog.records)


def test_a_run_that_was_finished_before_is_not_told_as_one_that_trained() -> None:
    display = ProgressDisplay(live=True)
    assert not display.was_done_before
    display.on_event("finished_before", {"step": 600})
    assert display.was_done_before
    outcome = {"steps": 600, "tokens": 19_700_000, "seconds": 112.0}
    told = summary_line(outcome, done_before=True)
    assert told == "nothing to do, all steps were done before: 600 steps, 19.7 M tokens in 1:52"
    assert summary_line(outcome) == "600 steps, 19.7 M tokens in 1:52"
