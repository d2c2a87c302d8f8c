"""Rows from the output of programs: each form × number × prefix × noise, in any chunks."""

from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.programs.metrics.printed_lines import BAR, ESC, NOISE, NUMBERS, PREFIXES, PRINTED, hf

from trainyard.errors import ConfigError
from trainyard.programs.metrics.log_reader import FORMS, LogReader
from trainyard.programs.metrics.printed_numbers import read_number, read_whole_number
from trainyard.programs.metrics.program_metrics import row_fault

Row = dict[str, Any]


def read(text: str, form: str = "auto") -> list[Row]:
    reader = LogReader(form)
    return reader.take(text) + reader.close()


def printed(form: str, step: int, loss: str = "0.5", norm: str = "1.25", prefix: str = "") -> str:
    return "".join(f"{prefix}{line}\n" for line in PRINTED[form].lines(step, loss, norm))


def row_of(form: str, step: int, loss: float | str = 0.5, norm: float | str = 1.25) -> Row:
    norms = {"grad_norm": norm} if PRINTED[form].has_norm else {}
    return {"step": step, "loss": loss, **norms, **PRINTED[form].row}


@each_case("prefix", PREFIXES)
@each_case("form", PRINTED)
def test_each_number_is_read_in_each_form_behind_each_prefix(form: str, prefix: str) -> None:
    for text, value in NUMBERS.items():
        assert read(printed(form, 7, loss=text, prefix=prefix)) == [row_of(form, 7, loss=value)], text
        if PRINTED[form].has_norm:
            assert read(printed(form, 7, norm=text, prefix=prefix)) == [row_of(form, 7, norm=value)], text


@each_case("noise", NOISE)
@each_case("form", PRINTED)
def test_noise_between_rows_changes_nothing(form: str, noise: str) -> None:
    text = noise.join(["", *(printed(form, step) for step in (1, 2, 10)), ""])
    assert read(text) == [row_of(form, step) for step in (1, 2, 10)]
    assert read(text, form) == [row_of(form, step) for step in (1, 2, 10)]
    with_bars = BAR + text.replace("\n", f"\n{BAR}\r")
    if form != "olmo":  # olmo's lines start with blanks
        assert read(with_bars, form) == [row_of(form, step) for step in (1, 2, 10)]


@each_case("form", PRINTED)
def test_a_row_behind_a_bar_on_the_same_line_is_read(form: str) -> None:
    if form not in ("composer", "olmo"):
        assert read(BAR.strip("\r") + printed(form, 3), form) == [row_of(form, 3)]


@each_case("form", PRINTED)
def test_chunks_may_end_anywhere(form: str) -> None:
    text = "".join(printed(form, step, prefix=f"{ESC}[36m(A pid=1){ESC}[0m ") for step in (1, 2, 3))
    for size in (1, 2, 7, 64, 1000):
        reader = LogReader()
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        rows = [row for chunk in chunks for row in reader.take(chunk)] + reader.close()
        assert rows == [row_of(form, step) for step in (1, 2, 3)]


@each_case("form", [name for name, lines in PRINTED.items() if lines.validation])
def test_a_validation_is_a_row_of_its_own(form: str) -> None:
    shown = PRINTED[form]
    assert shown.validation is not None
    for prefix in PREFIXES:
        lines = "".join(f"{prefix}{line}\n" for line in shown.validation(4, "2.25"))
        rows = read(printed(form, 4, prefix=prefix) + lines)
        assert rows == [row_of(form, 4), {"step": 4, shown.validation_name: 2.25}]
    faulty = "".join(f"{line}\n" for line in shown.validation(4, "nan"))
    assert row_fault(read(printed(form, 4) + faulty)[-1])


@each_case("form", PRINTED)
def test_the_steps_of_the_run_are_read_where_they_are_printed(form: str) -> None:
    reader = LogReader()
    reader.take(printed(form, 3) + printed(form, 4))
    assert reader.steps_asked == PRINTED[form].total
    reader.close()
    assert reader.forms_seen == (form,)


@each_case("form", PRINTED)
@each_case("text", ["nan", "-inf", "tensor(nan)"])
def test_a_loss_or_norm_that_is_not_finite_is_a_fault(form: str, text: str) -> None:
    assert [row_fault(row) for row in read(printed(form, 3))] == [None]
    assert all(row_fault(row) for row in read(printed(form, 3, loss=text)))
    if PRINTED[form].has_norm:
        assert all(row_fault(row) for row in read(printed(form, 3, norm=text)))


@each_case("text", ["None", "********", "?"])
@each_case("form", ["megatron", "nemo", "verl", "torchtitan", "json", "automodel"])
def test_a_loss_that_is_no_number_stays_in_the_row(form: str, text: str) -> None:
    """A proof must see a printed figure that is no number; if left out, the figure would seem unknown."""
    (row,) = read(printed(form, 3, loss=text))
    assert row["loss"] == text
    assert row_fault(row)


def test_megatron_leaves_a_loss_of_nan_out_of_its_line() -> None:
    line = printed("megatron", 500).replace("lm loss: 0.5 | ", "")
    (row,) = read(line)
    assert row_fault(row) == "step 500: the loss is not printed, which is not finite"
    (row,) = read(printed("megatron", 500).replace("nan iterations:   0", "nan iterations:   2"))
    assert row_fault(row) == "step 500: 2 steps had a loss that is not finite"


@each_case("form", ["auto", *FORMS])
@each_case(
    "line",
    [
        *("", "iteration", "step:", "{", "[]", "{" * 100_000, '{"a":' * 50_000, "[" * 100_000, "\x00\xff"),
        *("step: 10 loss is fine", "Training epoch 0, iteration 3/9 | lr: 1", '{"step": true, "x": 1}'),
        *(" iteration x/ 10 | lm loss: 1 |", "step:5 - val-core/openai/gsm8k/reward/mean@1:0.5"),
        *("Traceback (most recent call last):", '{"step": 1}', "[batch=1/100]:", "[step=1/10,epoch=1]"),
        "Average loss over 3 steps was fine: {'model': 'x', 'lossy': True}",
        "{'train_runtime': '4.2', 'train_steps_per_second': '1.9', 'train_loss': '4.16', 'epoch': '0.5'}",
        " 50%|█████     | 5/10 [00:01<00:01,  4.9it/s]",
    ],
)
def test_other_lines_are_no_rows(form: str, line: str) -> None:
    assert read(line, form) == []
    assert read(f"{line}\n" * 2, form) == []


# The Hugging Face trainer.


def bar(done: int, total: int = 8) -> str:
    return f"\r{100 * done // total:3d}%|███       | {done}/{total} [00:02<00:06,  1.16s/it]"


def shown_row(step: int, *, quote: str = "'") -> str:
    values = {"loss": "4.153", "grad_norm": "1.135", "learning_rate": "0.000875", "epoch": f"{step / 16:.4g}"}
    return "{" + ", ".join(f"'{name}': {quote}{value}{quote}" for name, value in values.items()) + "}\n"


def step_row(step: int) -> Row:
    epoch = float(f"{step / 16:.4g}")
    return {"step": step, "loss": 4.153, "grad_norm": 1.135, "learning_rate": 0.000875, "epoch": epoch}


CLEAR = "\r" + " " * 40 + "\r"
SUMMARY = (
    "{'train_runtime': '4.253', 'train_samples_per_second': '3.762', 'train_steps_per_second': '1.881', "
    "'train_loss': '4.16', 'epoch': '0.5'}\n"
)


@each_case("quote", ["'", ""])
@each_case("prefix", PREFIXES)
def test_the_bar_drawn_after_a_row_gives_its_step(prefix: str, quote: str) -> None:
    """The bar before a row may be late: steps faster than a tenth of a second do not redraw it."""
    text = bar(0) + "".join(
        bar(max(0, step - 2)) + CLEAR + prefix + shown_row(step, quote=quote) + bar(step)
        for step in (3, 6, 8)
    )
    reader = LogReader()
    rows = reader.take(text) + reader.take(SUMMARY + bar(8)) + reader.close()
    assert rows == [step_row(step) for step in (3, 6, 8)]
    assert (reader.steps_asked, reader.forms_seen) == (8, ("hf",))


def test_the_bar_of_an_evaluation_is_not_the_trainings() -> None:
    evaluation = (
        "\n" + bar(0, 4) + f"{ESC}[A" + CLEAR + "\n\r   \r" + f"{ESC}[A"
        "{'eval_loss': '4.15', 'eval_runtime': '0.0193', 'epoch': '0.125'}\n"
    )
    for after in (bar(2) + "\n" + bar(4, 4), "\n" + bar(4, 4) + bar(2)):  # the bars are redrawn in any order
        rows = read(
            bar(0) + bar(2) + shown_row(2) + bar(2) + evaluation + after + bar(3) + shown_row(3) + bar(3)
        )
        assert rows == [step_row(2), {"step": 2, "val_loss": 4.15, "epoch": 0.125}, step_row(3)]


def test_rows_of_a_buffered_stdout_have_no_step_but_an_epoch() -> None:
    text = (
        "".join(bar(step) for step in range(9)) + "".join(shown_row(step) for step in range(1, 9)) + SUMMARY
    )
    reader = LogReader()
    rows = reader.take(text + bar(8)) + reader.close()
    assert rows == [{name: v for name, v in step_row(step).items() if name != "step"} for step in range(1, 9)]
    assert reader.steps_per_epoch == 16


def test_without_a_bar_the_summary_shows_the_steps_of_an_epoch() -> None:
    reader = LogReader()
    reader.take(shown_row(1) + shown_row(8) + SUMMARY)
    assert (reader.steps_per_epoch, reader.steps_asked) == (16, None)


def test_rows_of_trl_have_its_figures() -> None:
    line = (
        "{'loss': '3.7e-09', 'grad_norm': '0.5', 'learning_rate': '1e-06', 'num_tokens': '1.2e+04', "
        "'completions/mean_length': '12', 'rewards/f/mean': '0.3', 'reward': '0.25', 'reward_std': '0.1', "
        "'kl': '0.01', 'entropy': '2.5', 'step_time': '1.5', 'epoch': '0.1'}\n"
    )
    (row,) = read(bar(0) + line + bar(1))
    expected = {"loss": 3.7e-09, "grad_norm": 0.5, "learning_rate": 1e-06, "tokens": 12000, "reward": 0.25}
    expected |= {
        "completion_length": 12.0,
        "reward_std": 0.1,
        "kl": 0.01,
        "entropy": 2.5,
        "step_seconds": 1.5,
    }
    assert row == {**expected, "epoch": 0.1, "step": 1}


def test_a_hidden_nan_is_a_fault() -> None:
    nan = "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '0.001', 'epoch': '0.0625'}\n"
    assert row_fault(read(nan)[0]) == "epoch 0.0625: the gradient norm is nan, which is not finite"
    assert row_fault({"step": 1, "loss": 0.0}) is not None
    assert row_fault({"step": 1, "loss": 0.0, "grad_norm": 0.01}) is None
    assert row_fault({"step": 1, "loss": 0.0, "reward": 0.01}) is None
    assert row_fault({"step": 1, "val_loss": 0.0}) is None
    assert row_fault({"step": 1, "val_loss": float("nan")}) is not None


@each_case("number", NUMBERS)
def test_each_number_is_read_in_a_row_of_the_trainer(number: str) -> None:
    if "," not in number.replace(", device", ""):  # in a dict, a comma ends a number
        (row,) = read("".join(hf(1, number, "1.25")))
        assert row["loss"] == NUMBERS[number]
    (row,) = read("".join(hf(1, f'"{number}"', "1.25")))
    assert row["loss"] == NUMBERS[number]


# Forms whose rows depend on earlier lines.


def test_the_bar_of_diffusers_gives_rows() -> None:
    def drawn(done: int, loss: float) -> str:
        return f"\rSteps:  50%|█████     | {done}/4 [00:01<00:01,  4.9it/s, lr=0.001, step_loss={loss}]"

    reader = LogReader()
    text = "\rSteps:   0%|          | 0/4 [00:00<?, ?it/s]" + "".join(
        drawn(step, step - 1) + drawn(step, step + 0.5) for step in (1, 2, 3, 4)
    )
    rows = reader.take(text) + reader.close()
    assert rows == [{"step": step, "loss": step + 0.5, "learning_rate": 0.001} for step in (1, 2, 3, 4)]
    assert reader.steps_asked == 4


def test_lightnings_bar_is_read_when_nothing_else_has_rows() -> None:
    def drawn(epoch: int, done: int) -> str:
        loss = 9 - (10 * epoch + done) / 10
        value = f", val_loss={3 - epoch}" if epoch else ""
        return (
            f"\rEpoch {epoch}: 50%|███  | {done}/10 [00:01<00:01, 4.9it/s, v_num=0, train_loss={loss}{value}]"
        )

    text = "".join(drawn(epoch, done) for epoch in (0, 1) for done in range(11))
    text += "\rValidation DataLoader 0: 100%|███| 2/2 [00:00<00:00, 9.2it/s]"
    end = "`Trainer.fit` stopped: `max_steps=20` reached.\n"
    reader = LogReader()
    assert reader.take(text + "\n" + end) == []
    rows = reader.close()
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert rows[4]["loss"] == 8.5
    assert [(row["step"], row["val_loss"]) for row in rows if "val_loss" in row] == [(10, 2.0)]
    assert reader.steps_asked == 20
    other = LogReader()
    rows = other.take(text + '\n{"step": 1, "loss": 2}\n') + other.close()
    assert rows == [{"step": 1, "loss": 2}]


WORD_MODEL = "| epoch {:3d} | {:5d}/  468 batches | lr 0.0030 | ms/batch  5.11 | loss  3.50 | ppl    33.12\n"
"""A line of word_language_model of pytorch/examples; the next two are of its imagenet and of torchvision."""
IMAGENET = "Epoch: [{}][ {:3d}/5005]\tTime  0.3 ( 0.4)\tLoss 3.5000e+00 (3.9000e+00)\tAcc@1   0.00 (  0.40)\n"
TORCHVISION = (
    "Epoch: [{}]  [  {}/3125]  eta: 0:10:00  lr: 0.1  img/s: 200.1  loss: 3.5000 (3.9010)  time: 0.2\n"
)
TUTORIAL = "Epoch [{}/5], Batch [{}/600], Loss: 3.5000\n"


@pytest.mark.parametrize(
    ("line", "places", "steps"),
    [
        (WORD_MODEL, [(1, 20), (1, 40), (2, 20)], [20, 40, 488]),
        (WORD_MODEL, [(3, 20)], [956]),  # resumed after epoch 2
        (IMAGENET, [(0, 0), (0, 10), (1, 0)], [1, 11, 5006]),
        (TORCHVISION, [(2, 0), (2, 10)], [6251, 6261]),
        (TUTORIAL, [(1, 100), (2, 100)], [100, 700]),
    ],
)
def test_batches_of_an_epoch_are_counted_on(
    line: str, places: list[tuple[int, int]], steps: list[int]
) -> None:
    rows = read("".join(line.format(*place) for place in places))
    assert [(row["step"], row["loss"]) for row in rows] == [(step, 3.5) for step in steps]


def test_a_validation_at_the_end_of_an_epoch_is_of_its_last_step() -> None:
    end = "| end of epoch   1 | time: 111.09s | valid loss  2.00 | valid ppl     7.37\n"
    assert read(WORD_MODEL.format(1, 460) + end)[-1] == {"step": 460, "val_loss": 2.0}
    assert read(WORD_MODEL.format(1, 460) + "Epoch 1 train loss nan\n")[-1] == {"step": 460, "loss": "nan"}


@pytest.mark.parametrize(
    ("lines", "newest"),
    [
        ([TUTORIAL.format(epoch, 600) for epoch in (1, 2, 3, 4)], 2400),
        ([f"Epoch: [{epoch}/5][ 10/10]  loss 2.5\n" for epoch in (1, 2, 3, 4)], 40),
        (["epoch 0: val loss 3\n", "epoch 1/2 | 10/10 | loss 2\n"], 10),
        (["Epoch 0/1 | 10/10 | loss 2\n"], 10),
    ],
)
def test_epochs_and_batches_show_no_end_of_the_training(lines: list[str], newest: int) -> None:
    """A loop that was killed in its fourth epoch of five is not complete, however it counts epochs."""
    reader = LogReader()
    rows = reader.take("".join(lines)) + reader.close()
    assert (rows[-1]["step"], reader.steps_asked) == (newest, None)


@pytest.mark.parametrize(
    ("lines", "total"),
    [
        (["Epoch 1/3 loss 2", "Epoch 2/3 loss 1"], 3),
        (["Epoch 0/2 loss 3", "Epoch 1/2 loss 2"], None),  # epochs 0 to 2, or only 0 and 1
    ],
)
def test_epochs_from_0_have_no_number(lines: list[str], total: int | None) -> None:
    reader = LogReader()
    reader.take("\n".join(lines))
    reader.close()
    assert reader.steps_asked == total


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        (
            ["Epoch 0/1 - loss: 0.50 - val_loss: 0.60", "Epoch 1/1 - loss: 0.40 - val_loss: nan"],
            [{"step": 1, "loss": 0.5, "val_loss": 0.6}, {"step": 2, "loss": 0.4, "val_loss": "nan"}],
        ),
        (
            ["Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.1", "Train Epoch: 1 [1280/60000 (2%)]\tLoss: 1.9"],
            [{"step": 1, "loss": 1.9}],  # the number of samples of a step is not printed
        ),
        (["Epoch 1: loss 0.5", "step 7: loss 0.4"], [{"step": 7, "loss": 0.4}]),
        (["Epoch 0:  50%|███  | 5/10 [00:01<00:01, 4.9it/s, x=1]", "Epoch 1: the loss is fine"], []),
    ],
)
def test_an_epoch_is_a_step_at_the_end_if_nothing_else_has_steps(lines: list[str], rows: list[Row]) -> None:
    reader = LogReader()
    assert [row for row in reader.take("\n".join(lines) + "\n") if row not in rows] == []
    assert reader.has_epochs == any("poch" in line and "oss" in line and "fine" not in line for line in lines)
    reader = LogReader()
    assert reader.take("\n".join(lines)) + reader.close() == rows


def test_losses_that_no_row_has_are_kept_to_be_shown() -> None:
    reader = LogReader()
    reader.take("Epoch 1: loss 0.5\nloss: 2.3\n" + "loss: 2.2\n" * 9)
    assert reader.unread == ["Epoch 1: loss 0.5", "loss: 2.3", "loss: 2.2"]
    reader = LogReader()
    reader.take("step 1: loss 0.5\nloss: 2.3\n")
    assert reader.unread == []


def test_deepspeed_counts_all_skipped_steps() -> None:
    text = "".join(
        f"[2026-08-02 00:41:17,935] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, "
        "lr=[5e-05, 5e-05], mom=[(0.9, 0.999)]\n"
        f"[2026-08-02 00:41:17,936] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/global_step={step}, "
        "RunningAvgSamplesPerSec=220.6, CurrSamplesPerSec=222.5, MemAllocated=0.07GB\n"
        for step, skipped in ((10, 3), (20, 3), (30, 4))
    )
    rows = read(text)
    assert [row["skipped_steps"] for row in rows[::2]] == [3, 0, 1]
    assert rows[0] == {"step": 10, "learning_rate": 5e-05, "skipped_steps": 3}
    assert rows[1] == {"step": 10, "samples_per_second": 222.5}


def test_nemo_prints_its_last_validation_loss_in_every_line() -> None:
    rows = read(
        "".join(
            printed("nemo", step)[:-1] + f" | val_loss: {2.5 if step < 4 else 2.25}\n" for step in range(1, 7)
        )
    )
    assert [(row["step"], row["val_loss"]) for row in rows if "val_loss" in row] == [(1, 2.5), (4, 2.25)]


def test_blocks_of_olmo_are_merged_by_step() -> None:
    first, *figures = PRINTED["olmo"].lines(4, "0.5", "1.25")
    late = [first, *figures[3:]]
    text = "\n".join([first, *figures[:3], *PRINTED["olmo"].lines(5, "0.5", "1.25"), *late, ""])
    assert read(text) == [row_of("olmo", 4), row_of("olmo", 5)]


def test_an_older_torchtitan_prints_no_gradient_norm() -> None:
    line = (
        "[rank0]:2025-02-13 11:33:45,521 - root - INFO - step: 10  loss:  9.8821  "
        "mmemory: 49.59GiB(35.46%)  wps: 7,026  mfu: 41.15%"
    )
    memory = round(49.59 * 2**30)
    assert read(line) == [
        {
            "step": 10,
            "loss": 9.8821,
            "gpu_memory_bytes": memory,
            "tokens_per_second_per_gpu": 7026,
            "mfu": 0.4115,
        }
    ]
    (row,) = read(printed("torchtitan", 3, loss="-1.00000"))
    assert "loss" not in row


def test_nanogpt_prints_minus_100_while_its_mfu_is_unknown() -> None:
    assert read("iter 0: loss 10.9876, time 30000.00ms, mfu -100.00%") == [
        {"step": 1, "loss": 10.9876, "step_seconds": 30.0}
    ]


def test_several_objects_on_a_line_are_several_rows() -> None:
    assert read('{"step": 1, "loss": 2.5}{"step": 2, "loss": NaN} x {"iter": 3, "train": {"loss": 1}}') == [
        {"step": 1, "loss": 2.5},
        {"step": 2, "loss": "nan"},
        {"step": 3, "loss": 1},
    ]
    assert read("{'loss': 1.5, 'epoch': 0.1}{'loss': 2.5, 'epoch': 0.1}") == [
        {"loss": 1.5, "epoch": 0.1},
        {"loss": 2.5, "epoch": 0.1},
    ]


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("[INFO|trainer.py:2] ***   Total optimization steps = 1,000", 1000),
        ("   \\\\   /|    Num examples = 900 | Num Epochs = 1 | Total steps = 60", 60),
        ("(TaskRunner pid=1) Total training steps: 435", 435),
        ("setting training iterations to 4000", 4000),
        (
            "Trainer is initialized with local batch size 8, sequence length 2048, total steps 10 (warmup 2)",
            10,
        ),
        ("INFO [olmo_core.train.trainer:734] Training for 2,000 steps", 2000),
        ("Training for 3 hours", None),
    ],
)
def test_the_total_of_a_banner_is_read(line: str, steps: int | None) -> None:
    reader = LogReader()
    reader.take(f"{line}\n")
    assert reader.steps_asked == steps


def test_a_log_without_rows_is_described() -> None:
    reader = LogReader()
    reader.take("".join(f"{ESC}[31mepoch {number} ok{ESC}[0m {'x' * 300}\r\n" for number in range(20)))
    text = reader.describe()
    assert text.startswith("No row of metrics was found in 20 lines.")
    assert all(f"  {form}: " in text for form in FORMS)
    assert [number for number in range(20) if f"epoch {number} ok" in text] == [0, 1, 2, 17, 18, 19]
    assert "… 14 more" in text
    assert max(map(len, text.splitlines())) < 200
    assert LogReader().describe() == "The program printed nothing."
    short = LogReader("verl")
    short.take("one\ntwo\n")
    assert short.describe().count("one") == 1
    assert "torchtitan" not in short.describe()


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="metrics: 'keras' is no form of a log; use auto, hf, "):
        LogReader("keras")


@pytest.mark.parametrize(
    ("text", "value"), [("1,234.5", 1234.5), ("-1e3 x", -1000.0), ("", None), ("x1", None)]
)
def test_numbers_are_read_as_they_are_printed(text: str, value: float | None) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize("text", ["1.2B", "4x", "0x10"])
def test_a_number_with_a_unit_is_no_number(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [(" 12 ", 12), ("1,000", 1000), ("1.5", None), ("", None), ("-1", None)]
)
def test_counts_are_whole(text: str, value: int | None) -> None:
    assert read_whole_number(text) == value
