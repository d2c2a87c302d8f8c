"""Lines that programs print for a step, by rule: form × number × prefix × noise, and the row of each.

The lines have the shape of logs that people have posted; the numbers are made up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
    form: str = "auto"


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
    "megatron": Printed(
        lambda step, loss, norm: (
            f" [2026-08-22 15:22:22.123456] iteration {step:8d}/   10000 | consumed samples:       256000 | "
            "elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 410.2 | "
            f"learning rate: 9.950000E-06 | global batch size:   512 | lm loss: {loss} | loss scale: 1.0 | "
            f"grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        ),
        {
            "learning_rate": 9.95e-06,
            "step_seconds": 1.2345,
            "skipped_steps": 0,
            "nan_steps": 0,
            "samples": 256000,
            "throughput per GPU (TFLOP/s/GPU)": 410.2,
            "global batch size": 512.0,
            "loss scale": 1.0,
        },
        validation=lambda step, loss: (
            f" validation loss at iteration {step} | lm loss value: {loss} | lm loss PPL: 9.0E+00 | "
        ),
        form="megatron",
    ),
    "nemo": Printed(
        lambda step, loss, norm: (
            f"Training epoch 0, iteration {step - 1}/999 | lr: 1.8e-06 | global_batch_size: 512 | "
            f"global_step: {step - 1} | reduced_train_loss: {loss} | train_step_timing in s: 1.25 | "
            f"consumed_samples: 5120 | grad_norm: {norm}"
        ),
        {"learning_rate": 1.8e-06, "step_seconds": 1.25, "samples": 5120, "global_batch_size": 512.0},
        form="nemo",
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
            "tokens_per_second_per_gpu": 1234.5,
            "epoch": 0.0,
            "actor/kl_loss": 0.001,
        },
        validation=lambda step, loss: f"step:{step} - val/loss:{loss}",
        form="verl",
    ),
    "torchtitan": Printed(
        lambda step, loss, norm: (
            f"[titan] 2026-08-22 - root - INFO {ESC}[31mstep: {step}  {ESC}[32mloss:  {loss}  "
            f"{ESC}[38;2;180;6;0mgrad_norm:  {norm}  {ESC}[36mmemory: 30.12GiB(38.02%)  {ESC}[34mtps: 7,890  "
            f"{ESC}[35mtflops: 456.78  {ESC}[35mmfu: 46.18%{ESC}[39m"
        ),
        {
            "gpu_memory_bytes": round(30.12 * 2**30),
            "tokens_per_second_per_gpu": 7890,
            "tflops": 456.78,
            "mfu": 0.4618,
        },
        validation=lambda step, loss: (
            f"[titan] 2026-08-22 15:22:22,123 - root - INFO - validate step: {step}  loss: {loss}  "
            "memory: 30.12GiB(38.02%)  tps: 7,890"
        ),
        form="torchtitan",
    ),
}
