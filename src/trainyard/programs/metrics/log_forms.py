"""The lines that training programs print for a step, one pattern a program: a line in, a row out.

Each pattern is searched for anywhere in the line, because launchers put `[rank0]:` or `(Actor pid=1)` before
it and a progress bar may precede it. A pattern begins with plain letters, which makes the search fast. A row
counts optimizer steps from 1, whatever the program counts. Forms of several lines, and those that need what
was printed before, are in `log_reader`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trainyard.programs.metrics.figure_names import flat_figures, is_about_training, row_of_figures
from trainyard.programs.metrics.printed_numbers import (
    read_figure,
    read_figures,
    read_number,
    read_whole_number,
)
from trainyard.run.records import Row

NOT_PRINTED = "not printed"
"""The loss of a row whose program omits a loss of NaN from its line."""
_GIB = 2**30
NUMBER = r"(?:[A-Za-z_][\w.]*\([^()]*\)|[-+]?[\d.,]*\d(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?))"
"""A number as a program prints it: plain, not finite, or in the name of its type."""


@dataclass(frozen=True)
class LineForm:
    """One program's lines."""

    marks: tuple[str, ...]
    """A line without any of these is not of this form; they are fast to find."""
    rows: Callable[[str], Iterator[Row]]
    """Yields the rows of a line that has a mark."""
    looks: str
    """An example of the line, for people."""


_NANOGPT = re.compile(rf"iter (\d+): loss ({NUMBER})(?:, time ({NUMBER})ms)?(?:, mfu ({NUMBER})%)?")
_NANOGPT_VALIDATION = re.compile(rf"step (\d+): train loss (?:{NUMBER}), val loss ({NUMBER})")


def _nanogpt(line: str) -> Iterator[Row]:
    for found in _NANOGPT.finditer(line):
        row: Row = {"step": int(found[1]) + 1, "loss": read_figure(found[2])}
        if isinstance(milliseconds := read_number(found[3] or ""), float):
            row["step_seconds"] = milliseconds / 1000
        if isinstance(percent := read_number(found[4] or ""), float) and percent >= 0:  # -100 when unknown
            row["mfu"] = percent / 100
        yield row
    for found in _NANOGPT_VALIDATION.finditer(line):
        yield {"step": int(found[1]), "val_loss": read_figure(found[2])}


_NANOCHAT = re.compile(r"step (\d+)(?:/\d+)? \([\d.]+%\) \|(.*)")
_NANOCHAT_VALIDATION = re.compile(rf"Step (\d+) \| Validation bpb: ({NUMBER})")
_NANOCHAT_LOSS = re.compile(rf"Step (\d+) \| Validation loss: ({NUMBER})")


def _nanochat(line: str) -> Iterator[Row]:
    for found in _NANOCHAT.finditer(line):
        texts = _texts(found[2], "|", ":")
        names = {"loss": "loss", "grad norm": "grad_norm", "tok/sec": "tokens_per_second", "epoch": "epoch"}
        row: Row = {"step": int(found[1]) + 1, **read_figures(texts, names)}
        if "loss" not in row:
            continue
        if isinstance(seconds := read_number(texts.get("dt", "").removesuffix("ms")), float):
            row["step_seconds"] = seconds / 1000
        for name in ("bf16_mfu", "mfu"):
            if isinstance(percent := read_number(texts.get(name, "")), float):
                row["mfu"] = percent / 100
        yield row
    for found in _NANOCHAT_VALIDATION.finditer(line):
        if isinstance(bits := read_number(found[2]), float):
            yield {"step": int(found[1]), "val_bits_per_byte": bits}
        else:
            yield {"step": int(found[1]), "val_loss": read_figure(found[2])}
    for found in _NANOCHAT_LOSS.finditer(line):
        yield {"step": int(found[1]), "val_loss": read_figure(found[2])}


_DEEPSPEED = re.compile(rf"step=(\d+), skipped=(\d+), lr=\[({NUMBER})")
_DEEPSPEED_SPEED = re.compile(
    rf"global_step=(\d+), RunningAvgSamplesPerSec=(?:{NUMBER}), CurrSamplesPerSec=({NUMBER})"
)


def _deepspeed(line: str) -> Iterator[Row]:
    for found in _DEEPSPEED.finditer(line):
        figures = read_figures({"lr": found[3]}, {"lr": "learning_rate"})
        yield {"step": int(found[1]), **figures, "skipped_steps": int(found[2])}
    for found in _DEEPSPEED_SPEED.finditer(line):
        yield {
            "step": int(found[1]),
            **read_figures({"now": found[2]}, {"now": "samples_per_second"}),
        }


_MEGATRON = re.compile(r"iteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
_MEGATRON_VALIDATION = re.compile(
    rf"validation loss at iteration (\d+)(?: on validation set)?\s*\|.*?\blm loss value: *({NUMBER})"
)
_MEGATRON_FIGURES = {
    "lm loss": "loss",
    "loss": "loss",
    "learning rate": "learning_rate",
    "grad norm": "grad_norm",
    "samples per second": "samples_per_second",
    "elapsed time per iteration (s)": "step_seconds",
}
_MEGATRON_COUNTS = {
    "number of skipped iterations": "skipped_steps",
    "number of nan iterations": "nan_steps",
    "consumed samples": "samples",
    "consumed tokens": "tokens",
}


def _megatron(line: str) -> Iterator[Row]:
    """Yield the row of an iteration line; it counts skipped iterations, and those with a loss of NaN.

    Megatron omits a loss that is not above 0 from the line. Such a row has a text as its loss.
    """
    found = _MEGATRON.search(line)
    if found is not None:
        texts = _texts(found[2], "|", ":")
        if "consumed samples" in texts:
            row: Row = {"step": int(found[1]), "loss": NOT_PRINTED, **read_figures(texts, _MEGATRON_FIGURES)}
            spent = read_number(texts.get("elapsed time per iteration (ms)", ""))
            if isinstance(spent, float):
                row["step_seconds"] = spent / 1000
            for name, key in _MEGATRON_COUNTS.items():
                if (count := read_whole_number(texts.get(name, ""))) is not None:
                    row[key] = count
            yield row
    for held in _MEGATRON_VALIDATION.finditer(line):
        yield {"step": int(held[1]), "val_loss": read_figure(held[2])}


_NEMO = re.compile(r"Training epoch (\d+), iteration \d+/\d+ \|(.*)")
_NEMO_FIGURES = {
    "reduced_train_loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "train_step_timing in s": "step_seconds",
    "val_loss": "val_loss",
}


def _nemo(line: str) -> Iterator[Row]:
    if (found := _NEMO.search(line)) is None:
        return
    texts = _texts(found[2], "|", ":")
    if (done := read_whole_number(texts.get("global_step", ""))) is not None:
        yield {"step": done + 1, "loss": NOT_PRINTED, **read_figures(texts, _NEMO_FIGURES)}


_AUTOMODEL = re.compile(r"step (\d+) \| epoch (\d+) \| (loss .*)")
_AUTOMODEL_FIGURES = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
_AUTOMODEL_SPEED = re.compile(rf"tps ({NUMBER})\(")
_AUTOMODEL_MEMORY = re.compile(rf"mem ({NUMBER}) GiB")


def _automodel(line: str) -> Iterator[Row]:
    if (found := _AUTOMODEL.search(line)) is None:
        return
    figures = read_figures(_texts(found[3], "|", " "), _AUTOMODEL_FIGURES)
    step = int(found[1]) + 1
    if "[val]" in line[: found.start()]:
        yield {"step": step, "val_loss": figures.get("loss", NOT_PRINTED)}
        return
    row: Row = {"step": step, "epoch": int(found[2]), **figures}
    if (speed := _AUTOMODEL_SPEED.search(line)) and isinstance(rate := read_number(speed[1]), float):
        row["tokens_per_second"] = rate
    if (memory := _AUTOMODEL_MEMORY.search(line)) and isinstance(size := read_number(memory[1]), float):
        row["gpu_memory_bytes"] = round(size * _GIB)
    yield row


_VERL = re.compile(r"step:(?<![\w./]step:)(\d+) - (.*)")
_VERL_FIGURES = {
    "actor/pg_loss": "loss",
    "train/loss": "loss",
    "actor/loss": "total_loss",
    "val/loss": "val_loss",
    "critic/score/mean": "reward",
    "actor/grad_norm": "grad_norm",
    "train/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "train/lr": "learning_rate",
    "actor/entropy": "entropy",
    "response_length/mean": "completion_length",
    "perf/throughput": "tokens_per_second_per_gpu",
    "timing_s/step": "step_seconds",
    "training/epoch": "epoch",
}


def _verl(line: str) -> Iterator[Row]:
    """Yield the row of a step; a line of validation alone has a row only if it has a loss."""
    if (found := _VERL.search(line)) is None:
        return
    row: Row = {"step": int(found[1]), **read_figures(_texts(found[2], " - ", ":"), _VERL_FIGURES)}
    if "loss" in row or "val_loss" in row:
        yield row


_TITAN = re.compile(
    rf"step:\s*(\d+)\s+loss:\s*({NUMBER}|\S+)(?:\s+grad_norm:\s*({NUMBER}|\S+))?"
    r"\s+m+emory:\s*([\d.]+)GiB(.*)"
)
_TITAN_SPEED = re.compile(r"[tw]ps:\s*([\d,]+)")
_TITAN_MFU = re.compile(r"mfu:\s*([\d.]+)%")


def _torchtitan(line: str) -> Iterator[Row]:
    if (found := _TITAN.search(line)) is None:
        return
    step, loss = int(found[1]), read_figure(found[2])
    if line.endswith("validate ", 0, found.start()):
        yield {"step": step, "val_loss": loss}
        return
    row: Row = {"step": step, "loss": loss}
    if loss == -1.0:  # of a rank that has no last pipeline stage
        del row["loss"]
    if found[3]:
        row["grad_norm"] = read_figure(found[3])
    row["gpu_memory_bytes"] = round(float(found[4]) * _GIB)
    if speed := _TITAN_SPEED.search(found[5]):
        row["tokens_per_second_per_gpu"] = int(speed[1].replace(",", ""))
    if share := _TITAN_MFU.search(found[5]):
        row["mfu"] = float(share[1]) / 100
    yield row


# A key that is given twice leaves it open which figure is right: its object has none.
_DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: found if len(found := dict(pairs)) == len(pairs) else {}
)
_LONGEST_OBJECT, _MOST_OBJECTS = 65536, 16


def _json(line: str) -> Iterator[Row]:
    """Yield the row of each JSON object with a loss or a reward, without a step if the object has none."""
    place = line.find('{"')
    for _ in range(_MOST_OBJECTS):
        if place < 0 or len(line) - place > _LONGEST_OBJECT:
            return
        try:
            found, end = _DECODER.raw_decode(line, place)
        except (ValueError, RecursionError):
            place = line.find('{"', place + 1)
            continue
        row = row_of_figures(flat_figures(found))
        if is_about_training(row):
            yield row
        place = line.find('{"', end)


def _texts(line: str, between: str, sign: str) -> dict[str, str]:
    """Return the names and texts of a line such as `a: 1 | b: 2`."""
    parts = (part.strip().partition(sign) for part in line.split(between))
    return {name.strip(): text.strip() for name, _, text in parts}


LINE_FORMS: Mapping[str, LineForm] = {
    "json": LineForm(('{"',), _json, '{"step": 10, "loss": 2.31}'),
    "nanogpt": LineForm(
        (": loss ", ": train loss "), _nanogpt, "iter 10: loss 2.31, time 120.5ms, mfu 30.1%"
    ),
    "nanochat": LineForm(
        ("| loss:", "| Validation "), _nanochat, "step 00010/00500 (2.00%) | loss: 2.31 | lrm: 1.00 | …"
    ),
    "deepspeed": LineForm(
        ("skipped=", "SamplesPerSec="), _deepspeed, "[Rank 0] step=10, skipped=0, lr=[0.001], mom=[…]"
    ),
    "megatron": LineForm(
        ("consumed samples", "validation loss at"), _megatron, "iteration 10/ 500 | consumed samples: 80 | …"
    ),
    "nemo": LineForm(
        ("Training epoch ",), _nemo, "Training epoch 0, iteration 9/499 | … | reduced_train_loss: 2.31"
    ),
    "automodel": LineForm(("| loss ",), _automodel, "step 9 | epoch 0 | loss 2.31 | grad_norm 0.5 | …"),
    "verl": LineForm(("step:",), _verl, "step:10 - actor/pg_loss:0.01 - critic/score/mean:0.6 - …"),
    "torchtitan": LineForm(("step:",), _torchtitan, "step: 10  loss: 2.31  grad_norm: 0.5  memory: …"),
}
