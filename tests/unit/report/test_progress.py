import io
import logging
import math

import pytest

from trainyard.report.progress import ProgressDisplay, bar, event_line, log_line, summary_line

ROW = {"step": 312, "loss": 1.312, "tokens_per_second": 41_220.4, "time": 1.0}


def test_the_log_line_is_that_of_the_house() -> None:
    row = {"step": 100, "loss": 2.8712, "val_loss": 2.9018, "tokens_per_second": 41_220.4, "mfu": 0.714}
    assert log_line(row, 600) == "step 100/600 loss 2.871 val_loss 2.902 tokens/s 41,220 mfu 0.71"
    assert log_line({key: row[key] for key in ("step", "loss", "tokens_per_second")}, 600) == (
        "step 100/600 loss 2.871 tokens/s 41,220"
    )


def test_a_run_on_rewards_shows_them() -> None:
    assert log_line({**ROW, "reward": 0.5311}, 600).startswith("step 312/600 loss 1.312 reward 0.531")
    terminal = io.StringIO()
    ProgressDisplay(terminal).on_row({**ROW, "reward": 0.5311})
    assert "loss 1.312  reward 0.531" in terminal.getvalue()
    outcome = {"steps": 2, "tokens": 20, "seconds": 1.0, "first_loss": 0.1, "final_loss": -0.1}
    rewards = {"first_reward": 0.532, "final_reward": 0.908}
    assert summary_line(outcome | rewards).endswith("· reward 0.53 → 0.91")
    warm = event_line("warm_started", {"steps": 60, "first_loss": 5.56, "final_loss": 1.2})
    assert warm == "started warm: 60 supervised steps, loss 5.56 → 1.20"


def test_events_that_people_want_are_sentences_and_others_are_silent() -> None:
    saved = event_line("checkpoint_saved", {"step": 200, "bytes": 43_100_000, "seconds": 0.0112})
    assert saved == "checkpoint step-00000200 saved: 43.1 MB, blocked 11 ms"
    removed = event_line("checkpoint_removed", {"step": 100, "keep_last": 2})
    assert removed == "checkpoint step-00000100 removed (keep_last 2)"
    assert event_line("something_else", {}) is None
    degraded = event_line("network_degraded", {"step": 1, "reason": "TCP between machines"})
    assert degraded == "network: TCP between machines"


@pytest.mark.parametrize("live", [None, io.StringIO()])
def test_a_network_that_is_not_what_was_paid_for_is_a_warning_everywhere(
    caplog: pytest.LogCaptureFixture, live: io.StringIO | None
) -> None:
    ProgressDisplay(live).on_event("network_degraded", {"step": 1, "reason": "TCP between machines"})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "network: TCP between machines")
    ]


def test_the_summary_compares_and_leaves_out_what_is_unknown() -> None:
    outcome = {"steps": 600, "tokens": 19_660_800, "seconds": 112.0, "first_loss": 5.56, "final_loss": 1.081}
    assert summary_line(outcome) == "600 steps, 19.7 M tokens in 1:52 · loss 5.56 → 1.08"
    assert summary_line({**outcome, "bits_per_byte": 1.714}).endswith(" · validation 1.71 bits/byte")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999, 1.0, 2.0])
def test_the_bar_always_has_the_same_width(share: float) -> None:
    assert len(bar(share)) == 18
    assert bar(0.5).count("█") == 8


def test_a_terminal_sees_one_line_that_is_erased_at_the_end() -> None:
    terminal = io.StringIO()
    display = ProgressDisplay(terminal)
    display.on_event("started", {"step": 0, "steps": 600, "run_id": "r"})
    display.on_row(ROW)
    display.close()
    text = terminal.getvalue()
    assert "\n" not in text
    assert "step 312/600  loss 1.312" in text
    assert "41.2 k tok/s" in text
    assert text.endswith("\r\x1b[2K")


@pytest.mark.parametrize(
    ("columns", "there", "gone"),
    [
        (120, ["bits/byte", "41.2 k tok/s", " left", "▕"], []),
        (90, ["bits/byte", "41.2 k tok/s", " left"], ["▕"]),
        (80, ["41.2 k tok/s", " left"], ["▕", "bits/byte"]),
        (60, [" left"], ["▕", "bits/byte", "tok/s"]),
        (20, ["  training      ste"], ["loss"]),
    ],
)
def test_the_live_line_fits_the_terminal(
    columns: int, there: list[str], gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    line = live_lines({**ROW, "val_loss": 1.3, "val_bits_per_byte": 1.9})[-1]
    assert len(line) < columns
    assert all(part in line for part in there), line
    assert not any(part in line for part in gone), line


def test_the_live_line_keeps_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a validation has told the bytes of a token, there is none."""
    monkeypatch.setenv("COLUMNS", "120")
    validated = {**ROW, "step": 2, "loss": 2.0, "val_loss": math.log(2), "val_bits_per_byte": 0.25}
    last = {**ROW, "step": 600, "loss": 4 * math.log(2)}
    before, at, after = live_lines({**ROW, "step": 1}, validated, last)
    assert "bits" not in before
    assert "loss 2.000  0.72 bits/byte" in at
    assert "loss 2.773  1.00 bits/byte" in after


def live_lines(*rows: dict[str, float]) -> list[str]:
    """What a terminal shows after each of `rows`."""
    terminal = io.StringIO()
    display = ProgressDisplay(terminal)
    display.on_event("started", {"step": 0, "steps": 600, "run_id": "r"})
    for row in rows:
        display.on_row(row)
    return terminal.getvalue().split("\r\x1b[2K")[1:]


def test_a_log_gets_plain_lines_and_not_one_a_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trainyard")
    display = ProgressDisplay(None)
    display.on_event("started", {"step": 0, "steps": 600, "run_id": "r"})
    for step in range(1, 101):
        display.on_row({**ROW, "step": step} | ({"val_loss": 1.5} if step == 50 else {}))
    display.on_row({**ROW, "step": 600})
    steps = [record.message.split()[1] for record in caplog.records if record.message.startswith("step")]
    assert steps == ["1/600", "50/600", "600/600"]
    assert not any("\r" in record.message for record in caplog.records)
