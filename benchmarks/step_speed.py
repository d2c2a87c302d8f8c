#!/usr/bin/env python3
"""Measure a complete training step on the CPU, as shipped, against two peers at the same shape, in turns.

Ours is `trainyard train` in bfloat16, compiled. nanoGPT is its own `train.py`, compiled, in float32, the
only type that it supports on a CPU; its architecture differs, so model operations per second are compared.
The Hugging Face Trainer trains LlamaForCausalLM of our shape in bfloat16, compiled; its tokens per second are
compared. Each run is its own process on the same random tokens; its median step counts, without the first
ones. With --deterministic the only peer is ours without deterministic kernels, and there is no goal.

Reads:      --nanogpt, a checkout of github.com/karpathy/nanoGPT; without it that peer is left out
Writes:     temporary folders; with --json the figures on stdout
Exit codes: 0 every goal that was measured is met, 1 one is not
Example:    benchmarks/step_speed.py --nanogpt ../nanoGPT --rounds 6
"""

import argparse
import json
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parent.parent
GOALS = {"nanogpt": 2.1, "hugging_face": 1.5}
WIDTH, BLOCKS, HEADS, FEED_FORWARD, VOCABULARY, SEQUENCE, BATCH = 256, 6, 8, 1024, 4096, 256, 8
WARM_UP = 5
SECONDS = 900


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of nanoGPT")
    parser.add_argument("--rounds", type=int, default=6, help="runs of each, in turns")
    parser.add_argument("--steps", type=int, default=40, help=f"steps a run; {WARM_UP} are not measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="ours")
    parser.add_argument("--deterministic", action="store_true", help="measure what these kernels cost")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-hugging-face", type=Path, metavar="TOKENS", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.as_hugging_face:
        print(json.dumps(hugging_face_steps(args.as_hugging_face, args.steps)))
        return 0
    runs: dict[str, Callable[[argparse.Namespace, Path], list[float]]] = {"ours": ours}
    if args.deterministic:
        runs["free"] = partial(ours, deterministic=False)
    elif args.nanogpt:
        runs["nanogpt"] = nanogpt
    if not args.deterministic:
        runs["hugging_face"] = hugging_face
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(Path(folder) / "train.bin")
        for _ in range(args.rounds):
            for name, run in runs.items():
                seconds[name].append(statistics.median(run(args, Path(folder))[WARM_UP:]))
    result = compared(seconds)
    lines = [f"{key:36} {value}" for key, value in result.items()]
    print(json.dumps(result) if args.json else "\n".join(lines))
    return 0 if all(result[f"{peer}_ratio"] >= GOALS[peer] for peer in seconds if peer in GOALS) else 1


def compared(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Measure all trainers; ratios are medians over the rounds, in operations or tokens per second."""
    flops, tokens = flops_per_token(), BATCH * SEQUENCE
    result: dict[str, Any] = {}
    for name, each in seconds.items():
        speed = tokens / statistics.median(each)
        result[f"{name}_tokens_per_second"] = round(speed)
        result[f"{name}_gflops"] = round(speed * flops[name] / 1e9, 1)
    for peer in [name for name in seconds if name != "ours"]:
        work = flops["ours"] / flops[peer]
        ratios = [theirs / own * work for own, theirs in zip(seconds["ours"], seconds[peer], strict=True)]
        best = min(seconds[peer]) / min(seconds["ours"]) * work
        result[f"{peer}_ratio"] = round(statistics.median(ratios), 3)
        result[f"{peer}_spread"] = [round(min(ratios), 3), round(max(ratios), 3)]
        result[f"{peer}_ratio_of_bests"] = round(best, 3)
        if peer in GOALS:
            result[f"{peer}_goal"] = GOALS[peer]
    return result


def flops_per_token() -> dict[str, float]:
    """Return FLOPs per token, 6 N + 12 L d s; nanoGPT's `estimate_mfu` omits position embeddings from N."""
    from trainyard.config.schema import ArchitectureConfig
    from trainyard.plan.flops import flops_per_token as count

    own = float(count(ArchitectureConfig.model_validate(shape()), SEQUENCE))
    parameters = VOCABULARY * WIDTH + BLOCKS * (12 * WIDTH**2 + 2 * WIDTH) + WIDTH
    return {
        "ours": own,
        "free": own,
        "hugging_face": own,
        "nanogpt": 6.0 * parameters + 12 * BLOCKS * WIDTH * SEQUENCE,
    }


def shape() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": SEQUENCE,
        "tie_word_embeddings": False,
    }


def write_tokens(path: Path) -> None:
    import numpy as np

    np.random.default_rng(1).integers(0, VOCABULARY, 2_000_000).astype(np.uint16).tofile(path)


def finished(command: Sequence[str], *, threads: int, cwd: Path) -> str:
    """Run a command and return its stdout. Raises CalledProcessError if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "CI": "true"}
    done = subprocess.run(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True
    )
    return done.stdout


def ours(args: argparse.Namespace, folder: Path, *, deterministic: bool = True) -> list[float]:
    """Return the seconds of each step of the shipped trainer."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    settings: dict[str, Any] = {
        "model.device": "cpu",
        "model.dtype": args.dtype,
        "compute.compile": "true",
        "compute.deterministic": str(deterministic).lower(),
        "compute.threads": args.threads,
        "training.batch_size": BATCH,
        "training.max_steps": args.steps,
        "training.validation_steps": "null",
        "data.sequence_length": SEQUENCE,
        "data.validation_fraction": 0.0,
        "data.train_path": folder / "train.bin",
        "data.prepared_directory": folder / "prepared",
        "checkpointing.save_steps": args.steps,
        # The peers save nothing. The process that writes checkpoints in the background takes five seconds of
        # a processor to start, the time of 25 steps on two cores, and would be measured with them.
        "checkpointing.mode": "sync",
        "monitoring.log_steps": 1,
        **{f"model.architecture.{key}": str(value).lower() for key, value in shape().items()},
    }
    command = [sys.executable, str(HOUSE / "scripts" / "train.py"), "--run-dir", str(folder / "run")]
    command += ["--config", str(HOUSE / "configs" / "smoke.yaml")]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    finished(command, threads=args.threads, cwd=HOUSE)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step_seconds"] for line in lines]


def nanogpt(args: argparse.Namespace, folder: Path) -> list[float]:
    """Return the seconds per iteration of nanoGPT's trainer, in a copy because it reads files beside it."""
    copy = folder / "nanogpt"
    if not copy.exists():
        shutil.copytree(args.nanogpt, copy, ignore=shutil.ignore_patterns(".git"))
        data = copy / "data" / "benchmark"
        data.mkdir(parents=True)
        for name in ("train.bin", "val.bin"):
            shutil.copy(folder / "train.bin", data / name)
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": VOCABULARY}))
    options = {
        "dataset": "benchmark",
        "device": "cpu",
        "compile": True,
        "dtype": "float32",
        "n_layer": BLOCKS,
        "n_head": HEADS,
        "n_embd": WIDTH,
        "block_size": SEQUENCE,
        "batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "eval_iters": 1,
        "eval_interval": 10**6,
        "log_interval": 1,
        "max_iters": args.steps,
        "out_dir": "out",
    }
    command = [sys.executable, "train.py", *(f"--{key}={value}" for key, value in options.items())]
    said = finished(command, threads=args.threads, cwd=copy)
    return [float(match) / 1e3 for match in re.findall(r"^iter \d+: loss .*, time ([\d.]+)ms", said, re.M)]


def hugging_face(args: argparse.Namespace, folder: Path) -> list[float]:
    """Return the seconds of each step of the Hugging Face Trainer, run in a separate process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--as-hugging-face", str(folder / "train.bin")]
    said = finished([*command, "--steps", str(args.steps)], threads=args.threads, cwd=folder)
    times: list[float] = json.loads(said.splitlines()[-1])
    return times


def hugging_face_steps(tokens: Path, steps: int) -> list[float]:
    """Train LlamaForCausalLM with the Trainer and record the seconds between the ends of its steps."""
    import numpy as np
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            ends.append(time.perf_counter())

    names = {"num_layers": "num_hidden_layers"}
    config = LlamaConfig(**{names.get(key, key): value for key, value in shape().items()})
    rows = np.fromfile(tokens, dtype=np.uint16)[: (steps + 1) * BATCH * SEQUENCE].reshape(-1, SEQUENCE)
    data = [{"input_ids": row.astype(np.int64), "labels": row.astype(np.int64)} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(tokens.parent / "hugging-face"),
        use_cpu=True,
        bf16=True,
        torch_compile=True,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data, callbacks=[Clock()]).train()
    return [later - earlier for earlier, later in pairwise(ends)]


if __name__ == "__main__":
    sys.exit(main())
