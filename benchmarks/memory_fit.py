#!/usr/bin/env python3
"""The planned memory of a training step against what a real one takes. Goal: within 10 %, for every shape.

Each shape is trained for two steps through `training.session`, alone in a process. On the CPU every
allocation and release of torch's allocator is read from its profiler, those inside kernels included: it is
exact, and no other memory of the process counts. On a GPU the peak is the caching allocator's own
(`torch.cuda.max_memory_allocated`). Compared are the peak and, on the CPU, the weights with their moments,
what is there when the backward pass begins, and the gradients at the optimizer step.

Reads:   --shape (may be repeated; default all), --device
Writes:  a table, or JSON, on stdout
Exit codes: 0 every peak is within 10 %, 1 one is not
Example: benchmarks/memory_fit.py --shape wide-float32 --shape wide-bfloat16
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.config.schema import ArchitectureConfig, Config

GOAL = 0.10
STEPS = 2
EMBEDDING = "aten::embedding"
BACKWARD = "autograd::engine::evaluate_function: NllLossBackward0"
OPTIMIZER = "Optimizer.step#AdamW.step"


@dataclass(frozen=True)
class Shape:
    """A model and its batch; the feed-forward is 2.75 times as wide as the residual stream."""

    width: int
    blocks: int
    batch: int
    sequence: int
    vocabulary: int = 256
    bfloat16: bool = False
    accumulation: int = 1
    tied: bool = False
    compiled: bool = False

    def architecture(self) -> dict[str, Any]:
        heads = self.width // 64
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.width * 11 // 4,
            "num_layers": self.blocks,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": self.sequence,
            "tie_word_embeddings": self.tied,
        }


SHAPES = {
    "small-float32": Shape(width=256, blocks=4, batch=4, sequence=256),
    "small-bfloat16": Shape(width=256, blocks=2, batch=2, sequence=128, vocabulary=8192, bfloat16=True),
    "wide-float32": Shape(width=512, blocks=12, batch=4, sequence=512),
    "wide-bfloat16": Shape(width=512, blocks=12, batch=4, sequence=512, bfloat16=True),
    "many-float32": Shape(width=384, blocks=6, batch=16, sequence=256),
    "long-bfloat16": Shape(width=384, blocks=8, batch=2, sequence=1024, bfloat16=True),
    "words-float32": Shape(width=256, blocks=6, batch=4, sequence=256, vocabulary=32_000),
    "words-bfloat16": Shape(width=256, blocks=6, batch=4, sequence=512, vocabulary=32_000, bfloat16=True),
    "tied-float32": Shape(width=512, blocks=8, batch=2, sequence=256, vocabulary=32_000, tied=True),
    "heavy-bfloat16": Shape(512, 8, batch=2, sequence=256, vocabulary=32_000, bfloat16=True, accumulation=2),
    "heavy-float32": Shape(width=768, blocks=8, batch=2, sequence=64, accumulation=2),
    "compiled-float32": Shape(width=256, blocks=6, batch=8, sequence=256, compiled=True),
    "compiled-bfloat16": Shape(
        256, 6, batch=4, sequence=512, vocabulary=32_000, bfloat16=True, compiled=True
    ),
}


class Enough(Exception):  # noqa: N818 - nothing has gone wrong
    """The steps that are measured are done; saving and sampling would only take time."""


class StopAfter:
    """A listener that ends the run after a number of steps."""

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] == STEPS:
            raise Enough

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        pass


def config_of(shape: Shape, folder: Path, device: str) -> Config:
    import numpy as np

    tokens = shape.batch * shape.accumulation * shape.sequence * (STEPS + 1) + 1
    drawn = np.random.default_rng(1).integers(0, shape.vocabulary, tokens, dtype=np.uint16)
    drawn.tofile(folder / "tokens.bin")
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
            "compute": {"threads": 1, "compile": shape.compiled},
            "data": data
            | {"sequence_length": shape.sequence, "prepared_directory": str(folder / "prepared")},
            "monitoring": {"log_steps": 1, "tensorboard": False},
        }
    )


def run_steps(config: Config, folder: Path) -> None:
    from trainyard.run.directory import RunDirectory
    from trainyard.training.segment import Request
    from trainyard.training.session import train
    from trainyard.training.stop import StopRequest
    from trainyard.training.tokens import prepare_data

    data = prepare_data(config.data, config.model)
    request = Request(config, RunDirectory(folder / "run"), data, "none", "measured", {})
    try:
        train(request, stop=StopRequest(), listener=StopAfter())
    except Enough:
        return
    raise SystemExit("the run ended before its steps were measured")


def measure(shape: Shape, device: str) -> dict[str, int]:
    """Bytes, measured in this process."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        config = config_of(shape, Path(name), device)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            run_steps(config, Path(name))
            # The run's parts are gone with it, so that only the peak is left to ask for.
            return {"peak": torch.cuda.max_memory_allocated()}
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            run_steps(config, Path(name))
    return read_timeline(profile.kineto_results.events())


def read_timeline(events: list[Any]) -> dict[str, int]:
    """Live bytes over time from a profile's events: at the marks of the step, and at most."""
    rows = sorted((e.start_ns(), e.nbytes() if e.name() == "[memory]" else 0, e.name()) for e in events)
    live, at = 0, {"[memory]": [0], EMBEDDING: [], BACKWARD: [], OPTIMIZER: []}
    for _, change, name in rows:
        live += change
        if name in at:
            at[name].append(live)
    parts = {"peak": max(at["[memory]"]), "before_backward": max(at[BACKWARD])}
    if at[EMBEDDING]:  # a compiled step has no such operation
        resident = at[EMBEDDING][0]
        parts |= {"resident": resident, "gradients": max(at[OPTIMIZER]) - resident}
    return parts


def planned(shape: Shape, *, on_gpu: bool) -> dict[str, int]:
    """The same bytes by `plan.memory`."""
    from trainyard.plan.memory import highest_moment, moments_of
    from trainyard.plan.workload import Workload

    work = Workload(
        architecture=ArchitectureConfig(**shape.architecture()),
        batch_size=shape.batch,
        accumulation=shape.accumulation,
        sequence_length=shape.sequence,
        bfloat16=shape.bfloat16,
        compiled=shape.compiled,
        on_gpu=on_gpu,
    )
    moments = {moment.name: moment.parts for moment in moments_of(work)}
    loss, end = moments["loss"], moments["optimizer step"]
    gradients_of_the_loss = 2 * 4 * work.tokens * shape.vocabulary
    return {
        "peak": highest_moment(work).parts.total,
        "resident": end.weights + end.moments,
        "before_backward": loss.total - gradients_of_the_loss,
        "gradients": end.gradients,
    }


def compare(name: str, device: str) -> dict[str, Any]:
    """Measured in a process of its own, planned in this one, and their ratios."""
    line = [sys.executable, __file__, "--measure", name, "--device", device]
    done = subprocess.run(line, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{name}: not measured\n{done.stderr}")
    measured = json.loads(done.stdout.splitlines()[-1])
    plan = planned(SHAPES[name], on_gpu=device == "cuda")
    ratios = {part: round(plan[part] / value, 4) for part, value in measured.items()}
    return {"shape": name, "measured": measured, "planned": plan, "ratios": ratios}


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
