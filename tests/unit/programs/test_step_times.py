"""The step of a checkpoint that shows none, by rule: arrival of the rows × time of the checkpoint."""

import json
from pathlib import Path

import pytest

from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.metrics.program_metrics import ProgramMetrics
from trainyard.programs.step_times import StepTimes

STEPS = range(10, 101, 10)
"""Step N is printed at second N."""
MOMENTS = [step + shift for step in (0, *STEPS) for shift in (0.0, 0.5, 8.5)]
LATE = [0.0, 0.01, 0.9]
"""How many seconds later a row arrives; the next row comes in ten seconds."""


def line(step: int) -> str:
    return json.dumps({"step": step, "loss": 2.0 + 1 / step}) + "\n"


def metrics_of(chunks: list[tuple[float, str]], folder: Path) -> ProgramMetrics:
    found = ProgramMetrics(LogReader(), MetricFiles(folder, 0.0, "auto"))
    for time, text in chunks:
        found.take(text, time)
    return found


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("moment", MOMENTS)
def test_rows_that_arrive_one_by_one_show_the_step_at_every_moment(
    moment: float, late: float, tmp_path: Path
) -> None:
    found = metrics_of([(step + late, line(step)) for step in STEPS], tmp_path)
    assert found.times.step_at(moment) == max((step for step in STEPS if step <= moment), default=0)


@pytest.mark.parametrize("late", [0.01, 0.9])
@pytest.mark.parametrize("step", STEPS)
def test_a_row_that_follows_a_save_at_once_is_of_its_step(step: int, late: float, tmp_path: Path) -> None:
    found = metrics_of([(float(step), line(step)) for step in STEPS], tmp_path)
    assert found.times.step_at(step - late) == step


@pytest.mark.parametrize("interval", [0.001, 0.01, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("save", [0.0, 0.4, 3.0, 100.0])
def test_the_next_row_does_not_count_after_a_long_save(interval: float, save: float) -> None:
    """A program prints step 5, saves and continues; its next row comes one interval after the save."""
    saved = 1000.0
    times = StepTimes([{"step": n, "time": saved - save + (n - 5) * interval} for n in range(1, 6)])
    for step in range(6, 9):
        times.note(step, saved + (step - 5) * interval)
    assert times.step_at(saved) == 5


@pytest.mark.parametrize("interval", [0.001, 0.3, 5.0])
@pytest.mark.parametrize("late", [0.0, 0.2, 0.9])
def test_what_is_written_at_the_end_is_of_the_last_step(interval: float, late: float) -> None:
    times = StepTimes([{"step": step, "time": step * interval + late} for step in STEPS])
    assert times.step_at(100 * interval, is_over=True) == 100
    if interval == 5.0:
        assert times.step_at(70 * interval, is_over=True) == 70


@pytest.mark.parametrize("size", [2, 3, 10])
@pytest.mark.parametrize("moment", MOMENTS)
def test_rows_that_were_buffered_never_show_too_early_a_step(
    size: int, moment: float, tmp_path: Path
) -> None:
    """Buffered rows may have been printed long before they arrive, so their steps count as printed."""
    parts = [STEPS[begin : begin + size] for begin in range(0, len(STEPS), size)]
    found = metrics_of([(float(part[-1]), "".join(map(line, part))) for part in parts], tmp_path)
    assert found.times.step_at(moment) >= max((step for step in STEPS if step <= moment), default=0)


def test_a_step_that_is_trained_again_is_the_last_one() -> None:
    times = StepTimes([{"step": 1, "time": 1.0}, {"step": 2, "time": 2.0}, {"step": 1, "time": 3.0}])
    assert [times.step_at(moment) for moment in (0.5, 1.0, 2.0, 3.0)] == [0, 1, 2, 1]


@pytest.mark.parametrize("time", [None, "soon", []])
def test_a_row_without_a_known_time_counts_as_printed(time: object) -> None:
    assert StepTimes([{"step": 4, "time": time}]).step_at(0.0) == 4


def test_rows_have_the_time_at_which_they_were_printed_unless_it_is_not_known(tmp_path: Path) -> None:
    chunks = [(10.0, line(1)), (20.0, line(2) + line(3)), (30.0, line(4)), (40.0, line(5))]
    rows = metrics_of(chunks, tmp_path).rows()
    assert [row.get("time") for row in rows] == [10.0, None, None, 30.0, 40.0]
