#!/usr/bin/env python3
"""Start two runs of one program in one folder, the second at a random moment, and judge both records.

The two programs log other losses and save other weights. In every second pair the second run has places of
its own (`{run_dir}` in its command). Each run must be green with its own rows and weights, or one of the two
be refused with exit code 2 and leave nothing: on a busy machine the first start may be the later one to
claim the folder. Anything of the other run in a record is wrong.

Reads:      the environment of this tree
Writes:     a temporary repository; with --json the figures on stdout
Exit codes: 0 nothing was wrong, 1 something was
Example:    benchmarks/two_runs.py --pairs 20
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from struct import unpack

PROGRAM = """
import json, os, sys, time, torch
who, out = float(os.environ["WHO"]), sys.argv[1]
os.makedirs(out, exist_ok=True)
for step in range(1, 13):
    print(json.dumps({"step": step, "loss": who + 1 / step}), flush=True)
    time.sleep(0.5)
    if step % 4 == 0:
        torch.save({"w": torch.full((4,), who + step / 100)}, f"{out}/ckpt_{step}.pt")
"""
FIRST, SECOND = 100.0, 200.0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--latest", type=float, default=30.0, help="seconds between the starts at most")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    moments, counts = random.Random(args.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text) / "work"
        prepare(folder)
        for pair in range(args.pairs):
            for name in ("runs", "out", "trainyard-store"):
                shutil.rmtree(folder / name, ignore_errors=True)
            offset, own = moments.uniform(0.0, args.latest), bool(pair % 2)
            for result in judge(folder, offset, own):
                counts[result] += 1
                print(f"{pair + 1:3} +{offset:4.1f} s  {result}", file=sys.stderr, flush=True)
    wrong = sum(count for result, count in counts.items() if "wrong" in result)
    figures = {"pairs": args.pairs, "wrong": wrong, **dict(sorted(counts.items()))}
    print(
        json.dumps(figures)
        if args.json
        else "\n".join(f"{count:6} {name}" for name, count in figures.items())
    )
    return int(wrong > 0)


def prepare(folder: Path) -> None:
    """Make a repository with the program, a lock and everything committed."""
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "requirements.txt").write_text("torch\n")
    (folder / ".gitignore").write_text("out/\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "Train")):
        subprocess.run(["git", *who, *words], cwd=folder, check=True)


def judge(folder: Path, offset: float, own: bool) -> list[str]:
    """Run a pair; return what became of each run."""
    first = start(folder, "a", FIRST, "out")
    time.sleep(offset)
    second = start(folder, "b", SECOND, "{run_dir}/output" if own else "out")
    codes = [process.wait(timeout=600) for process in (first, second)]
    kinds = ("first", "second with own places" if own else "second")
    found = []
    for kind, run, who, code in zip(kinds, "ab", (FIRST, SECOND), codes, strict=True):
        if code == 2 and not own and codes != [2, 2]:
            kept = (folder / "runs" / run).exists()
            found.append(f"{kind}: wrong, it was refused and left a run" if kept else f"{kind}: refused")
        elif code != 0:
            found.append(f"{kind}: wrong, exit code {code}")
        else:
            found.append(f"{kind}: " + (problem(folder / "runs" / run, who) or "green with its own files"))
    return found


def start(folder: Path, run: str, who: float, out: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "trainyard",
        "run",
        "--run-dir",
        f"runs/{run}",
        "--set",
        "program.data=[]",
    ]
    return subprocess.Popen(
        [*command, "--", sys.executable, "train.py", out],
        cwd=folder,
        env={**os.environ, "WHO": str(who)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def problem(run: Path, who: float) -> str | None:
    """Return what a green run has of another one; None if all rows and weights are its own."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if [row["step"] for row in rows] != list(range(1, 13)):
        return f"wrong, {len(rows)} rows"
    if any(not who < row["loss"] <= who + 1 for row in rows):
        return "wrong, a row of the other run"
    steps = json.loads((run / "run.json").read_text())["outcome"]["checkpoint"]["step"]
    if steps != 12:
        return f"wrong, the checkpoint is of step {steps}"
    for file in run.glob("checkpoints/*/*.pt"):
        with zipfile.ZipFile(file) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith("/data/0"))
            (number, *_) = unpack("<4f", archive.read(name))
        if not who < number < who + 1:
            return "wrong, weights of the other run"
    return None


if __name__ == "__main__":
    sys.exit(main())
