#!/usr/bin/env python3
"""Measure everything of `docs/benchmarks.md` that needs a GPU, and write its table.

Each case runs in processes of its own, one after another; one that fails becomes a row that says so. The
model is Llama 3.2 1B in bfloat16, compiled, with sequences of 4,096 tokens of random ids.

Reads:      --case (may be repeated; default all), --steps, --timeout per case in seconds
Writes:     a table, or JSON, on stdout; with --write the table in docs/benchmarks.md; temporary folders
Exit codes: 0 every goal that was measured is met, 1 one is not or a case failed, 2 there is no GPU here
Example:    benchmarks/gpu.py --write
            benchmarks/gpu.py --case step --case offload --steps 20
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parent.parent
DOCUMENT = HOUSE / "docs" / "benchmarks.md"
BEGIN, END = "<!-- benchmarks/gpu.py writes this table -->", "<!-- end of the table of benchmarks/gpu.py -->"
PRESET = "configs/models/llama-3.2-1b.yaml"
SEQUENCE, BATCH, WARM_UP = 4096, 2, 5
STAGED_LAYERS = 180
"""Layers of `checkpoint_stall.py`'s model: 7 M parameters each, 12 bytes per parameter, 15 GB in all."""


class CaseError(Exception):
    """A case could not be measured; the message is for the table."""


@dataclass(frozen=True)
class Row:
    """A measured claim."""

    claim: str
    peer: str
    result: str
    goal: str = ""
    met: bool | None = None
    """None if there is no goal, or nothing to compare with."""


@dataclass(frozen=True)
class Bench:
    """Settings that all cases share."""

    folder: Path
    steps: int
    timeout: float


def train(bench: Bench, name: str, *settings: str, processes: int = 1) -> list[dict[str, Any]]:
    """The rows of a run of the shipped trainer, without the first ones, which compile."""
    write_tokens(bench.folder / "train.bin")
    config, run = bench.folder / "config.yaml", bench.folder / name
    config.write_text(f"extends: {HOUSE}/{PRESET}\n")
    shared = {
        "model.device": "auto",
        "model.dtype": "bfloat16",
        "compute.compile": "true",
        "training.batch_size": BATCH,
        "training.max_steps": bench.steps + WARM_UP,
        "data.train_path": bench.folder / "train.bin",
        "data.validation_fraction": 0.0,
        "data.sequence_length": SEQUENCE,
        "data.bin_dtype": "uint32",
        "data.prepared_directory": bench.folder / "prepared",
        "checkpointing.save_steps": bench.steps + WARM_UP,
        "checkpointing.keep_last": 1,
        "monitoring.log_steps": 1,
        "monitoring.tensorboard": "false",
    }
    words = [*(f"{key}={value}" for key, value in shared.items()), *settings]
    command = [sys.executable, str(HOUSE / "scripts" / "train.py"), "--config", str(config)]
    command += ["--run-dir", str(run), *(word for setting in words for word in ("--set", setting))]
    if processes > 1:
        command += ["--nproc-per-node", str(processes)]
    finished(bench, command)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if len(rows) <= WARM_UP:
        raise CaseError(f"{len(rows)} steps are on record")
    return rows[WARM_UP:]


def finished(bench: Bench, command: Sequence[str], *, codes: Sequence[int] = (0,)) -> str:
    """Run a command and return its stdout. Raises CaseError when it fails or takes too long."""
    try:
        done = subprocess.run(
            command, cwd=HOUSE, capture_output=True, text=True, timeout=bench.timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise CaseError(f"not done after {bench.timeout:.0f} s") from None
    if done.returncode not in codes:
        said = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()[-1]
        raise CaseError(f"exit code {done.returncode}: {said}")
    return done.stdout


def write_tokens(path: Path) -> None:
    import numpy as np

    if not path.exists():
        np.random.default_rng(1).integers(0, 128_256, 8_000_000).astype(np.uint32).tofile(path)


def speed(rows: Sequence[dict[str, Any]]) -> float:
    """The median of tokens per second."""
    return float(statistics.median(row["tokens_per_second"] for row in rows))


def step(bench: Bench) -> list[Row]:
    rows = train(bench, "step")
    known = [row["mfu"] for row in rows if "mfu" in row]
    share = statistics.median(known) if known else None
    result = f"{speed(rows):,.0f} tokens/s" + (f", {share:.1%} MFU" if share is not None else "")
    claim = "1 GPU, Llama 1B, sequence 4,096, bf16, compiled"
    met = None if share is None else share >= 0.5
    return [Row(claim, "the GPU's dense bf16 peak", result, "50 % MFU", met)]


def determinism(bench: Bench) -> list[Row]:
    kept, free = (
        speed(train(bench, f"deterministic-{value}", f"compute.deterministic={value}"))
        for value in ("true", "false")
    )
    return [Row("deterministic kernels", "the same without", f"{kept / free:.3f} of its tokens/s")]


def hugging_face(bench: Bench) -> list[Row]:
    ours = speed(train(bench, "beside-hugging-face"))
    asked = [sys.executable, __file__, "--as-hugging-face", "--steps", str(bench.steps)]
    seconds = json.loads(finished(bench, asked).splitlines()[-1])
    ratio = ours / (BATCH * SEQUENCE / statistics.median(seconds[WARM_UP:]))
    return [Row("the same step", "Hugging Face Trainer, bf16, compiled", f"{ratio:.2f}", "1.1", ratio >= 1.1)]


def offload(bench: Bench) -> list[Row]:
    settings = ("compute.strategy=fsdp", "compute.cpu_offload=true", "training.gradient_accumulation_steps=2")
    rows = train(bench, "offload", *settings)
    peak = max(row["gpu_memory_peak_bytes"] for row in rows)
    ratio = planned_peak(bench.folder / "offload") / peak
    result = f"{speed(rows):,.0f} tokens/s, {peak / 1e9:.1f} GB; planned peak {ratio:.3f} of it"
    return [
        Row("FSDP with offloading, 2 passes", "measured peak", result, "0.95 to 1.05", abs(ratio - 1) <= 0.05)
    ]


def planned_peak(run: Path) -> int:
    from trainyard.config.load import load_config
    from trainyard.plan.device_memory import highest_memory_peak
    from trainyard.plan.workload import training_workload

    config = load_config(run / "config.yaml").config
    return highest_memory_peak(training_workload(config, on_gpu=True)).parts.total


def memory(bench: Bench) -> list[Row]:
    import torch

    from memory_shapes import SHAPES

    fit = [name for name, shape in SHAPES.items() if shape.processes <= torch.cuda.device_count()]
    options = ["--device", "cuda", "--json", *(word for name in fit for word in ("--shape", name))]
    said = finished(bench, [*here("memory_fit.py"), *options], codes=(0, 1))
    ratios = [found["ratios"]["peak"] for found in json.loads(said)]
    result = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {len(ratios)} shapes"
    met = all(abs(ratio - 1) <= 0.1 for ratio in ratios)
    return [Row("planned peak memory on a GPU", "measured peak", result, "0.9 to 1.1", met)]


def resumes(bench: Bench) -> list[Row]:
    cases = ["bfloat16-compiled-single-1", "bfloat16-compiled-single-4", "float32-compiled-single-1"]
    options = ["--device", "cuda", "--kills", "5", "--json", "--cases", *cases]
    said = json.loads(finished(bench, [*here("kill_resume.py"), *options], codes=(0, 1)).splitlines()[-1])
    kills = sum(said["kills"].get(name, 0) for name in ("SIGKILL", "SIGTERM"))
    result = f"{said['equal']} of {said['cases']} runs equal to the bit, {kills} kills"
    met = said["equal"] == said["cases"]
    return [Row("killed and resumed, compiled", "the same run uninterrupted", result, "all", met)]


def staging(bench: Bench) -> list[Row]:
    options = [
        "--device",
        "cuda",
        "--layers",
        str(STAGED_LAYERS),
        "--rounds",
        "3",
        "--warm-up",
        "1",
        "--json",
    ]
    said = finished(bench, [*here("checkpoint_stall.py"), *options], codes=(0, 1))
    ours = json.loads(said.splitlines()[-1])["async"]
    goals = {"blocked": 1.2, "lost": 1.0, "whole": 1.5}
    return [
        Row(
            f"{name} of a save of 15 GB",
            "`dcp.async_save` (a process)",
            f"{ours[name]:.3f} s, ratio {ours[f'{name}_ratio']:.2f}",
            f"at most {most}",
            ours[f"{name}_ratio"] <= most,
        )
        for name, most in goals.items()
    ]


def processes(bench: Bench) -> list[Row]:
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return [Row("several GPUs", "one GPU", "not measured: there is one GPU here")]
    alone, rows = speed(train(bench, "alone")), []
    for strategy in ("ddp", "fsdp"):
        for pinned in ("true", "false"):
            asked = (f"compute.strategy={strategy}", f"compute.deterministic={pinned}")
            together = speed(train(bench, f"{strategy}-{pinned}", *asked, processes=count))
            kind = "pinned" if pinned == "true" else "NCCL's choice"
            share = f"{together / alone / count:.3f} of {count} times its speed"
            rows.append(Row(f"{strategy} on {count} GPUs, {kind}", "one GPU", share))
    return rows


CASES: dict[str, Callable[[Bench], list[Row]]] = {
    "step": step,
    "hugging-face": hugging_face,
    "deterministic": determinism,
    "offload": offload,
    "memory": memory,
    "kill-resume": resumes,
    "staging": staging,
    "several": processes,
}


def here(name: str) -> list[str]:
    return [sys.executable, str(HOUSE / "benchmarks" / name)]


def measured(name: str, bench: Bench) -> list[Row]:
    print(f"{name} …", file=sys.stderr, flush=True)
    try:
        return CASES[name](bench)
    except (CaseError, KeyError, ValueError, OSError) as error:
        return [Row(name, "", f"failed: {' '.join(str(error).split())[:160]}", met=False)]


def table_of(rows: Sequence[Row], machine: str) -> str:
    """The rows as Markdown, with the machine that they were measured on."""
    marks = {True: "met", False: "not met", None: ""}
    lines = [f"Measured on {machine}.", "", "| claim | peer | result | goal | |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [row.claim, row.peer, row.result, row.goal, marks[row.met]]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def with_table(document: str, table: str) -> str:
    """The document with the table between the two marks replaced."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"docs/benchmarks.md: the marks {BEGIN} and {END} are gone; put them back")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def machine_here() -> str:
    import torch

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    count, name = torch.cuda.device_count(), torch.cuda.get_device_name(0)
    versions = f"torch {torch.__version__}, driver {driver[0] if driver else 'unknown'}"
    return f"{count} {name}, {versions}, {time.strftime('%d %B %Y')}"


def hugging_face_steps(steps: int) -> list[float]:
    """Train LlamaForCausalLM as its users do; seconds from one end of a step to the next."""
    import torch
    import yaml
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    shape = yaml.safe_load((HOUSE / PRESET).read_text())["model"]["architecture"]
    shape["num_hidden_layers"] = shape.pop("num_layers")
    rows = torch.randint(0, shape["vocab_size"], ((steps + WARM_UP + 2) * BATCH, SEQUENCE))
    data = [{"input_ids": row, "labels": row} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            bf16=True,
            torch_compile=True,
            max_steps=steps + WARM_UP + 1,
            per_device_train_batch_size=BATCH,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        model = LlamaForCausalLM(LlamaConfig(**shape))
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Clock()]).train()
    return [later - earlier for earlier, later in pairwise(ends)]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--steps", type=int, default=30, help=f"measured steps, after {WARM_UP} others")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds per process of a case")
    parser.add_argument("--folder", type=Path, help="where to write; it needs 60 GB for all cases")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-hugging-face", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("torch sees no GPU here, so nothing was measured and nothing was written.", file=sys.stderr)
        return 2
    if args.as_hugging_face:
        print(json.dumps(hugging_face_steps(args.steps)))
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        bench = Bench(Path(folder), args.steps, args.timeout)
        rows = [row for name in args.case or CASES for row in measured(name, bench)]
    table = table_of(rows, machine_here())
    print(json.dumps([asdict(row) for row in rows], indent=2) if args.json else table)
    if args.write:
        DOCUMENT.write_text(with_table(DOCUMENT.read_text(), table))
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
