"""The step of a checkpoint that shows none, by rule: how the rows arrive × when it was written."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.metrics.program_metrics import ProgramMetrics
from trainyard.programs.step_times import StepTimes

STEPS = range(10, 101, 10)
"""Step N is printed at second N."""
MOMENTS = [step + shift for step in (0, *STEPS) for shift in (0.0, 0.5, 4.5)]


def line(step: int) -> str:
    return json.dumps({"step": step, "loss": 2.0 + 1 / step}) + "\n"


def times_of(rows: Iterable[tuple[int, float | None]]) -> StepTimes:
    found = StepTimes()
    for step, time in rows:
        found.note(step, time)
    return found


def metrics_of(chunks: list[tuple[float, str]], folder: Path) -> ProgramMetrics:
    found = ProgramMetrics(LogReader(), MetricFiles(folder, 0.0, "auto"))
    for time, text in chunks:
        found.take(text, time)
    return found


@each_case("late", [0.0, 0.01, 0.9])
@each_case("moment", MOMENTS)
def test_a_program_that_prints_and_then_saves(moment: float, late: float, tmp_path: Path) -> None:
    """Each row arrives a little later than it was printed."""
    found = metrics_of([(step + late, line(step)) for step in STEPS], tmp_path)
    printed = max((step for step in STEPS if step <= moment), default=0)
    assert found.times.step_at(moment) == (printed or STEPS[0]), "without a row before, the next one counts"


@each_case("validation", [0.01, 0.9, 4.5])
@each_case("step", STEPS)
def test_a_program_that_saves_and_then_prints(step: int, validation: float, tmp_path: Path) -> None:
    found = metrics_of([(float(step), line(step)) for step in STEPS], tmp_path)
    assert found.times.step_at(step - validation) == step


@each_case("interval", [0.001, 0.01, 0.2, 1.0, 30.0])
@each_case("save", [0.0, 0.4, 3.0, 100.0])
def test_the_row_after_a_long_save_does_not_count(interval: float, save: float) -> None:
    """A program prints step 5, saves, and goes on; the next row comes one interval after the save."""
    saved = 1000.0
    before = [(step, saved - save + (step - 5) * interval) for step in range(1, 6)]
    after = [(step, saved + (step - 5) * interval) for step in range(6, 9)]
    found = times_of([*before, *after]).step_at(saved)
    assert found == 5 if interval >= 1 else 5 <= found <= 5 + 0.5 / interval


@each_case("interval", [0.0001, 0.005, 0.1, 3.0])
@each_case("late", [0.001, 0.05, 0.4])
def test_rows_that_arrive_after_the_save_are_those_before_it(interval: float, late: float) -> None:
    """The program prints its last rows and saves at once; it ends much later, so that a search finds it."""
    times = times_of((step, 100.0 + (step - 20) * interval + late) for step in range(1, 21))
    assert times.step_at(100.0) == 20


@each_case("size", [2, 3, 10])
@each_case("moment", MOMENTS)
def test_buffered_rows_never_show_too_early_a_step(size: int, moment: float, tmp_path: Path) -> None:
    """They may have been printed long before they arrive, so they count as printed."""
    parts = [STEPS[begin : begin + size] for begin in range(0, len(STEPS), size)]
    found = metrics_of([(float(part[-1]), "".join(map(line, part))) for part in parts], tmp_path)
    assert found.times.step_at(moment) >= max((step for step in STEPS if step <= moment), default=0)


def test_rows_of_files_count_as_printed(tmp_path: Path) -> None:
    """A file is read seconds after a row was written into it, and TensorBoard writes once in two minutes."""
    (tmp_path / "metrics.jsonl").write_text("".join(map(line, STEPS)))
    found = ProgramMetrics(LogReader(), MetricFiles(tmp_path, 0.0, "metrics.jsonl"))
    found.poll()
    assert found.times.step_at(0.0) == 100


@each_case("interval", [0.001, 0.3, 5.0])
@each_case("late", [0.0, 0.2, 0.9])
def test_what_is_written_last_is_of_the_last_step(interval: float, late: float) -> None:
    times = times_of((step, step * interval + late) for step in STEPS)
    assert times.step_at(100 * interval, is_over=True) == 100


@each_case("rows_before", [0, 1, 5])
@each_case("validation", [1.5, 30.0, 3000.0])
def test_a_last_row_that_follows_a_long_validation_counts(rows_before: int, validation: float) -> None:
    rows = [(step, 10.0 * step) for step in range(1, rows_before + 2)]
    saved = rows[-1][1]
    times = times_of([*rows[:-1], (rows[-1][0], saved + validation)])
    assert times.step_at(saved, is_over=True) == rows_before + 1


@each_case("interval", [1.0, 5.0])
@each_case("saved", STEPS[:-2])
def test_a_program_that_goes_on_after_its_last_save_is_not_given_the_last_step(
    interval: float, saved: int
) -> None:
    times = times_of((step, step * interval / 10) for step in STEPS)
    assert times.step_at((saved + 0.5) * interval / 10, is_over=True) == saved


@pytest.mark.parametrize("is_over", [False, True])
def test_rows_that_are_all_printed_at_the_end_are_of_the_last_save(is_over: bool) -> None:
    times = times_of((step, 50.0 + step / 1000) for step in range(1, 6))
    assert times.step_at(45.0, is_over=is_over) == 5


def test_a_step_that_is_trained_again_is_the_last_one() -> None:
    times = times_of([(1, 1.0), (2, 2.0), (3, 3.0), (1, 4.0), (2, 5.0)])
    assert [times.step_at(moment) for moment in (1.1, 2.1, 3.1, 4.1, 5.1)] == [1, 2, 3, 1, 2]


def test_without_a_row_there_is_no_step() -> None:
    assert StepTimes().step_at(1.0) == StepTimes().step_at(1.0, is_over=True) == 0
