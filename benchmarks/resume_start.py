#!/usr/bin/env python3
"""Time a resumed run from start to first step: `trainyard train` against a bare script, in turns.

The bare script imports torch, builds the same model and optimizer, loads the same checkpoint with
`torch.distributed.checkpoint.load` and takes one step on the first tokens of the same file. It checks neither
the checkpoint's digests nor the data nor the configuration, and writes nothing.

Reads:      nothing but the embedded corpus
Writes:     a temporary run; with --json the figures on stdout
Exit codes: 0 the goal is met, 1 it is not
Example:    benchmarks/resume_start.py --rounds 7 --set model.architecture.hidden_size=512
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parent.parent
GOAL = 1.1
BARE = """
import sys, time
from pathlib import Path
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.nn import functional
from trainyard.config.load import load_config
from trainyard.training.model.model import build_model

config = load_config(Path(sys.argv[1])).config
shape, length, size = config.model.architecture, config.data.sequence_length, config.training.batch_size
torch.set_num_threads(config.compute.threads or torch.get_num_threads())
model = build_model(shape, seed=config.training.seed)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for parameter in model.parameters():
    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
moments = {
    f"{name}.{key}": value
    for name, parameter in model.named_parameters()
    for key, value in optimizer.state[parameter].items()
}
dcp.load({"model": model.state_dict(), "optimizer": moments}, checkpoint_id=sys.argv[2], no_dist=True)
tokens = np.memmap(sys.argv[3], np.uint8, mode="r")[: size * (length + 1)]
batch = torch.from_numpy(tokens.astype(np.int64)).reshape(size, length + 1)
logits = model(batch[:, :-1])
functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
print(time.time())
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="starts of each, in turns")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    with tempfile.TemporaryDirectory() as text:
        run = Path(text) / "run"
        command = train_command(run, args.set)
        subprocess.run(
            [*command, "--set", "training.max_steps=2"], check=True, capture_output=True, cwd=HOUSE
        )
        bare, ours = [], []
        for _ in range(1 + args.rounds):  # the first ones compile what they import
            bare.append(bare_start(run))
            ours.append(shipped_start(run, command))
    result = summary(bare[1:], ours[1:])
    print(
        json.dumps(result) if args.json else "\n".join(f"{key:16} {value}" for key, value in result.items())
    )
    return 0 if result["median_ratio"] <= GOAL else 1


def summary(bare: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    ratios = [b / a for a, b in zip(bare, ours, strict=True)]
    return {
        "bare_seconds": round(statistics.median(bare), 2),
        "shipped_seconds": round(statistics.median(ours), 2),
        "median_ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "ratio_of_bests": round(min(ours) / min(bare), 3),
        "goal": GOAL,
    }


def train_command(run: Path, overrides: Sequence[str]) -> list[str]:
    settings = ["model.device=cpu", "training.validation_steps=null", "training.lr_scheduler=constant"]
    settings += ["monitoring.log_steps=1", "checkpointing.save_steps=1000", "training.validation_batches=1"]
    settings += [f"data.prepared_directory={run.parent}/prepared", *overrides]
    line = [sys.executable, str(HOUSE / "scripts" / "train.py"), "--run-dir", str(run)]
    line += ["--config", str(HOUSE / "configs" / "smoke.yaml")]
    return line + [word for setting in settings for word in ("--set", setting)]


def bare_start(run: Path) -> float:
    """Seconds from the start of the process to the end of its step."""
    (tokens,) = run.parent.glob("prepared/*/train.bin")
    line = [sys.executable, "-c", BARE, str(run / "config.yaml"), str(run / "checkpoints" / "step-00000002")]
    start = time.time()
    done = subprocess.run([*line, str(tokens)], check=True, capture_output=True, text=True, env=environment())
    return float(done.stdout) - start


def shipped_start(run: Path, command: Sequence[str]) -> float:
    """Seconds from the start of the process to the row of the first step after the checkpoint."""
    rows, start = run / "metrics.jsonl", time.time()
    line = [*command, "--set", "training.max_steps=1000"]
    process = subprocess.Popen(line, stderr=subprocess.DEVNULL, cwd=HOUSE, env=environment())
    try:
        while process.poll() is None:
            lines = rows.read_text().splitlines()
            at = json.loads(lines[2])["time"] if len(lines) > 2 and lines[2].endswith("}") else 0.0
            if at > start:  # not the row of the previous start
                return float(at) - start
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    raise SystemExit(f"{' '.join(line)}: ended with {process.returncode} before its first step")


def environment() -> dict[str, str]:
    """This process's environment; both sides may keep compiled files, as an installed program does."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(HOUSE / "src"), "OMP_WAIT_POLICY": "PASSIVE"}


if __name__ == "__main__":
    sys.exit(main())
