#!/usr/bin/env python3
"""Kill training at random moments, resume it, and compare it bit by bit with an uninterrupted run.

Without --cases it runs `make train` and `make resume`, and kills anywhere in the pipeline after installation:
checking, preparing, training, saving, validating, storing and proving. With --cases it runs
`trainyard train` in float32 and bfloat16, eager and compiled, in one process and sharded over two (FSDP),
with 1 and 4 accumulated passes, each in one of the two save modes. It kills all processes with SIGKILL, or
only the launcher with SIGTERM. It saves after every step, so that most kills hit a save; the files on the
disk after the kill show which part.

At the end, the weights, the optimizer's state and every loss must be equal to the bit.

With --program it kills `trainyard run` of a program of somebody else, each time followed by the same command:
its rows must be there once, equal to those of a run that nobody disturbed, its last checkpoint equal to the
byte, here and in the store, under one number and one key, which verify.

Reads:      the Makefile of this tree; its environment must exist (make install)
Writes:     temporary runs and stores; with --json the figures on stdout
Exit codes: 0 equal, 1 not equal
Example:    benchmarks/kill_resume.py --kills 20 --set training.max_steps=200
            benchmarks/kill_resume.py --cases all --kills 6
            benchmarks/kill_resume.py --program --kills 100
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

HOUSE = Path(__file__).resolve().parent.parent
DEFAULT = ["training.max_steps=200", "checkpointing.save_steps=10", "training.validation_steps=50"]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="all, or such as bfloat16-compiled-fsdp-4")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--earliest", type=float, default=2.0, help="seconds from start to kill at least")
    parser.add_argument("--latest", type=float, default=12.0, help="seconds from start to kill at most")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of --cases")
    parser.add_argument("--program", action="store_true", help="kill runs of another program")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.cases:
        return matrix(args)
    if args.program:
        return kill_programs(args)
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        start = time.monotonic()
        whole = make("train", folder / "whole", args.set)
        assert whole.wait() == 0, "the run that nobody disturbed failed"
        alone = time.monotonic() - start
        kills = kill_until_done(folder, args, moments)
        a, b = (numbers(next((folder / name).iterdir())) for name in ("whole", "killed"))
        result = {"kills": kills, "seconds_alone": round(alone, 1), "equal": a == b, "rows": len(a["rows"])}
    print(
        json.dumps(result) if args.json else "\n".join(f"{key:16} {value}" for key, value in result.items())
    )
    return 0 if result["equal"] and kills >= args.kills else 1


def kill_until_done(folder: Path, args: argparse.Namespace, moments: random.Random) -> int:
    """Kill and resume training `args.kills` times, then let it end. Returns how many kills were in time."""
    kills, target = 0, "train"
    while True:
        process = make(target, folder / "killed", args.set)
        if kills < args.kills:
            try:
                process.wait(moments.uniform(args.earliest, args.latest))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        code = process.wait()
        if (folder / "killed").is_dir() and any((folder / "killed").iterdir()):
            target = "resume"
        if code == 0:
            return kills
        assert code in (-signal.SIGKILL, 2), f"make ended with {code}"


TRAINER = HOUSE / "tests" / "integration" / "any_program" / "plain_trainer.py"
PROGRAM_STEPS, KILLS_A_RUN, LIVES = 12, 5, 2


def kill_programs(args: argparse.Namespace) -> int:
    """Kill runs of a program, at most five times each, until there were `args.kills`; judge each run."""
    moments, found, wrong = random.Random(args.seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as text:
        repository = Path(text) / "somebody's work"
        (repository / "data").mkdir(parents=True)
        (repository / "data" / "tokens.txt").write_text("1 2 3")
        (repository / "train.py").write_text(TRAINER.read_text())
        (repository / "requirements.txt").write_text("numpy==2.0.0\n")
        (repository / ".gitignore").write_text("out-*/\n")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Train"]):
            git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
            subprocess.run(git, cwd=repository, check=True)
        assert start_program(repository, "whole").wait() == 0, "the run that nobody disturbed failed"
        whole = facts_of_program(repository, "whole")
        while found["kills"] < args.kills:
            name = f"killed-{found['runs']}"
            found["runs"] += 1
            kills = 0
            while True:
                process = start_program(repository, name)
                with suppress(subprocess.TimeoutExpired):
                    last = kills == KILLS_A_RUN or found["kills"] >= args.kills
                    process.wait(None if last else moments.uniform(args.earliest, args.latest))
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    kills, found["kills"] = kills + 1, found["kills"] + 1
                code = process.wait()
                if code == LIVES:  # the program of the killed command, until it prints again
                    found["refused"] += 1
                    time.sleep(1)
                elif code != -signal.SIGKILL:
                    break
            facts = facts_of_program(repository, name)
            # A row that was printed and not read when the command was killed is lost with it.
            missing = whole["rows"].keys() - facts["rows"].keys()
            found["rows lost"] += len(missing)
            outcome = (
                "equal"
                if facts | {"rows": facts["rows"] | {n: whole["rows"][n] for n in missing}} == whole
                else "wrong"
            )
            found[outcome] += 1
            wrong += [name] if outcome == "wrong" else []
            print(name, outcome, dict(found), file=sys.stderr, flush=True)
            if outcome == "wrong":
                print(facts, file=sys.stderr, flush=True)
    print(json.dumps(dict(found)))
    return 1 if wrong else 0


def start_program(repository: Path, name: str) -> "subprocess.Popen[bytes]":
    out = f"out-{name}"
    program = [
        sys.executable,
        "train.py",
        "--steps",
        str(PROGRAM_STEPS),
        "--pause",
        "0.3",
        "--output_dir",
        out,
    ]
    words = [sys.executable, "-m", "trainyard", "run", "--run-dir", f"runs/{name}", "--store"]
    words += [f"file://{quote(str(repository.parent))}/store-{name}", "--set", "program.data=[data]"]
    words += ["--set", 'program.resume=[--resume_from_checkpoint, "{checkpoint}"]']
    words += ["--set", f"program.checkpoints={out}/checkpoint-*", "--", *program, "--output_dir", out]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, cwd=repository, start_new_session=True, **quiet)  # type: ignore[call-overload,no-any-return]


def facts_of_program(repository: Path, name: str) -> dict[str, Any]:
    """The parts of a run of the program that must be equal to those of a run that nobody disturbed."""
    run, store = repository / "runs" / name, repository.parent / f"store-{name}"
    record = json.loads((run / "run.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = f"step-{PROGRAM_STEPS:08}"
    files = sorted((run / "checkpoints" / last).glob("*"))
    claims = [json.loads(path.read_text())["key"] for path in store.glob("run-*/identity.json")]
    verify = [sys.executable, "-m", "trainyard", "store", "verify", "--store", f"file://{quote(str(store))}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return {
        "status": record["outcome"]["status"],
        "rows": {row["step"]: row["loss"] for row in rows},
        "repeated": len(rows) - len({row["step"] for row in rows}),
        # The other files of this program are archives, which have the time of the save.
        "checkpoint": [file.read_bytes() for file in files if file.suffix == ".safetensors"],
        "stored": [
            (store / "run-1" / f"checkpoint-{PROGRAM_STEPS}" / file.name).read_bytes() == file.read_bytes()
            for file in files
        ],
        "has_one_key": claims == [record["key"]],
        "verifies": subprocess.run([*verify, "--run-number", "1", "--depth", "full"], **quiet).returncode,  # type: ignore[call-overload]
    }


def make(target: str, runs: Path, overrides: Sequence[str]) -> "subprocess.Popen[bytes]":
    settings = " ".join([*DEFAULT, *overrides])
    words = ["make", target, f"RUNS={runs}", f"STORE=file://{runs}-store", f"SET={settings}"]
    return subprocess.Popen(words, cwd=HOUSE, start_new_session=True, stderr=subprocess.DEVNULL)


def numbers(run: Path) -> dict[str, Any]:
    """The parts of a run that must be equal to the bit after a resume."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "state": json.loads((run / "run.json").read_text())["outcome"]["state_sha256"],
        "rows": [(row["step"], row["loss"], row["grad_norm"], row.get("val_loss")) for row in rows],
    }


MODES = ("sync", "async")
CONFIG = """
extends: {house}/configs/smoke.yaml
model:
  device: {device}
  architecture: {{hidden_size: 64, intermediate_size: 96, num_layers: 2, max_position_embeddings: 32}}
training: {{max_steps: 60, warmup_steps: 3, validation_steps: 11, validation_batches: 2}}
compute: {{threads: 1}}
data:
  train_path: {folder}/train.txt
  validation_path: {folder}/validation.txt
  prepared_directory: {folder}/prepared
  sequence_length: 16
checkpointing: {{save_steps: 1, keep_last: 2, keep_every: 10}}
monitoring: {{tensorboard: false, log_steps: 1}}
"""


@dataclass
class Case:
    """One way to train, with the results of its kills."""

    dtype: str
    compiled: bool
    strategy: str
    accumulation: int
    mode: str
    killed: Counter[str] = field(default_factory=Counter)
    """Number of kills by signal and by the activity that they interrupted."""

    @property
    def name(self) -> str:
        compiled = "compiled" if self.compiled else "eager"
        return f"{self.dtype}-{compiled}-{self.strategy}-{self.accumulation}"

    @property
    def kills(self) -> int:
        return self.killed["SIGKILL"] + self.killed["SIGTERM"]

    def settings(self) -> list[str]:
        return [
            f"model.dtype={self.dtype}",
            f"compute.compile={str(self.compiled).lower()}",
            f"compute.strategy={self.strategy}",
            f"training.gradient_accumulation_steps={self.accumulation}",
            f"training.batch_size={8 // self.accumulation}",
        ]


def matrix(args: argparse.Namespace) -> int:
    """Run the requested cases and print one line per case."""
    every = product(("float32", "bfloat16"), (False, True), ("single", "fsdp"), (1, 4))
    # Cases that differ in one factor have different modes.
    cases = [Case(*values, mode=MODES[i.bit_count() % 2]) for i, values in enumerate(every)]
    chosen = cases if args.cases == ["all"] else [case for case in cases if case.name in args.cases]
    moments, equal, kills = random.Random(args.seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        words = "".join(f"line {i} of a text with {i % 13} patterns\n" for i in range(2000))
        (folder / "train.txt").write_text(words)
        (folder / "validation.txt").write_text(words[:3000])
        (folder / "config.yaml").write_text(CONFIG.format(house=HOUSE, folder=folder, device=args.device))
        for case in chosen:
            same = is_equal(folder, case, args, moments)
            equal, kills = equal + same, kills + case.killed
            verdict = "equal" if same else "NOT EQUAL"
            print(f"{case.name:28} {case.mode:14} {verdict:10} {dict(case.killed)}", flush=True)
    result = {"cases": len(chosen), "equal": equal, "kills": dict(kills)}
    print(json.dumps(result) if args.json else f"{equal} of {len(chosen)} cases equal; {dict(kills)}")
    return 0 if equal == len(chosen) else 1


def is_equal(folder: Path, case: Case, args: argparse.Namespace, moments: random.Random) -> bool:
    whole, killed = folder / f"{case.name}-whole", folder / f"{case.name}-killed"
    assert train(folder, whole, case, mode="sync").wait() == 0, f"{case.name}: failed undisturbed"
    while True:
        start = time.time()
        process = train(folder, killed, case, mode=case.mode)
        if case.kills < args.kills:
            wait_for_step(killed, process, after=start, step=newest(killed) + moments.randint(1, 8))
            kill(process, killed, case, after=moments.uniform(0, 0.1), gently=moments.random() < 0.3)
        code = process.wait()
        if code == 0:
            return numbers(whole) == numbers(killed)
        if code not in (-signal.SIGKILL, 75):
            said = (folder / "log").read_text(errors="replace").splitlines()[-30:]
            raise AssertionError("\n".join([*said, f"{case.name}: it ended with {code}"]))


def train(folder: Path, run: Path, case: Case, *, mode: str) -> "subprocess.Popen[bytes]":
    settings = [*case.settings(), f"checkpointing.mode={mode}"]
    line = [sys.executable, str(HOUSE / "scripts" / "train.py"), "--config", str(folder / "config.yaml")]
    line += [word for setting in settings for word in ("--set", setting)]
    line += ["--run-dir", str(run), *(["--nproc-per-node", "2"] if case.strategy == "fsdp" else [])]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(line, cwd=HOUSE, start_new_session=True, stderr=log)


def newest(run: Path) -> int:
    """Return the step of the newest complete checkpoint, or 0 if there is none."""
    whole = (run / "checkpoints").glob("step-*/manifest.json")
    return max((int(path.parent.name.removeprefix("step-")) for path in whole), default=0)


def wait_for_step(run: Path, process: "subprocess.Popen[bytes]", *, after: float, step: int) -> None:
    """Wait until metrics contain `step`, later than `after`, or until the process ends."""
    path = run / "metrics.jsonl"
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime > after:
            lines = path.read_text().splitlines()
            if lines and lines[-1].endswith("}") and json.loads(lines[-1])["step"] >= step:
                return
        time.sleep(0.002)


def kill(process: "subprocess.Popen[bytes]", run: Path, case: Case, *, after: float, gently: bool) -> None:
    """End a running process, with SIGTERM if `gently`, and count what it interrupted in `case`."""
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        if gently:
            process.send_signal(signal.SIGTERM)
            case.killed["SIGTERM"] += process.wait() == 75
            return
        for pid in [process.pid, *descendants(process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        case.killed["SIGKILL"] += 1
        case.killed[under_way(run)] += 1


def under_way(run: Path) -> str:
    """Name the activity that the kill interrupted, from the files that it left."""
    folder = run / "checkpoints"
    if leftovers := list(folder.glob(".step-*.tmp")):
        return "completing" if (leftovers[0] / ".metadata").exists() else "writing"
    unmarked = [path for path in folder.glob("step-*") if not (path / "manifest.json").exists()]
    if not unmarked:
        return "step"
    return "renamed" if unmarked[0] == max(folder.glob("step-*")) else "purging"


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of `pid`, including the processes that write checkpoints."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found[1:]


if __name__ == "__main__":
    sys.exit(main())
