"""One row a step from a log and files that overlap, come late, repeat steps or have none."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.programs.metric_rows import MetricRowWriter
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.metrics.program_metrics import ProgramMetrics, row_fault
from trainyard.run.records import read_rows

Row = dict[str, Any]
STARTED = 1_700_000_000.0


class Program:
    """A program that prints and writes files, and the rows that were returned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = ProgramMetrics(LogReader(), MetricFiles(path, STARTED))
        self.returned: list[Row] = []

    def prints(self, *rows: Row | str) -> None:
        for row in rows:
            text = row if isinstance(row, str) else json.dumps(row)
            self.returned += self.metrics.take(f"{text}\n")

    def writes(self, *rows: Row, name: str = "m.jsonl", mode: str = "a") -> None:
        with (self.path / name).open(mode) as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        self.returned += self.metrics.poll()

    def ends(self) -> list[Row]:
        self.returned += self.metrics.close()
        return self.returned


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_a_row_waits_for_the_validation_of_its_step(program: Program) -> None:
    program.prints({"step": 1, "loss": 2.5})
    assert program.returned == []
    program.prints({"step": 1, "val_loss": 2.75}, {"step": 2, "loss": 2.25})
    assert program.returned == [{"step": 1, "loss": 2.5, "val_loss": 2.75}]
    assert program.ends() == [{"step": 1, "loss": 2.5, "val_loss": 2.75}, {"step": 2, "loss": 2.25}]


def test_figures_of_a_file_win_over_printed_ones(program: Program) -> None:
    program.prints({"step": 1, "loss": 2.12, "lr": 0.5})
    program.writes({"step": 1, "loss": 2.1234, "grad_norm": 1.5})
    assert program.ends() == [{"step": 1, "loss": 2.1234, "grad_norm": 1.5, "learning_rate": 0.5}]


def test_a_late_file_adds_figures_and_does_not_change_returned_ones(program: Program) -> None:
    program.prints({"step": 1, "loss": 2.12}, {"step": 2, "loss": 2.0})
    program.writes({"step": 1, "loss": 2.1234})
    assert program.returned == [{"step": 1, "loss": 2.12}]
    program.writes({"step": 1, "loss": 2.1234, "val_loss": 2.75})
    assert program.returned[1:] == [{"step": 1, "loss": 2.12, "val_loss": 2.75}]
    program.ends()
    assert program.metrics.rows() == [
        {"step": 1, "loss": 2.1234, "val_loss": 2.75},
        {"step": 2, "loss": 2.0},
    ]


def test_files_alone_give_rows(program: Program) -> None:
    program.prints("nothing of interest")
    program.writes({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}, {"step": 2, "val_loss": 2.5})
    assert program.returned == [{"step": 1, "loss": 2.5}]
    assert program.ends()[1:] == [{"step": 2, "loss": 2.25, "val_loss": 2.5}]


@pytest.mark.parametrize("source", ["log", "file"])
def test_steps_that_are_trained_again_are_returned_again(program: Program, source: str) -> None:
    add = program.prints if source == "log" else program.writes
    add(*({"step": step, "loss": step / 4} for step in range(1, 6)))
    add(*({"step": step, "loss": step / 8} for step in range(3, 8)))
    losses = [(row["step"], row["loss"]) for row in program.ends()]
    again = [(step, step / 8) for step in range(3, 8)]
    assert losses == [*((step, step / 4) for step in range(1, 6)), *again]
    assert [(row["step"], row["loss"]) for row in program.metrics.rows()] == [(1, 0.25), (2, 0.5), *again]


def test_a_step_that_is_printed_by_every_rank_is_one_row(program: Program) -> None:
    for step in (1, 2, 3):
        program.prints(*({"step": step, "loss": step / 4, "grad_norm": 1.5} for _ in range(4)))
    assert [row["step"] for row in program.ends()] == [1, 2, 3]


def test_a_nan_of_one_rank_or_source_is_not_hidden_by_another(program: Program) -> None:
    program.prints({"step": 1, "loss": 2.5}, {"step": 1, "loss": float("nan")}, {"step": 1, "loss": 2.5})
    program.prints({"step": 2, "loss": float("nan")})
    program.writes({"step": 2, "loss": 2.5})
    assert [row_fault(row) for row in program.ends()] == [
        f"step {step}: the loss is nan, which is not finite" for step in (1, 2)
    ]


def test_a_nan_in_a_late_file_is_returned(program: Program) -> None:
    program.prints({"step": 1, "loss": 0.5, "grad_norm": 1.0}, {"step": 2, "loss": 0.25})
    program.writes({"step": 1, "loss": 0.5, "grad_norm": float("nan")})
    assert row_fault(program.returned[-1]) == "step 1: the gradient norm is nan, which is not finite"


def hf_row(epoch: float, loss: float = 2.5) -> str:
    return f"{{'loss': '{loss}', 'grad_norm': '1.5', 'learning_rate': '0.5', 'epoch': '{epoch:.4g}'}}"


def state(steps: range, per_epoch: int, name: str, program: Program) -> None:
    history = [{"step": step, "epoch": step / per_epoch, "loss": 2.50001, "grad_norm": 1.5} for step in steps]
    (program.path / name).mkdir()
    (program.path / name / "trainer_state.json").write_text(
        json.dumps({"log_history": history, "max_steps": 40})
    )
    program.returned += program.metrics.poll()


def test_rows_without_a_step_get_it_from_the_trainers_state(program: Program) -> None:
    program.prints(*(hf_row(step / 16) for step in range(1, 9)))
    assert (program.returned, len(program.metrics.rows_without_step)) == ([], 8)
    state(range(1, 5), 16, "checkpoint-4", program)
    program.prints(hf_row(9 / 16))
    rows = program.ends()
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert [row["loss"] for row in rows] == [2.50001] * 4 + [2.5] * 5
    assert program.metrics.rows_without_step == ()
    assert program.metrics.steps_asked == 40


@pytest.mark.parametrize(
    ("per_epoch", "decimals", "placed"), [(16, 4, 8), (1000, 4, 8), (1000, 2, 0), (40, 2, 8)]
)
def test_an_epoch_with_too_few_digits_gives_no_step(
    program: Program, per_epoch: int, decimals: int, placed: int
) -> None:
    epochs = [round(step / per_epoch, decimals) for step in range(11, 19)]
    program.prints(*(f"{{'loss': 2.5, 'epoch': {epoch}}}" for epoch in epochs))
    state(range(1, 3), per_epoch, "checkpoint-2", program)
    steps = [row["step"] for row in program.ends()]
    assert steps == [1, 2, *range(11, 11 + placed)]
    assert len(program.metrics.rows_without_step) == 8 - placed
    if not placed:
        assert program.metrics.describe().startswith("8 rows have no step: print a step in each")


def test_the_summary_places_the_rows_of_a_run_without_bars_and_files(program: Program) -> None:
    program.prints(*(hf_row(step / 16) for step in range(1, 9)))
    program.prints(
        "{'train_runtime': '4.253', 'train_steps_per_second': '1.881', 'train_loss': '4.16', 'epoch': '0.5'}"
    )
    assert [row["step"] for row in program.ends()] == list(range(1, 9))


def test_lightnings_files_win_over_its_bar(program: Program) -> None:
    bar = "\rEpoch 0: 50%|███  | {}/8 [00:01<00:01, 4.9it/s, v_num=0, train_loss=2.500]"
    program.prints("".join(bar.format(done) for done in range(9)))
    (program.path / "version_0").mkdir()
    (program.path / "version_0/metrics.csv").write_text("epoch,step,train_loss\n0,0,2.25\n0,1,2.0\n")
    assert [(row["step"], row["loss"]) for row in program.ends()] == [(1, 2.25), (2, 2.0)]


def test_without_rows_there_is_a_description(program: Program) -> None:
    program.prints("training", "done")
    assert program.ends() == []
    text = program.metrics.describe()
    assert "  done" in text
    assert "nanogpt" in text


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.25, 0.5, 0.75]), st.booleans()), max_size=30))
def test_the_last_row_of_every_step_is_kept_whatever_the_order(events: list[tuple[int, float, bool]]) -> None:
    """Also in the record: the rows have each step's last loss, and no step later than the newest one done."""
    metrics = ProgramMetrics(LogReader("json"), MetricFiles(Path(os.devnull), STARTED))
    returned: list[Row] = []
    for step, loss, has_validation in events:
        row = {"step": step, "loss": loss} | ({"val_loss": loss} if has_validation else {})
        returned += metrics.take(json.dumps(row) + "\n")
    returned += metrics.close()
    assert {row["step"] for row in returned} == {step for step, _, _ in events}
    assert all(set(row) <= {"step", "loss", "val_loss"} for row in returned)
    if returned:
        newest = metrics.rows()[-1]["step"]
        assert newest == max(row["step"] for row in metrics.rows())


def test_the_writer_of_rows_keeps_what_is_returned(program: Program, tmp_path: Path) -> None:
    writer = MetricRowWriter(tmp_path / "record.jsonl", log_steps=1, last=7)
    program.prints(*({"step": step, "loss": step / 4} for step in range(1, 6)))
    program.prints(*({"step": step, "loss": step / 8} for step in range(3, 8)))
    for row in program.ends():
        writer.keep(row)
    writer.close()
    kept = [(row["step"], row["loss"]) for row in read_rows(tmp_path / "record.jsonl")]
    assert kept == [(1, 0.25), (2, 0.5), *((step, step / 8) for step in range(3, 8))]
