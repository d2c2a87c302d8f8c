#!/usr/bin/env python3
"""Train public programs unchanged under `trainyard run`, and compare each record with what the program did.

A program is one entry of `public_programs.yaml`. It is copied out of a clone below --sources (or is a text of
that file, in the shape of its library's tutorial), gets small random data, a lock and its own repository, and
trains for seconds on the CPU: with nothing but lock and `data: []`, and again with one file named where the
entry has one. The truth is what its arguments say (optimizer steps, steps of saves) and what it printed.

With --matrix the programs that have `hooks` are broken in one way at a time, and must not end green.
With --cases the programs of a folder run; their first lines say what is wanted, and a person compares.
It is no part of the tests: it needs clones, packages and half an hour.

Reads:      clones named as on GitHub below --sources; a Python with the programs' packages
Writes:     a folder for each run below --work; a table on stdout
Exit codes: 0 nothing was falsely green, 1 something was
Example:    benchmarks/public_programs.py --sources clones --python venv/bin/python --work /tmp/programs
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

MODES = (
    *(
        "fast steps",
        "overwritten file",
        "date in the name",
        "accuracy in the name",
        "model number in the name",
    ),
    *("given weights", "several files", "crash after the last save", "shell hides the exit code"),
    *("evaluation printed first", "NaN weights", "early end", "traceback at exit 0"),
    *("shell hides a kill", "shell hides a crash at the end", "starts anew at a resume"),
    *("NaN loss", "untrained copy"),
)
AGAIN = {
    "crash after the last save",
    "evaluation printed first",
    "starts anew at a resume",
}  # the same run is started a second time
IGNORED = "runs/\ntrainyard-store/\nout/\n__pycache__/\ndata/\n*.log\n"
TIMEOUT_SECONDS = 500
Answer = tuple[str, bool]
"""A row of the table, and whether the run is falsely green."""


@dataclass(frozen=True)
class Program:
    """An entry of the file, whose header describes the keys."""

    name: str
    command: str
    steps: list[int]
    saves: list[int]
    repository: str = ""
    paths: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    prepare: str = ""
    directory: str = "."
    environment: dict[str, str] = field(default_factory=dict)
    loss: str = ""
    figure: str = "loss"
    counted: str = ""
    named: str = ""
    learned: bool = True
    red: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="of the programs, with their packages")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="", help="a part of the name of a program, or of its fault")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--cases", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    workshop = Workshop(args.sources.resolve(), args.python, args.work.resolve(), entries["texts"])
    programs = [Program(name=name, **entry) for name, entry in entries["programs"].items()]
    if args.cases:
        answers = workshop.run_cases(args.cases, args.only)
    elif args.matrix:
        answers = workshop.run_matrix(programs, args.only)
    else:
        answers = workshop.run_programs(programs, args.only)
    wrong = 0
    for row, is_false_green in answers:
        print(row, flush=True)
        wrong += is_false_green
    print(f"\nFalse greens: {wrong}")
    return int(wrong > 0)


@dataclass(frozen=True)
class Workshop:
    """Makes the programs' folders and starts them."""

    sources: Path
    python: Path
    work: Path
    texts: dict[str, str]

    def run_programs(self, programs: Sequence[Program], only: str) -> Iterator[Answer]:
        columns = (
            "program",
            "named",
            "exit code",
            "verdict",
            "steps (true)",
            "loss (printed)",
            "saved at (true)",
        )
        yield f"| {' | '.join(columns)} | numbers |\n|{'---|' * 8}", False
        for program in programs:
            if only not in program.name:
                continue
            if program.repository and not (self.sources / program.repository).exists():
                yield f"| {program.name} | not tried: no clone {program.repository} |" + " |" * 6, False
                continue
            for label in ("lock and data", program.named)[: 1 + bool(program.named)]:
                folder = self.prepare(program, label)
                code = self.start(
                    program, folder, program.command.split(), label if program.named == label else ""
                )
                yield judge(program, folder, label, code)

    def run_matrix(self, programs: Sequence[Program], only: str) -> Iterator[Answer]:
        columns = ("program", "fault", "exit codes", "red", "steps", "checkpoints")
        yield f"| {' | '.join(columns)} | |\n|{'---|' * 7}", False
        for program in programs:
            for mode in MODES:
                if program.hooks and only in f"{program.name}, {mode}":
                    yield self.run_broken(program, mode)

    def run_cases(self, cases: Path, only: str) -> Iterator[Answer]:
        yield "| case | exit code | red | steps | checkpoints | wanted |\n|---|---|---|---|---|---|", False
        for file in sorted(cases.glob("*.py")):
            if only in file.name:
                wanted = file.read_text().splitlines()[0].removeprefix("# ")
                case = Program(file.stem, "python train.py", [0], [0], environment={"WHO": "a"})
                folder = self.prepare(case, "case", {"train.py": file.read_text()})
                code = self.start(case, folder, case.command.split(), "")
                record = Record.read(folder / "runs" / "a")
                row = (file.stem, str(code), record.shown_red, str(record.steps), record.shown_saves, wanted)
                yield f"| {' | '.join(row)} |", False

    def prepare(self, program: Program, label: str, files: dict[str, str] | None = None) -> Path:
        """Make the program's own repository, with a lock and everything committed."""
        folder = self.work / re.sub(r"\W+", "-", f"{program.name} {label}")
        shutil.rmtree(folder, ignore_errors=True)
        where = folder / program.directory
        where.mkdir(parents=True)
        for path in program.paths:  # one by one: a clone may lack its large files
            words = ["git", "-C", str(self.sources / program.repository), "archive", "HEAD", path]
            archive = subprocess.run(words, check=True, capture_output=True).stdout
            subprocess.run(["tar", "x", "-C", str(folder)], input=archive, check=True)
        texts = {name: self.texts[text] for name, text in program.files.items()} | (files or {})
        for name, text in texts.items():
            (where / name).write_text(text)
        if program.prepare:
            name, *words = program.prepare.split()
            self.run_python(program, where, self.texts[name], words)
        (where / "requirements.txt").write_text("torch==2.15.0\n")
        (folder / ".gitignore").write_text(IGNORED)
        run_git(folder, "init", "-q")
        commit(folder)
        return folder

    def run_python(self, program: Program, where: Path, text: str, words: Sequence[str] = ()) -> None:
        environment = self.environment(program)
        subprocess.run([self.python, "-c", text, *words], cwd=where, env=environment, check=True, stdout=2)

    def environment(self, program: Program) -> dict[str, str]:
        offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
        path = f"{self.python.parent.resolve()}:{os.environ['PATH']}"
        return {**os.environ, **offline, **program.environment, "PATH": path}

    def start(
        self, program: Program, folder: Path, command: Sequence[str], extra: str, again: bool = False
    ) -> int:
        """Start a program, or the same run again, and keep what was printed beside it."""
        where = folder / program.directory
        lines = ["recipe: command", "program:", "  data: []", *(f"  {line}" for line in extra.splitlines())]
        words = [str(Path(sys.executable).with_name("trainyard")), "run", "--run-dir", "runs/a"]
        if not again:
            (where / "trainyard.yaml").write_text("\n".join(lines) + "\n")
            commit(folder)
            words += ["--config", "trainyard.yaml", "--", *command]
        with (folder / f"trainyard{'-again' if again else ''}.log").open("w") as log:
            streams: Any = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
            return subprocess.run(
                words, cwd=where, env=self.environment(program), timeout=TIMEOUT_SECONDS, **streams
            ).returncode

    def run_broken(self, program: Program, mode: str) -> Answer:
        """Break a program in one way; it must not end green, not even when it is started again."""
        steps = max(program.steps)
        folder = self.prepare(program, mode, {"sabotage.py": self.texts["sabotage"]})
        where = folder / program.directory
        if mode == "given weights":
            (where / "given").mkdir()
            weights = f"import torch; torch.save({{'w': torch.ones(400)}}, 'given/step-{steps}.pt')"
            self.run_python(program, where, weights)
        command = ["python", "sabotage.py", mode, str(steps // 2), *program.hooks]
        command += program.command.split()[1:]
        if mode.startswith("shell hides"):
            command = ["bash", "-c", " ".join(f"'{word}'" for word in command) + " | tee out.log"]
        # Anew: what both starts train together, so that a record which adds them up is complete.
        stated = {"early end": steps, "starts anew at a resume": steps // 2 * 2 - 2}.get(mode)
        extra = f"{program.named}\n" + (f"steps: {stated}" if stated else "")
        codes = [self.start(program, folder, command, extra)]
        if mode in AGAIN:
            codes.append(self.start(program, folder, command, extra, again=True))
        record = Record.read(where / "runs" / "a")
        is_green = 0 in codes
        if mode == "several files" and record.saves:
            is_green &= not {"optimizer.pt", "discriminator.pt"} < set(record.saves[max(record.saves)])
        row = (program.name, mode, str(codes), record.shown_red, str(record.steps), record.shown_saves)
        return f"| {' | '.join(row)} | {'FALSE GREEN' if is_green else ''} |", is_green


@dataclass(frozen=True)
class Record:
    """The facts in a run directory."""

    program_exit_code: int | None
    steps: int | None
    sources: dict[str, str]
    losses: list[float]
    red: set[str]
    saves: dict[int, list[str]]
    """The names of the files of each checkpoint, by its step."""

    @classmethod
    def read(cls, run: Path, figure: str = "loss") -> "Record":
        outcome = read_json(run / "run.json").get("outcome") or {}
        parts = read_json(run / "report" / "proof.json").get("parts", [])
        rows = run / "metrics.jsonl"
        lines = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
        return cls(
            program_exit_code=outcome.get("program_exit_code"),
            steps=outcome.get("steps"),
            sources=outcome.get("sources") or {},
            losses=[float(row[figure]) for row in lines if isinstance(row.get(figure), int | float)],
            red={part["name"] for part in parts if not part["passed"]},
            saves={
                int(path.name.split("-")[1]): sorted(
                    file.name for file in path.rglob("*") if file.is_file() and file.name != "manifest.json"
                )
                for path in sorted((run / "checkpoints").glob("step-*"))
            },
        )

    @property
    def shown_red(self) -> str:
        return ", ".join(sorted(self.red))

    @property
    def shown_saves(self) -> str:
        shown = {step: " ".join(files[:3]) + " …" * (len(files) > 3) for step, files in self.saves.items()}
        return "; ".join(f"{step}: {files}" for step, files in shown.items())


def judge(program: Program, folder: Path, label: str, code: int) -> Answer:
    """Compare a record with the truth: an absent figure is not false; a red that should be green is."""
    record = Record.read(folder / program.directory / "runs" / "a", program.figure)
    log = (folder / "trainyard.log").read_text(errors="replace")
    counted = [int(text) for text in re.findall(program.counted, log)] if program.counted else []
    is_saved = bool(program.saves) and program.saves[-1] >= program.steps[-1] - 1
    must = {*program.red, *(() if is_saved else ("stored",))}
    may = must if program.learned else must | {"learned"}
    if record.program_exit_code:
        verdict = f"not tried: its own exit code is {record.program_exit_code}"
    elif code == 0:
        verdict = "false green" if must else "true"
    elif record.red and must <= record.red <= may:
        verdict = f"true: red, {record.shown_red}"
    else:
        verdict = f"false red: {', '.join(sorted(record.red - must)) or 'exit code'}"
    printed = [match[1] for match in re.finditer(program.loss, log)] if program.loss else []
    figures = {  # whether each is on record, and whether it is right
        "steps": (
            bool(record.steps or 0 in program.steps),
            record.steps in (*(counted or program.steps), None),
        ),
        "loss": (bool(record.losses), is_agreed(record.losses, printed)),
        "saves": (bool(record.saves or not program.saves), {*record.saves} <= {*program.saves}),
    }
    states = {
        name: "" if there and right else "false" if there else "none"
        for name, (there, right) in figures.items()
    }
    numbers = ", ".join(f"{name} {state}" for name, state in states.items() if state) or "true"
    losses = f"{record.losses[0]:.4g} to {record.losses[-1]:.4g}" if record.losses else ""
    row = (
        *(program.name, label, str(code), verdict),
        f"{record.steps} {record.sources.get('steps', '')} ({program.steps[-1]})",
        f"{losses} {record.sources.get('loss', '')} ({' to '.join(printed[:: max(1, len(printed) - 1)])})",
        f"{[*record.saves]} {record.sources.get('checkpoint', '')} ({program.saves})",
    )
    return f"| {' | '.join(row)} | {numbers} |", code == 0 and bool(must)


def is_agreed(recorded: Sequence[float], printed: Sequence[str]) -> bool:
    """Whether all recorded losses were printed, or a tenth of the printed ones recorded, to the last digit.

    Records of fast steps leave steps out, and so do programs that print every tenth step.
    """
    errors = {text: 0.6 * 10.0 ** int(Decimal(text).as_tuple().exponent) for text in printed}

    def is_same(value: float, text: str) -> bool:
        return abs(value - float(text)) <= errors[text]

    found = sum(any(is_same(value, text) for value in recorded) for text in printed)
    return 10 * found >= len(printed) or all(any(is_same(v, text) for text in printed) for v in recorded)


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def commit(folder: Path) -> None:
    run_git(folder, "add", "-A")
    run_git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Add", "--allow-empty")


def run_git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True)


if __name__ == "__main__":
    sys.exit(main())
