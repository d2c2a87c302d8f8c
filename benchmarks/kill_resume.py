#!/usr/bin/env python3
"""Kill training at random moments, resume it, and compare it with an uninterrupted run.

It kills `trainyard run` of Trainyard's trainer, each time followed by the same command: while it starts,
after a few steps, each of which saves, and once in each run while it is stored and proven. The weights, the
optimizer's state and every row must be equal to the bit to those of a run that nobody disturbed; the last
checkpoint in the store must be that of the directory, under one number and one key, which verify. Every
process is killed with SIGKILL, or only the command.

With --program it kills `trainyard run` of a program of somebody else in the same way: its rows must be there
once and its last checkpoint equal to the byte.

With --cases it runs `trainyard train` in float32 and bfloat16, eager and compiled, in one process and sharded
over two (FSDP), with 1 and 4 accumulated passes, each in one of the two save modes. It kills all processes
with SIGKILL, or only the launcher with SIGTERM. It saves after every step, so that most kills hit a save; the
files on the disk after the kill show which part.

Reads:      this tree, which must not change meanwhile: a run with another commit is another run
Writes:     temporary runs and stores; the figures on stdout
Exit codes: 0 equal, 1 not equal
Example:    benchmarks/kill_resume.py --kills 100
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

HOUSE = Path(__file__).resolve().parent.parent
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
# The exit code of a command whose run a process of the killed one still trains, and how often in a row.
LIVES, REFUSALS = 2, 100


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="all, or such as bfloat16-compiled-fsdp-4")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of --cases")
    parser.add_argument("--program", action="store_true", help="kill runs of another program")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as text:
        if args.cases:
            return matrix(args, moments, Path(text))
        return kill_runs((program if args.program else trainer)(Path(text)), args.kills, moments)


@dataclass(frozen=True)
class Subject:
    """Runs that are killed, one after the other, and one that nobody disturbs."""

    folder: Path
    """Of the runs and their stores."""
    command: Callable[[str], list[str]]
    """Returns the command of the run of a name."""
    cwd: Path
    steps: int
    kills_a_run: int
    result: Callable[[dict[str, Any], Path], Any]
    """Returns, from the run's record and its last checkpoint, what must be equal besides the rows."""
    may_lose_rows: bool
    """Whether a row that was printed and not read when the command was killed is lost with it."""

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def store(self, name: str) -> Path:
        return self.folder / f"store-{name}"

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "trainyard", "run", "--run-dir", str(self.run(name)), "--store"]
        words += [f"file://{quote(str(self.store(name)))}", *self.command(name)]
        return subprocess.Popen(words, cwd=self.cwd, start_new_session=True, **QUIET)


def program(folder: Path) -> Subject:
    """Return somebody's program in a repository of its own."""
    repository = folder / "somebody's work"
    (repository / "data").mkdir(parents=True)
    (repository / "data" / "tokens.txt").write_text("1 2 3")
    trainer = HOUSE / "tests" / "integration" / "any_program" / "plain_trainer.py"
    (repository / "train.py").write_text(trainer.read_text())
    (repository / "requirements.txt").write_text("numpy==2.0.0\n")
    (repository / ".gitignore").write_text("out-*/\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Train"]):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
        subprocess.run(git, cwd=repository, check=True)

    def command(name: str) -> list[str]:
        out = f"out-{name}"
        words = ["--set", "program.data=[data]", "--set", f"program.checkpoints={out}/checkpoint-*"]
        words += ["--set", 'program.resume=[--resume_from_checkpoint, "{checkpoint}"]', "--"]
        words += [sys.executable, "train.py", "--steps", "12", "--pause", "0.3", "--output_dir", out]
        return [*words, "--output_dir", out]

    def result(_record: dict[str, Any], checkpoint: Path) -> Any:
        # The other files of this program are archives, which have the time of the save.
        return [file.read_bytes() for file in sorted(checkpoint.glob("*.safetensors"))]

    return Subject(folder, command, repository, 12, 5, result, may_lose_rows=True)


def trainer(folder: Path) -> Subject:
    """Return Trainyard's trainer with a model of 75 thousand parameters, which saves after each step."""
    write_texts(folder, "cpu")
    steps = 120
    words = ["--config", str(folder / "config.yaml"), "--set", f"training.max_steps={steps}"]
    return Subject(
        folder,
        lambda _name: words,
        HOUSE,
        steps,
        20,
        lambda record, _checkpoint: record["outcome"].get("state_sha256"),
        may_lose_rows=False,
    )


def kill_runs(subject: Subject, most: int, moments: random.Random) -> int:
    """Kill runs, each at most `kills_a_run` times, until there were `most` kills; judge each run."""
    found, before = Counter[str](), time.time()
    assert subject.start("undisturbed").wait() in (0, 1), "the run that nobody disturbed failed"
    whole = facts_of(subject, "undisturbed")
    spans = spans_of(subject, before)
    while found["kills"] < most:
        name = f"killed-{found['runs']}"
        kill_one(subject, name, most, moments, spans, found)
        found["runs"] += 1
        facts = facts_of(subject, name)
        missing = whole["rows"].keys() - facts["rows"].keys() if subject.may_lose_rows else set()
        found["rows lost"] += len(missing)
        known = facts | {"rows": facts["rows"] | {step: whole["rows"][step] for step in missing}}
        wrong = [key for key in whole if known[key] != whole[key]]
        found["wrong" if wrong else "equal"] += 1
        print(name, wrong or "equal", dict(found), file=sys.stderr, flush=True)
        if wrong:
            print({key: facts[key] for key in wrong}, file=sys.stderr, flush=True)
    print(json.dumps(dict(found)))
    return 1 if found["wrong"] else 0


def spans_of(subject: Subject, before: float) -> tuple[float, float]:
    """Return the seconds of an undisturbed run until its first row, and from its outcome to its end."""
    now, run = time.time(), subject.run("undisturbed")
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["time"]
    return first - before, now - (run / "metrics.jsonl").stat().st_mtime


def kill_one(
    subject: Subject,
    name: str,
    most: int,
    moments: random.Random,
    spans: tuple[float, float],
    found: Counter[str],
) -> None:
    """Kill a run again and again, and let it end; the last kill comes after its last step."""
    kills, refused, run, is_late = 0, 0, subject.run(name), False
    while True:
        process = subject.start(name)
        if is_late or found["kills"] >= most:
            process.wait()
        elif kills == subject.kills_a_run - 1 or newest(run) >= 0.9 * subject.steps:
            is_late = True
            wait_for_step(run, process, after=0, step=subject.steps)
            wait(process, moments.uniform(0, spans[1]))
        elif moments.random() < 0.3:
            wait(process, moments.uniform(0, spans[0]))
        else:
            step = last_step(run) + moments.randint(1, max(2, subject.steps // 15))
            wait_for_step(run, process, after=time.time(), step=step)
            wait(process, moments.uniform(0, 0.2))
        if process.poll() is None:
            is_alone = moments.random() < 0.3
            for pid in [process.pid, *([] if is_alone else descendants(process.pid))]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            kills += 1
            found.update(kills=1, alone=int(is_alone))
        code = process.wait()
        refused = refused + 1 if code == LIVES else 0
        if refused:
            assert refused < REFUSALS, f"{name}: the same command is refused"
            found["refused"] += 1
            time.sleep(1)
        elif code != -signal.SIGKILL:
            return


def wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def facts_of(subject: Subject, name: str) -> dict[str, Any]:
    """The parts of a run that must be equal to those of a run that nobody disturbed."""
    run, store = subject.run(name), subject.store(name)
    record = json.loads((run / "run.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "step" in row]  # a program also prints rows by its epoch
    checkpoint = run / "checkpoints" / f"step-{subject.steps:08}"
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    stored = store / "run-1" / f"checkpoint-{subject.steps}"
    claims = [json.loads(path.read_text())["key"] for path in store.glob("run-*/identity.json")]
    verify = [sys.executable, "-m", "trainyard", "store", "verify", "--store", f"file://{quote(str(store))}"]
    verified = subprocess.run([*verify, "--run-number", "1", "--depth", "full"], check=False, **QUIET)
    return {
        "status": record["outcome"]["status"],
        "rows": {row["step"]: [row.get(key) for key in ("loss", "grad_norm", "val_loss")] for row in rows},
        "repeated": len(rows) - len({row["step"] for row in rows}),
        "result": subject.result(record, checkpoint),
        "stored": [
            (stored / file.relative_to(checkpoint)).read_bytes() == file.read_bytes() for file in files
        ],
        "has_one_key": claims == [record["key"]],
        "verifies": verified.returncode,
    }


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


def write_texts(folder: Path, device: str) -> None:
    """Write the configuration of a small model, and what it reads, into a folder."""
    words = "".join(f"line {i} of a text with {i % 13} patterns\n" for i in range(2000))
    (folder / "train.txt").write_text(words)
    (folder / "validation.txt").write_text(words[:3000])
    (folder / "config.yaml").write_text(CONFIG.format(house=HOUSE, folder=folder, device=device))


def matrix(args: argparse.Namespace, moments: random.Random, folder: Path) -> int:
    """Run the requested cases and print one line per case."""
    every = product(("float32", "bfloat16"), (False, True), ("single", "fsdp"), (1, 4))
    # Cases that differ in one factor have different modes.
    cases = [Case(*values, mode=MODES[i.bit_count() % 2]) for i, values in enumerate(every)]
    chosen = cases if args.cases == ["all"] else [case for case in cases if case.name in args.cases]
    equal, kills = 0, Counter[str]()
    write_texts(folder, args.device)
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


def last_step(run: Path) -> int:
    """Return the step of the last complete row of metrics that has one; 0 if there is none."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = (json.loads(line) for line in reversed(lines) if line.endswith("}"))
    return next((row["step"] for row in rows if "step" in row), 0)


def wait_for_step(run: Path, process: "subprocess.Popen[bytes]", *, after: float, step: int) -> None:
    """Wait until metrics contain `step`, later than `after`, or until the process ends."""
    path = run / "metrics.jsonl"
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime > after and last_step(run) >= step:
            return
        time.sleep(0.005)


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
