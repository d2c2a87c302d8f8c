"""Rows from the output of programs: each form × number × prefix × noise, in any chunks.

The lines have the shape of logs that people have posted; the numbers are made up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.programs.metric_rows import row_fault
from trainyard.programs.metrics.log_reader import LogReader

Row = dict[str, Any]
ESC = "\x1b"
NUMBERS: Mapping[str, float | str] = {
    "0.5": 0.5,
    "2.345678E+00": 2.345678,
    "-0.0123": -0.0123,
    "1,234.5": 1234.5,
    "np.float64(0.5)": 0.5,
    "tensor(0.5, device='cuda:0')": 0.5,
    "nan": "nan",
    "-inf": "-inf",
    "np.float64(nan)": "nan",
}
"""A number as it is printed -> its value in a row."""
PREFIXES = (
    "",
    "[rank0]:",
    "0: ",
    f"{ESC}[36m(TaskRunner pid=1234){ESC}[0m ",
    "2026-11-26T01:33:51.123456789Z ",
)
"""Text before each line: torchrun, SLURM, Ray, kubectl logs."""
BAR = "\r 38%|███▊      | 3/8 [00:02<00:05,  1.16s/it]"
NOISE = (
    "",
    f"\r0it [00:00, ?it/s]{ESC}[A\n",
    f"{ESC}[32mINFO{ESC}[0m loading the data: step one of two\r\n",
    "WARNING the loss of precision is small\n",
    "{'not': 'a row'}{\n",
)


@dataclass(frozen=True)
class Printed:
    """A form: its line for a finished step, and the row."""

    line: Callable[[int, str, str], str]
    """(step, loss, gradient norm) -> the line."""
    row: Mapping[str, Any]
    """The figures of the row besides step, loss and gradient norm."""
    validation: Callable[[int, str], str] | None = None
    """The line of a validation after the step."""


PRINTED: Mapping[str, Printed] = {
    "json": Printed(
        lambda step, loss, norm: (
            f'{{"step": {step}, "train_loss": "{loss}", "grad_norm": "{norm}", "lr": 0.001, "f1": 1}}'
        ),
        {"learning_rate": 0.001, "f1": 1},
        validation=lambda step, loss: f'{{"global_step": {step}, "eval_loss": "{loss}"}}',
    ),
    "words": Printed(
        lambda step, loss, norm: (
            f"| epoch 1 | Step: {step}/500 | loss {loss} | grad norm = {norm} | lr 0.001 |"
        ),
        {"learning_rate": 0.001},
        validation=lambda step, loss: f"step {step} val_loss={loss}",
    ),
    "verl": Printed(
        lambda step, loss, norm: (
            f"step:{step} - actor/pg_loss:{loss} - actor/kl_loss:0.001 - actor/grad_norm:{norm} - "
            "critic/score/mean:0.625 - actor/lr:1e-06 - timing_s/step:36.5 - perf/throughput:1234.5 - "
            "training/epoch:0"
        ),
        {
            "reward": 0.625,
            "learning_rate": 1e-06,
            "step_seconds": 36.5,
            "perf/throughput": 1234.5,
            "epoch": 0.0,
            "actor/kl_loss": 0.001,
        },
        validation=lambda step, loss: f"step:{step} - val/loss:{loss}",
    ),
}


def read(text: str) -> list[Row]:
    reader = LogReader()
    return reader.take(text) + reader.close()


def printed(form: str, step: int, loss: str = "0.5", norm: str = "1.25", prefix: str = "") -> str:
    return f"{prefix}{PRINTED[form].line(step, loss, norm)}\n"


def row_of(form: str, step: int, loss: float | str = 0.5, norm: float | str = 1.25) -> Row:
    return {"step": step, "loss": loss, "grad_norm": norm, **PRINTED[form].row}


@each_case("form", PRINTED)
def test_each_number_is_read_in_each_form_behind_each_prefix(form: str) -> None:
    wrong = []
    for prefix in PREFIXES:
        for text, value in NUMBERS.items():
            if read(printed(form, 7, loss=text, prefix=prefix)) != [row_of(form, 7, loss=value)]:
                wrong.append((prefix, "loss", text))
            if read(printed(form, 7, norm=text, prefix=prefix)) != [row_of(form, 7, norm=value)]:
                wrong.append((prefix, "norm", text))
            is_faulty = [bool(row_fault(row)) for row in read(printed(form, 3, loss=text))]
            if is_faulty != [isinstance(value, str)]:
                wrong.append((prefix, "fault", text))
    assert not wrong


@each_case("form", PRINTED)
def test_noise_around_rows_and_any_chunks_change_nothing(form: str) -> None:
    rows = [row_of(form, step) for step in (1, 2, 10)]
    for noise in NOISE:
        text = noise.join(["", *(printed(form, step) for step in (1, 2, 10)), ""])
        assert read(text) == rows
        assert read(BAR + text.replace("\n", f"\n{BAR}\r")) == rows
    assert read(BAR.strip("\r") + printed(form, 3)) == [row_of(form, 3)]
    text = "".join(printed(form, step, prefix=f"{ESC}[36m(A pid=1){ESC}[0m ") for step in (1, 2, 10))
    for size in (1, 2, 7, 64, 1000):
        reader = LogReader()
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert [row for chunk in chunks for row in reader.take(chunk)] + reader.close() == rows


@each_case("form", [name for name, lines in PRINTED.items() if lines.validation])
def test_a_validation_is_a_row_of_its_own(form: str) -> None:
    shown = PRINTED[form]
    assert shown.validation is not None
    for prefix in PREFIXES:
        rows = read(printed(form, 4, prefix=prefix) + f"{prefix}{shown.validation(4, '2.25')}\n")
        assert rows == [row_of(form, 4), {"step": 4, "val_loss": 2.25}]
    assert row_fault(read(f"{shown.validation(4, 'nan')}\n")[-1])


@each_case("text", ["None", "********", "?"])
@each_case("form", ["verl", "json"])
def test_a_loss_that_is_no_number_stays_in_the_row(form: str, text: str) -> None:
    """A proof must see a printed figure that is no number; if left out, the figure would seem unknown."""
    (row,) = read(printed(form, 3, loss=text))
    assert row["loss"] == text
    assert row_fault(row)


@each_case(
    "line",
    [
        *("", "iteration", "step:", "{", "[]", "{" * 100_000, '{"a":' * 50_000, "[" * 100_000, "\x00\xff"),
        *(
            "step: 10 loss is fine",
            "Training epoch 0, iteration 3/9 | reduced_train_loss: 1",
            '{"step": true, "x": 1}',
        ),
        *(" iteration x/ 10 | lm loss: 1 |", "step:5 - val-core/openai/gsm8k/reward/mean@1:0.5"),
        *("Traceback (most recent call last):", '{"step": 1}', "loss: 2.3", "| loss 2.5 | lr 0.1"),
        "Average loss over 3 steps was fine: {'model': 'x', 'lossy': True}",
        "{'train_runtime': '4.2', 'train_steps_per_second': '1.9', 'train_loss': '4.16', 'epoch': '0.5'}",
        " 50%|█████     | 5/10 [00:01<00:01,  4.9it/s]",
        *("Resuming from step 500, best loss 1.23", "eval step 5/5 loss 3.1", "step 5 test loss 2.1"),
        *("loading shard 3/3, loss of the base model 3.1", "step 10 loss 2,31", "step 3: loss 4x"),
    ],
)
def test_other_lines_are_no_rows(line: str) -> None:
    assert read(f"{line}\n" * 2) == []


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        (
            ["iter 0: loss 4.2, time 120.50ms, mfu 30.10%", "step 0: train loss 4.1, val loss 4.3"],
            [{"step": 0, "loss": 4.2}, {"step": 0, "train_loss": 4.1, "val_loss": 4.3}],
        ),
        (
            ["Epoch 1 - loss: 0.50 - val_loss: 0.60", "Epoch [2/5], Loss: 0.40, lr=0.1"],
            [{"epoch": 1, "loss": 0.5, "val_loss": 0.6}, {"epoch": 2, "loss": 0.4, "learning_rate": 0.1}],
        ),
        (
            [f"Epoch {epoch}, step {step}, loss 2.5" for epoch, step in ((1, 10), (1, 20), (2, 10), (2, 20))],
            [{"step": step, "loss": 2.5} for step in (10, 20, 30, 40)],
        ),
        (["Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.1"], [{"epoch": 1, "loss": 2.1}]),
        (["| end of epoch   1 | time: 111.09s | valid loss  2.00 |"], [{"epoch": 1, "val_loss": 2.0}]),
        (["INFO:root:iteration = 30, loss = 0.25"], [{"step": 30, "loss": 0.25}]),
        (
            ["step 5 loss 0.4 reward -1.5 acc 0.9"],
            [{"step": 5, "loss": 0.4, "reward": -1.5, "accuracy": 0.9}],
        ),
        (["step 6, reward: 2.0, val acc: 0.8"], [{"step": 6, "reward": 2.0, "val_accuracy": 0.8}]),
    ],
)
def test_lines_in_words_are_rows(lines: list[str], rows: list[Row]) -> None:
    assert read("\n".join(lines)) == rows


def test_several_objects_on_a_line_are_several_rows() -> None:
    assert read('{"step": 1, "loss": 2.5}{"step": 2, "loss": NaN} x {"iter": 3, "train": {"loss": 1}}') == [
        {"step": 1, "loss": 2.5},
        {"step": 2, "loss": "nan"},
        {"step": 3, "loss": 1},
    ]


# The Hugging Face trainer.


def test_rows_of_the_hugging_face_trainer_have_their_epoch() -> None:
    """Its bar may be on the same line; its summary is no row."""
    for prefix, quote in product((*PREFIXES, BAR, BAR + "\r"), ("'", "")):
        values = {"loss": "4.153", "grad_norm": "1.135", "learning_rate": "0.000875", "epoch": "0.25"}
        line = ", ".join(f"'{name}': {quote}{value}{quote}" for name, value in values.items())
        summary = "{'train_runtime': '4.253', 'train_loss': '4.16', 'epoch': '0.5'}"
        rows = read(f"{prefix}{{{line}}}{BAR}\n{summary}\n{{'eval_loss': '4.15', 'epoch': '0.5'}}\n")
        first = {"loss": 4.153, "grad_norm": 1.135, "learning_rate": 0.000875, "epoch": 0.25}
        assert rows == [first, {"val_loss": 4.15, "epoch": 0.5}]


def test_rows_of_trl_have_its_figures_under_their_names() -> None:
    line = (
        "{'loss': '3.7e-09', 'learning_rate': '1e-06', 'num_tokens': '1.2e+04', "
        "'completions/mean_length': '12', 'rewards/f/mean': '0.3', 'reward': '0.25', 'kl': '0.01', "
        "'step_time': '1.5', 'epoch': '0.1'}\n"
    )
    expected = {"loss": 3.7e-09, "learning_rate": 1e-06, "tokens": 12000, "reward": 0.25, "kl": 0.01}
    expected |= {"completions/mean_length": 12.0, "rewards/f/mean": 0.3, "step_seconds": 1.5}
    assert read(line) == [{**expected, "epoch": 0.1}]
