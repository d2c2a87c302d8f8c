#!/usr/bin/env python3
"""Compare the planned memory of a training step with a real step. Goal: within 10 %, for every shape.

Each shape is trained for two steps through `training.loop`, in its own process. On the CPU, torch's
profiler reports every allocation and release of torch's allocator, including those inside kernels: this is
exact, and excludes all other memory of the process. On a GPU the peak is the caching allocator's own
(`torch.cuda.max_memory_allocated`). The benchmark compares the peak. On the CPU it also compares the weights
with their moments, the memory at the start of the backward pass, and the gradients at the optimizer step.

Reads:   --shape (may be repeated; default all), --device
Writes:  a table, or JSON, on stdout
Exit codes: 0 every peak is within 10 %, 1 one is not
Example: benchmarks/memory_fit.py --shape wide-float32 --shape wide-bfloat16
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from memory_shapes import SHAPES, Shape
from trainyard.config.schema import Config

GOAL = 0.10
RUN_DIRECTORY = "MEMORY_FIT_RUN"
"""Environment variable with the directory that the processes of one shape share."""
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
STEPS = 3
EMBEDDING = "aten::embedding"
BACKWARD = "autograd::engine::evaluate_function: _SummedLossBackward"
OPTIMIZER = "Optimizer.step#AdamW.step"
MARKS = {"[memory]": "peak", EMBEDDING: "resident", BACKWARD: "before_backward", OPTIMIZER: "at_optimizer"}


class Enough(Exception):  # noqa: N818 - nothing has gone wrong
    """Ends the run after the measured steps, because saving and sampling would only take time."""


class StopAfter:
    """A listener that measures shared memory after a number of steps and then ends the run."""

    def __init__(self) -> None:
        self.before, self.staged = shared_memory(), 0

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] == STEPS:
            self.staged = shared_memory() - self.before
            raise Enough

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        pass


def shared_memory() -> int:
    """Return the bytes of shared memory of this process; saving places its copies there."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssShmem:"))


def write_tokens(shape: Shape, folder: Path) -> None:
    import numpy as np

    samples = shape.batch * shape.accumulation * shape.processes
    tokens = samples * shape.sequence * (STEPS + 1) + 1
    drawn = np.random.default_rng(1).integers(0, shape.vocabulary, tokens, dtype=np.uint16)
    drawn.tofile(folder / "tokens.bin")


def config_of(shape: Shape, folder: Path, device: str) -> Config:
    training = {"batch_size": shape.batch, "gradient_accumulation_steps": shape.accumulation}
    data = {"train_path": str(folder / "tokens.bin"), "validation_path": str(folder / "tokens.bin")}
    return Config.model_validate(
        {
            "model": {
                "name": "measured",
                "device": device,
                "dtype": "bfloat16" if shape.bfloat16 else "float32",
                "architecture": shape.architecture(),
            },
            "training": training | {"max_steps": STEPS + 1},
            "compute": {
                "threads": 1,
                "compile": shape.compiled,
                "strategy": shape.strategy,
                "activation_checkpointing": shape.recomputation,
                "gradient_compression": shape.compression,
            },
            "data": data
            | {"sequence_length": shape.sequence, "prepared_directory": str(folder / "prepared")}
            | {"packing": shape.packing},
            "checkpointing": {"mode": shape.saving, "save_steps": 1 if shape.saving != "sync" else 1000},
            "monitoring": {"log_steps": 1, "tensorboard": False},
        }
    )


def run_steps(config: Config, folder: Path) -> int:
    """Train and return the size in bytes of the staged copy, which torch's allocator does not count."""
    from trainyard.run.directory import RunDirectory
    from trainyard.training.data.tokenize_corpus import prepare_data
    from trainyard.training.loop import train
    from trainyard.training.run.run_context import Request
    from trainyard.training.runtime.stop_signals import StopRequest

    data = prepare_data(config.data, config.model)
    run = Path(os.environ.get(RUN_DIRECTORY, folder / "run"))
    request = Request(config, RunDirectory(run), data, "none", "measured", {})
    try:
        train(request, stop=StopRequest(), listener=(listener := StopAfter()))
    except Enough:
        return listener.staged
    raise SystemExit("the run ended before its steps were measured")


def measure(shape: Shape, device: str) -> dict[str, int]:
    """Measured memory of this process, in bytes."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        write_tokens(shape, Path(name))
        config = config_of(shape, Path(name), device)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            staged = run_steps(config, Path(name))
            # The run has freed its memory, so that only the peak can be read.
            peak = {"peak": torch.cuda.max_memory_allocated()}
            return with_copy(peak, staged, beside="host") if shape.saving != "sync" else peak
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            staged = run_steps(config, Path(name))
    parts = read_timeline(profile.kineto_results.events())
    return with_copy(parts, staged, beside="peak") if shape.saving != "sync" else parts


def with_copy(measured: dict[str, int], staged: int, *, beside: str) -> dict[str, int]:
    """Return `measured` plus the staged copy of the state."""
    return measured | {"staged": staged, beside: measured.get(beside, 0) + staged}


def read_timeline(events: list[Any]) -> dict[str, int]:
    """Compute live bytes from the events of a profile: at each mark of the step, and their peak.

    The profiler does not see memory that gloo's threads free, so with several processes the sum drifts
    upwards: each step is counted from its start, and the lowest step is taken.
    """
    rows = sorted((e.start_ns(), e.nbytes() if e.name() == "[memory]" else 0, e.name()) for e in events)
    live, drift, steps = 0, 0, [dict.fromkeys(MARKS, 0)]
    for _, change, name in rows:
        live += change
        if name == EMBEDDING and steps[-1][OPTIMIZER]:
            drift = live - steps[0][EMBEDDING]
            steps.append(dict.fromkeys(MARKS, 0))
        if name == EMBEDDING:
            steps[-1][name] = steps[-1][name] or live
        elif name in MARKS:
            steps[-1][name] = max(steps[-1][name], live - drift)
    parts = {part: min(step[mark] for step in steps) for mark, part in MARKS.items()}
    return {part: size for part, size in parts.items() if size}


def planned(shape: Shape, device: str) -> dict[str, int]:
    """Return the planned bytes by `plan.device_memory`."""
    from trainyard.plan.device_memory import highest_memory_peak, host_bytes, memory_peaks_of, rows_of_logits
    from trainyard.plan.workload import training_workload

    config = config_of(shape, Path(), device)
    work = training_workload(config, on_gpu=device == "cuda", processes=shape.processes)
    moments = {moment.name: moment.parts for moment in memory_peaks_of(work)}
    loss, end = moments["loss"], moments["optimizer step"]
    return {
        "staged": end.staging,
        "host": host_bytes(work),
        "peak": highest_memory_peak(work).parts.total,
        "resident": end.weights + end.moments,
        "before_backward": loss.total - loss.staging - loss.logits // 2 - rows_of_logits(work),
        "at_optimizer": end.total - end.staging,
    }


def compare(name: str, device: str) -> dict[str, Any]:
    """Measure a shape in separate processes, plan it in this one, and return the ratios."""
    measured = json.loads(measured_apart(name, device).splitlines()[-1])
    plan = planned(SHAPES[name], device)
    # DDP's buckets and gathered tables are allocated before the first operation.
    compared = [part for part in measured if part != "resident" or SHAPES[name].processes == 1]
    ratios = {part: round(plan[part] / measured[part], 4) for part in compared}
    return {"shape": name, "measured": measured, "planned": plan, "ratios": ratios}


def measured_apart(name: str, device: str) -> str:
    """Run the processes of a shape and return the output of the first; the others end with it."""
    line = [sys.executable, __file__, "--measure", name, "--device", device]
    size = SHAPES[name].processes
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    together = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared = tempfile.TemporaryDirectory()
    together[RUN_DIRECTORY] = shared.name
    workers = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **together} if size > 1 else {}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if rank == 0 else QUIET
        workers.append(subprocess.Popen(line, text=True, env=os.environ | own, **streams))
    try:
        printed, errors = workers[0].communicate(timeout=1800)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        shared.cleanup()
    if workers[0].returncode:
        raise SystemExit(f"{name}: not measured\n{errors}")
    return str(printed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=SHAPES, metavar="NAME", help=", ".join(SHAPES))
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: both where there is a GPU")
    parser.add_argument("--measure", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(SHAPES[args.measure], args.device)))
        return 0
    import torch

    devices = [args.device] if args.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    results = []
    for device in devices:
        for name in args.shape or SHAPES:
            result = {"device": device} | compare(name, device)
            results.append(result)
            if not args.json:
                parts = "  ".join(f"{part} {ratio:.3f}" for part, ratio in result["ratios"].items())
                print(
                    f"{device:<5} {name:<18} {result['measured']['peak'] / 1e6:8,.1f} MB   {parts}",
                    flush=True,
                )
    if args.json:
        print(json.dumps(results, indent=2))
    elif "cuda" not in devices:
        print("cuda  not measured")
    return 0 if all(abs(r["ratios"]["peak"] - 1) <= GOAL for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
