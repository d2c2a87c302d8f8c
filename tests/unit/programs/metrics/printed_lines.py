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
    "1.2e-05": 1.2e-05,
    "-0.0123": -0.0123,
    "1,234.5": 1234.5,
    "np.float64(0.5)": 0.5,
    "tensor(0.5)": 0.5,
    "tensor(0.5, device='cuda:0')": 0.5,
    "nan": "nan",
    "NaN": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "Infinity": "inf",
    "np.float64(nan)": "nan",
    "tensor(nan, device='cuda:0')": "nan",
}
"""A number as it is printed -> its value in a row."""
PREFIXES = (
    "",
    "[rank0]:",
    "[default0]:",
    "0: ",
    "(TaskRunner pid=1234) ",
    "(RayTrainWorker pid=4048, ip=10.0.130.188) ",
    f"{ESC}[36m(TaskRunner pid=1234){ESC}[0m ",
    "[RANK 0] ",
    "2026-11-26T01:33:51.123456789Z ",
)
"""Text before each line: torchrun, SLURM, Ray, accelerate, kubectl logs."""
BAR = "\r 38%|███▊      | 3/8 [00:02<00:05,  1.16s/it]"
NOISE = (
    "",
    f"\r0it [00:00, ?it/s]{ESC}[A\n",
    "\rWriting model shards:   0%|          | 0/1 [00:00<?, ?it/s]\r",
    f"{ESC}[32mINFO{ESC}[0m loading the data: step one of two\r\n",
    "WARNING the loss of precision is small\n",
    "{'not': 'a row'}{\n",
)


@dataclass(frozen=True)
class Printed:
    """A form: its lines for a finished step, and the row."""

    lines: Callable[[int, str, str], list[str]]
    """(step, loss, gradient norm) -> the lines."""
    row: Mapping[str, Any]
    """The figures of the row besides step, loss and gradient norm."""
    has_norm: bool = True
    validation: Callable[[int, str], list[str]] | None = None
    """Lines of a validation after the step."""
    validation_name: str = "val_loss"
    total: int | None = None
    """The number of steps of the complete run, if the lines show it."""


def hf(step: int, loss: str, norm: str) -> list[str]:
    return [f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 0.0001, 'epoch': {step / 16}}}"]


PRINTED: Mapping[str, Printed] = {
    "json": Printed(
        lambda step, loss, norm: [
            f'{{"step": {step}, "train_loss": "{loss}", "grad_norm": "{norm}", "lr": 0.001, "note": [1]}}'
        ],
        {"learning_rate": 0.001},
        validation=lambda step, loss: [f'{{"global_step": {step}, "eval_loss": "{loss}"}}'],
    ),
    "nanogpt": Printed(
        lambda step, loss, _: [f"iter {step - 1}: loss {loss}, time 120.50ms, mfu 30.10%"],
        {"step_seconds": 0.1205, "mfu": 0.301},
        has_norm=False,
        validation=lambda step, loss: [f"step {step}: train loss 2.2, val loss {loss}"],
    ),
    "nanochat": Printed(
        lambda step, loss, norm: [
            f"step {step - 1:05d}/00500 (2.00%) | loss: {loss} | grad norm: {norm} | lrm: 1.00 | "
            "dt: 1343.33ms | tok/sec: 12,196 | bf16_mfu: 41.25 | epoch: 1 | total time: 0.89m | eta: 44m"
        ],
        {"step_seconds": 1.34333, "tokens_per_second": 12196.0, "mfu": 0.4125, "epoch": 1.0},
        validation=lambda step, loss: [f"Step {step:05d} | Validation bpb: {loss}"],
        validation_name="val_bits_per_byte",
        total=500,
    ),
    "megatron": Printed(
        lambda step, loss, norm: [
            f" [2026-08-22 15:22:22.123456] iteration {step:8d}/   10000 | consumed samples:       256000 | "
            "elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 410.2 | "
            f"learning rate: 9.950000E-06 | global batch size:   512 | lm loss: {loss} | loss scale: 1.0 | "
            f"grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        ],
        {
            "learning_rate": 9.95e-06,
            "step_seconds": 1.2345,
            "skipped_steps": 0,
            "nan_steps": 0,
            "samples": 256000,
        },
        validation=lambda step, loss: [
            "-" * 60,
            f" validation loss at iteration {step} | lm loss value: {loss} | lm loss PPL: 9.0E+00 | ",
            "-" * 60,
        ],
        total=10000,
    ),
    "nemo": Printed(
        lambda step, loss, norm: [
            f"Training epoch 0, iteration {step - 1}/999 | lr: 1.8e-06 | global_batch_size: 512 | "
            f"global_step: {step - 1} | reduced_train_loss: {loss} | train_step_timing in s: 1.25 | "
            f"consumed_samples: 5120 | grad_norm: {norm}"
        ],
        {"learning_rate": 1.8e-06, "step_seconds": 1.25},
        total=1000,
    ),
    "automodel": Printed(
        lambda step, loss, norm: [
            f"2026-08-22 15:22:22 | INFO | root | step {step - 1} | epoch 0 | loss {loss} | "
            f"grad_norm {norm} | lr 1.00e-05 | mem 11.50 GiB | tps 7890.12(986.27/gpu) | num_label_tokens 96"
        ],
        {
            "epoch": 0,
            "learning_rate": 1e-05,
            "gpu_memory_bytes": round(11.5 * 2**30),
            "tokens_per_second": 7890.12,
        },
        validation=lambda step, loss: [
            f'[val] name "default" | step {step - 1} | epoch 0 | loss {loss} | lr 1.0e-05'
        ],
    ),
    "verl": Printed(
        lambda step, loss, norm: [
            f"step:{step} - actor/pg_loss:{loss} - actor/kl_loss:0.001 - actor/grad_norm:{norm} - "
            "critic/score/mean:0.625 - actor/lr:1e-06 - timing_s/step:36.5 - perf/throughput:1234.5 - "
            "training/epoch:0"
        ],
        {
            "reward": 0.625,
            "learning_rate": 1e-06,
            "step_seconds": 36.5,
            "tokens_per_second_per_gpu": 1234.5,
            "epoch": 0.0,
        },
        validation=lambda step, loss: [f"step:{step} - val/loss:{loss}"],
    ),
    "torchtitan": Printed(
        lambda step, loss, norm: [
            f"[titan] 2026-08-22 - root - INFO {ESC}[31mstep: {step}  {ESC}[32mloss:  {loss}  "
            f"{ESC}[38;2;180;6;0mgrad_norm:  {norm}  {ESC}[36mmemory: 30.12GiB(38.02%)  {ESC}[34mtps: 7,890  "
            f"{ESC}[35mtflops: 456.78  {ESC}[35mmfu: 46.18%{ESC}[39m"
        ],
        {
            "gpu_memory_bytes": round(30.12 * 2**30),
            "tokens_per_second_per_gpu": 7890,
            "mfu": 0.4618,
        },
        validation=lambda step, loss: [
            f"[titan] 2026-08-22 15:22:22,123 - root - INFO - validate step: {step}  loss: {loss}  "
            "memory: 30.12GiB(38.02%)  tps: 7,890"
        ],
    ),
    "composer": Printed(
        lambda step, loss, norm: [
            f"[batch={step}/500]:",
            f"\t Train time/batch: {step - 1}",
            "\t Train time/token: 4096",
            "\t Train trainer/device_train_microbatch_size: 8",
            f"\t Train loss/train/total: {loss}",
            "\t Train metrics/train/LanguageCrossEntropy: 7.7",
            f"\t Train l2_norm/grad/global: {norm}",
            "\t Train throughput/tokens_per_sec: 20082.8418",
            "\t Train lr-DecoupledAdamW/group0: 0.0006",
        ],
        {"tokens": 4096, "tokens_per_second": 20082.8418, "learning_rate": 0.0006},
        validation=lambda step, loss: [
            "[Eval batch=1/8] Eval on eval data:",
            "[Eval batch=8/8] Eval on eval data:",
            f"\t Eval metrics/eval/LanguageCrossEntropy: {loss}",
        ],
        total=500,
    ),
    "olmo": Printed(
        lambda step, loss, norm: [
            f"2026-08-08 12:01:00\thost:0\tolmo_core.train.callbacks.console_logger\tINFO\t[step={step}/2000,"
            "epoch=1,eta=5h11m]",
            f"    train/CE loss={loss}",
            "    train/PPL=511.9",
            f"    optim/total grad norm={norm}",
            "    optim/LR (group 0)=0.0004",
            "    throughput/device/TPS=7,890",
            "    throughput/total tokens=4,096",
        ],
        {
            "epoch": 1.0,
            "learning_rate": 0.0004,
            "tokens_per_second_per_gpu": 7890.0,
            "tokens": 4096,
        },
        total=2000,
    ),
}
