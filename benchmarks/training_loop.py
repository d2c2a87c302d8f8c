#!/usr/bin/env python3
"""Measure the cost of the training loop: the shipped loop against the same model in a bare loop, in turns.

The bare loop draws the same batches, takes the same steps and does nothing else: no finite check, no row, no
TensorBoard, no event, no checkpoint. The shipped loop logs every step; it validates and saves outside the
measured steps.

Reads:      nothing but the embedded corpus
Writes:     temporary run directories; with --json the figures on stdout
Exit codes: 0 the goal is met, 1 it is not
Example:    benchmarks/training_loop.py --rounds 7
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parent.parent
GOAL = 0.99


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="runs of each, in turns")
    parser.add_argument("--steps", type=int, default=60, help="steps a run; the first ten are not measured")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    os.chdir(HOUSE)
    ratios, bare, full = [], [], []
    for _ in range(args.rounds):
        bare.append(bare_loop(configuration(args.steps), args.steps))
        full.append(shipped_loop(configuration(args.steps)))
        ratios.append(full[-1] / bare[-1])
    result = {
        "bare_tokens_per_second": round(statistics.median(bare)),
        "shipped_tokens_per_second": round(statistics.median(full)),
        "median_ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "ratio_of_bests": round(max(full) / max(bare), 3),
        "goal": GOAL,
    }
    print(
        json.dumps(result) if args.json else "\n".join(f"{key:28} {value}" for key, value in result.items())
    )
    return 0 if result["median_ratio"] >= GOAL else 1


def configuration(steps: int) -> Any:
    from trainyard.config.load import load_config

    overrides = [f"training.max_steps={steps}", "model.device=cpu", "training.validation_steps=null"]
    overrides += [f"checkpointing.save_steps={steps}", "monitoring.log_steps=1"]
    return load_config(HOUSE / "configs" / "smoke.yaml", overrides).config


def bare_loop(config: Any, steps: int) -> float:
    """Tokens per second of a loop without Trainyard's checks and records."""
    import torch
    from torch.nn import functional

    from trainyard.training.data.batches import TokenBatches
    from trainyard.training.data.tokenize_corpus import prepare_data
    from trainyard.training.model.model import build_model
    from trainyard.training.runtime.hardware import prepare_device

    prepare_device(config)
    data = prepare_data(config.data, config.model)
    model = build_model(config.model.architecture, seed=config.training.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.training.learning_rate, fused=True)
    batches = TokenBatches(
        data.train.open(),
        sequence_length=config.data.sequence_length,
        batch_size=config.training.batch_size,
        seed=config.training.seed,
    )
    times = []
    for step in range(steps):
        start = time.perf_counter()
        batch = torch.from_numpy(batches.batch(step))
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
    return speed(times, config)


def shipped_loop(config: Any) -> float:
    """Tokens a second between the rows that the shipped trainer writes, whatever it does in between."""
    from trainyard.run.directory import RunDirectory
    from trainyard.training.data.tokenize_corpus import prepare_data
    from trainyard.training.loop import train
    from trainyard.training.run.run_context import Request
    from trainyard.training.runtime.stop_signals import StopRequest

    class Clock:
        """A listener; the time between two rows is a step with all that belongs to it."""

        def __init__(self) -> None:
            self.at: list[float] = []

        def on_row(self, _row: dict[str, Any]) -> None:
            self.at.append(time.perf_counter())

        def on_event(self, event: str, fields: dict[str, Any]) -> None: ...

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        data = prepare_data(config.data, config.model)
        request = Request(config, directory, data, "none", "benchmark", {})
        train(request, stop=StopRequest(), listener=clock)
    times = [later - earlier for earlier, later in zip(clock.at, clock.at[1:], strict=False)]
    return speed(times[:-1], config)  # the last row waits for the validation at the end


def speed(times: Sequence[float], config: Any) -> float:
    """Tokens a second of the median step, the first ten left out."""
    return float(config.training.batch_size * config.data.sequence_length / statistics.median(times[10:]))


if __name__ == "__main__":
    sys.exit(main())
