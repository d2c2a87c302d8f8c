"""The names that programs have for their figures, and the one name that a row of `metrics.jsonl` has.

Used for JSON objects, CSV columns, TensorBoard tags and the log of the Hugging Face trainer. A name that is
not known is left out. So are figures that are no loss of a step, such as the mean over an epoch.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from trainyard.programs.metrics.printed_numbers import JUDGED, read_figure, read_number
from trainyard.run.records import Row

_GIB = 2**30
_FIGURES = {
    "step": (
        "global_step current_steps current_step optimizer_step step steps iteration iter num_updates update"
    ),
    "epoch": "epoch",
    "loss": (
        "loss train_loss training_loss loss/train loss/train/total loss_train lm_loss ce_loss "
        "reduced_train_loss train_loss_step loss_step step_loss loss_metrics/global_avg_loss actor/pg_loss"
    ),
    "val_loss": (
        "val_loss eval_loss valid_loss validation_loss val/loss eval/loss valid/loss validation/loss "
        "loss/val loss/valid loss/validation loss/eval loss_val val_loss_epoch lm_loss_validation "
        "validation_metrics/loss dev_loss"
    ),
    "val_bits_per_byte": "val_bits_per_byte val_bpb val/bpb",
    "learning_rate": "learning_rate lr actor/lr optim/lr optim/lr_(group_0)",
    "grad_norm": (
        "grad_norm gradient_norm gradnorm optim/total_grad_norm actor/grad_norm total_grad_norm "
        "l2_norm/grad/global"
    ),
    "tokens": (
        "tokens num_tokens num_input_tokens_seen total_tokens tokens_seen consumed_tokens tokens/total "
        "throughput/total_tokens time/token"
    ),
    "samples": "samples consumed_samples samples_seen time/sample",
    "tokens_per_second": (
        "tokens_per_second tokens_per_sec tok_per_sec tok/sec train_tokens_per_second "
        "throughput/tokens_per_sec"
    ),
    "tokens_per_second_per_gpu": (
        "tokens_per_second_per_gpu throughput(tps) throughput/device/tps throughput/device/tokens_per_sec "
        "perf/throughput tokens/train_per_sec_per_gpu"
    ),
    "samples_per_second": "samples_per_second samples_per_sec throughput/samples_per_sec",
    "step_seconds": (
        "step_seconds step_time seconds_per_step iteration_time train_step_timing_in_s timing_s/step"
    ),
    "mfu": "mfu mfu(%) bf16_mfu throughput/device/mfu",
    "gpu_memory_bytes": (
        "gpu_memory_bytes memory/max_active(gib) memory/max_active_(gib) memory/max_allocated_(gib)"
    ),
    "reward": "reward critic/score/mean",
    "reward_std": "reward_std",
    "kl": "kl",
    "entropy": "entropy actor/entropy",
    "completion_length": "completion_length completions/mean_length response_length/mean",
    "nan_steps": "nan_steps",
    "skipped_steps": "skipped_steps",
}
"""Name in a row -> names that programs have for it; the first one that is there wins."""
_RANKS = {
    name: (figure, rank) for figure, names in _FIGURES.items() for rank, name in enumerate(names.split())
}
_TRAINING = ("train/", "training/", "trainer/")
_COUNTS = ("step", "samples", "tokens", "nan_steps", "skipped_steps")
_MARKS = ("loss", "val_loss", "val_bits_per_byte", "reward")
"""A row without any of these is not about training."""


@lru_cache(maxsize=4096)
def figure_of(name: str) -> tuple[str, int] | None:
    """Return the figure that a program calls `name`, and the rank of that name; None if it is unknown."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    if plain in (
        "train/train_loss",
        "train/epoch_loss",
    ):  # the mean over the run, of the Hugging Face trainer
        return None
    if plain.startswith("lr_"):  # Lightning's and Composer's monitors: lr-AdamW, lr-AdamW/group0
        return ("learning_rate", 9) if plain.rpartition("/")[2] in (plain, "group0") else None
    if plain.startswith("metrics/eval/") and plain.endswith("crossentropy"):
        return ("val_loss", 9)
    bare = next((plain.removeprefix(prefix) for prefix in _TRAINING if plain.startswith(prefix)), plain)
    return _RANKS.get(plain) or _RANKS.get(bare)


def row_of_figures(figures: Iterable[tuple[str, Any]]) -> Row:
    """Return the row of a program's names and values; a step that is not an integer is left out."""
    row: Row = {}
    ranks: dict[str, int] = {}
    for name, value in figures:
        found = figure_of(name) if value is not None else None
        if found is None or ranks.get(found[0], 99) <= found[1]:
            continue
        if (figure := _figure(found[0], name, value)) is not None:
            row[found[0]] = figure
            ranks[found[0]] = found[1]
    return row


def is_about_training(row: Row) -> bool:
    """Return whether a row has a loss or a reward."""
    return any(name in row for name in _MARKS)


def flat_figures(found: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield the names and values of a JSON object; an inner one gives `outer/inner`, `data` gives `inner`."""
    for name, value in found.items():
        if isinstance(value, dict):
            prefix = "" if name in ("data", "metrics", "logs") else f"{name}/"
            yield from ((f"{prefix}{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _figure(figure: str, name: str, value: Any) -> float | str | None:
    """Return the value in the unit of a row; None if it is no number, as a judged figure stays text."""
    if isinstance(value, bool | list | dict):
        return None
    if isinstance(value, str):
        read = read_figure(value) if figure in JUDGED and value.strip() else read_number(value)
    elif isinstance(value, int) and abs(value) < 1 << 63:
        read = value
    else:
        read = read_number(repr(value))
    if isinstance(read, str) or read is None:
        return read if figure in JUDGED else None
    if figure in _COUNTS:
        return int(read) if read == int(read) and read >= 0 else None
    if figure == "mfu" and (read > 1 or "%" in name):
        return read / 100
    return read * _GIB if "(gib)" in name.lower() else read
