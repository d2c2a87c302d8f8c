"""Search over keys of a configuration: train with many values, and report on all runs.

A value is one of several (KEY=A,B,C), between two numbers (KEY=LOW..HIGH), or by orders of magnitude
(KEY=log:LOW..HIGH). Optuna chooses: `tpe` learns from the trials that ended, `random` does not, `grid` takes
each combination. Each trial is a run in DIR/trial-NNNN. Interrupted or killed, the same command, or only
`trainyard sweep DIR`, resumes: trials that ended are kept, the others continue from their checkpoints.

With --matrix the trials are not trained here: their settings are printed as a matrix for a GitHub workflow,
and --collect records the runs that it put into DIR.

Reads:      the configuration, in DIR/config.yaml when resumed; the runs in DIR; the extra `sweep` (Optuna)
Writes:     in DIR sweep.json (what is searched), journal.log (Optuna), trial-NNNN/ (runs), logs/,
            trials.json, report.html (the best runs laid over each other); a table, or --json, on stdout
Exit codes: 0 every trial ended, and one or more have a value; 1 none has; 2 wrong configuration or usage; 75
            stopped, run it again
Example:    scripts/sweep.py sweeps/size --config configs/smoke.yaml --space training.batch_size=8,16
"""

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from trainyard.gateways.child_process import ChildProcess
    from trainyard.sweep.sweep_study import Trial

PAUSE_SECONDS = 0.5
MOST_SHOWN = 8
"""Most runs whose curves report.html shows together."""
MOST_FAILURES = 3
"""Number of failed trials after which no further trial is started, if none has succeeded."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    from trainyard.sweep.sweep_study import SAMPLERS

    parser = script_parser(__doc__)
    parser.add_argument("folder", type=arguments.path, metavar="DIR", help="the folder of the sweep")
    parser.add_argument(
        "--config", type=arguments.path, metavar="FILE", help="default for a resumed sweep: DIR/config.yaml"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one value; may be repeated"
    )
    space = "the values of one key: A,B,C, LOW..HIGH or log:LOW..HIGH"
    parser.add_argument("--space", action="append", default=[], metavar="KEY=VALUES", help=space)
    trials = "number of trials; default: 10, or with --sampler grid every combination"
    parser.add_argument("--trials", type=arguments.positive, metavar="N", help=trials)
    at_once = "trials that train at the same time on this machine; default: 1"
    parser.add_argument("--jobs", type=arguments.processes, default=1, metavar="N", help=at_once)
    figure = "the figure of metrics.jsonl whose last value is compared; default: val_loss"
    parser.add_argument("--figure", metavar="NAME", help=figure)
    parser.add_argument("--maximize", action="store_true", help="the largest value is the best")
    parser.add_argument("--sampler", choices=SAMPLERS, help="default: tpe")
    parser.add_argument(
        "--seed", type=arguments.natural_number, metavar="N", help="seed of the sampler; default: 0"
    )
    parser.add_argument("--prune", action="store_true", help="stop trials that are worse than the median")
    parser.add_argument(
        "--deadline", type=arguments.duration, metavar="DURATION", help="when all save and stop, such as 8h"
    )
    parser.add_argument("--matrix", action="store_true", help="print a matrix of a workflow, train nothing")
    parser.add_argument("--collect", action="store_true", help="record the runs in DIR, train nothing")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, change nothing")
    parser.add_argument("--json", action="store_true", help="print all trials as JSON")
    args = parser.parse_args(argv)
    if args.matrix and args.collect:
        parser.error("--matrix and --collect: give only one of them")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    definition, config = definition_of(args)
    if args.dry_run:
        print_plan(args, definition)
        return ExitCode.DONE
    from trainyard.run.run_lock import locked

    with locked(args.folder):
        write_definition(args.folder, definition, config)
        sweep = Sweep(args.folder, definition, jobs=args.jobs)
        if args.matrix:
            output.print_json({"include": [sweep.matrix_row(trial) for trial in sweep.draw_all()]})
            return ExitCode.DONE
        stopped = False
        if args.collect:
            sweep.collect()
        else:
            stopped = sweep.train(args.deadline)
        return report(args, sweep, stopped=stopped)


@dataclass(frozen=True)
class Definition:
    """Search space and settings of a sweep, which a resumed sweep keeps."""

    space: tuple[str, ...]
    figure: str = "val_loss"
    maximize: bool = False
    sampler: str = "tpe"
    seed: int = 0
    prune: bool = False
    trials: int = 10


def definition_of(args: argparse.Namespace) -> tuple[Definition, str]:
    """Return the definition and the text of the configuration; options must equal those of the sweep in DIR.

    Raises ConfigError if they differ, if a key does not take a value, or if an option is missing.
    """
    from trainyard.config.load import dump_yaml, load_config
    from trainyard.config.secret_filter import restore_secrets

    path = args.folder / "sweep.json"
    before = read_definition(path) if path.exists() else None
    given = {
        **{name: getattr(args, name) for name in ("figure", "sampler", "seed")},
        "space": tuple(args.space) or None,
        "maximize": args.maximize or None,
        "prune": args.prune or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if before is None:
        if not args.config or not args.space:
            raise ConfigError(
                f"{args.folder} holds no sweep yet. Start one: --config FILE --space KEY=VALUES"
            )
        definition = Definition(**given)
    else:
        if differing := [name for name, value in given.items() if value != getattr(before, name)]:
            old = ", ".join(f"{name} {getattr(before, name)!r}" for name in differing)
            raise ConfigError(
                f"{args.folder} is a sweep with {old}. Leave these options out, or name a new folder."
            )
        definition = before
    kept = args.folder / "config.yaml"
    loaded = load_config(args.config or kept, args.set).config
    restore_secrets(loaded.to_plain(), os.environ)  # the trials take them from there, too
    text = dump_yaml(loaded)
    if before is not None and text != kept.read_text(encoding="utf-8"):
        raise ConfigError(
            f"{args.folder} is a sweep over another configuration, {kept}. Leave --config and --set out, "
            "or name a new folder."
        )
    check_values(definition, args)
    return replace(definition, trials=number_of_trials(definition, args)), text


def check_values(definition: Definition, args: argparse.Namespace) -> None:
    """Raise ConfigError for a value that its key does not take."""
    from trainyard.config.load import load_config
    from trainyard.sweep.search_space import read_space

    for dimension in read_space(definition.space):
        for value in dimension.ends:
            load_config(args.config or args.folder / "config.yaml", [*args.set, f"{dimension.key}={value}"])


def number_of_trials(definition: Definition, args: argparse.Namespace) -> int:
    from trainyard.sweep.search_space import combinations, read_space

    if definition.sampler != "grid":
        return int(args.trials or definition.trials)
    most = len(combinations(read_space(definition.space)))
    return min(args.trials or most, most)


def read_definition(path: Path) -> Definition:
    """Read `sweep.json`. Raises ConfigError when it is damaged."""
    from trainyard.run.untrusted_files import read_json_object

    known = read_json_object(path)
    try:
        return Definition(**known | {"space": tuple(known["space"])})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not the definition of a sweep ({error}); name a new folder") from None


def write_definition(folder: Path, definition: Definition, config: str) -> None:
    from trainyard.run.atomic_files import make_folder, write_bytes_atomically, write_json_atomically

    make_folder(folder / "logs")
    write_bytes_atomically(folder / "config.yaml", config.encode())
    write_json_atomically(folder / "sweep.json", asdict(definition))


def print_plan(args: argparse.Namespace, definition: Definition) -> None:
    trials = f"{definition.trials} in {args.folder}, {args.jobs} at once"
    what = f"{'largest' if definition.maximize else 'smallest'} {definition.figure}"
    pruned = ", trials worse than the median are stopped" if definition.prune else ""
    lines = {
        "trials": trials,
        "best": what + pruned,
        "sampler": f"{definition.sampler}, seed {definition.seed}",
    }
    if args.json:
        output.print_json(asdict(definition) | {"folder": str(args.folder), "jobs": args.jobs})
        return
    rows = [*lines.items(), *(("space", text) for text in definition.space)]
    command = training_command(args.folder, args.folder / "trial-0000", {})
    output.print_text(
        "\n".join(f"{name:<8} {value}" for name, value in (*rows, ("each", shlex.join(command))))
    )


def training_command(folder: Path, run_dir: Path, settings: Mapping[str, str]) -> list[str]:
    from trainyard.commands.run import step

    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return step("train", "--config", str(folder / "config.yaml"), *changes, "--run-dir", str(run_dir))


class Sweep:
    """The trials of one folder, and the processes that train them."""

    def __init__(self, folder: Path, definition: Definition, *, jobs: int) -> None:
        from trainyard.sweep.search_space import read_space
        from trainyard.sweep.sweep_study import SweepStudy

        self.folder, self._definition, self._jobs = folder, definition, jobs
        self.study: SweepStudy = SweepStudy(
            folder,
            read_space(definition.space),
            sampler=definition.sampler,
            maximize=definition.maximize,
            seed=definition.seed,
        )
        self._running: dict[int, ChildProcess] = {}
        self._pruned: set[int] = set()
        self._is_stopping = False
        self._prepared: set[tuple[str, ...]] = set()

    @property
    def has_failed_from_the_start(self) -> bool:
        ended = [trial.state for trial in self.study.trials() if trial.has_ended]
        return len(ended) >= MOST_FAILURES and set(ended) == {"failed"}

    @property
    def ended_early(self) -> bool:
        return self.has_failed_from_the_start and self._started_count() < self._definition.trials

    def run_dir(self, number: int) -> Path:
        return self.folder / f"trial-{number:04d}"

    def draw_all(self) -> "list[Trial]":
        """Start the missing trials, and return all trials that have not ended."""
        trials = list(self.study.unfinished())
        while self._started_count() < self._definition.trials:
            trials.append(self.study.start())
        return trials

    def _started_count(self) -> int:
        return sum(trial.state != "waiting" for trial in self.study.trials())

    def matrix_row(self, trial: "Trial") -> dict[str, Any]:
        """Return the values of a workflow's matrix job: for `trainyard run --settings` and --run-dir."""
        words = shlex.join(f"{key}={value}" for key, value in trial.settings.items())
        return {"trial": trial.number, "run_dir": str(self.run_dir(trial.number)), "settings": words}

    def collect(self) -> None:
        """Record the end of each unfinished trial whose run has ended."""
        for trial in self.study.unfinished():
            self._record_run(trial.number)

    def train(self, seconds: float | None) -> bool:
        """Train until every trial has ended; return True if a signal or the deadline stopped it earlier."""
        from trainyard.gateways.process import SignalForwarder

        ends = None if seconds is None else time.monotonic() + seconds
        with SignalForwarder() as signals:
            todo = list(self.study.unfinished())
            while True:
                is_over = bool(signals.passed) or (ends is not None and time.monotonic() >= ends)
                if is_over and not self._is_stopping:
                    self._is_stopping = True
                    for process in self._running.values():
                        process.stop()
                while len(self._running) < self._jobs and (trial := self._next(todo)):
                    self._start(trial)
                if not self._running:
                    return self._is_stopping
                time.sleep(PAUSE_SECONDS)
                self._poll()

    def _next(self, todo: "list[Trial]") -> "Trial | None":
        if self._is_stopping:
            return None
        if todo:
            return todo.pop(0)
        if self._started_count() >= self._definition.trials or self.has_failed_from_the_start:
            return None
        return self.study.start()

    def _start(self, trial: "Trial") -> None:
        from trainyard.commands.run_program import is_alive
        from trainyard.gateways.child_process import ChildProcess

        run_dir = self.run_dir(trial.number)
        while is_alive(run_dir):  # the trainer of a killed sweep may still run
            time.sleep(PAUSE_SECONDS)
        words = " ".join(f"{key}={value}" for key, value in trial.settings.items())
        output.announce(f"trial {trial.number}", words)
        if not self._prepare(trial):
            return
        name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{self.folder.resolve().name}-{trial.number:04d}")
        self._running[trial.number] = ChildProcess(
            training_command(self.folder, run_dir, trial.settings),
            log=self._log(trial.number),
            environment={"TRAINYARD_RUN_ID": name.lstrip(".")[-128:]},
        )

    def _log(self, number: int) -> Path:
        return self.folder / "logs" / f"trial-{number:04d}.log"

    def _prepare(self, trial: "Trial") -> bool:
        """Prepare the data of a trial, unless an earlier trial has the same; return False if that fails."""
        from trainyard.commands.run import run_steps, step
        from trainyard.config.load import load_config
        from trainyard.config.registries import RECIPES

        changes = [f"{key}={value}" for key, value in trial.settings.items()]
        config = self.folder / "config.yaml"
        same = tuple(change for change in changes if change.startswith(("data.", "model.")))
        if same in self._prepared or load_config(config, changes).config.recipe not in RECIPES:
            return True
        words = [word for change in changes for word in ("--set", change)]
        if code := run_steps([step("prepare_data", "--config", str(config), *words)], stdout=sys.stderr):
            self._fail(trial.number, f"its data could not be prepared (exit code {code})")
            return False
        self._prepared.add(same)
        return True

    def _poll(self) -> None:
        """Record the processes that have ended, and stop those that are worse than the median."""
        for number, process in list(self._running.items()):
            code = process.exit_code()
            if code is not None:
                del self._running[number]
                self._record_run(number, code)
            elif not self._is_stopping and number not in self._pruned and self._is_worse(number):
                self._pruned.add(number)
                process.stop()

    def _is_worse(self, number: int) -> bool:
        from trainyard.report.facts.history import read_history

        if not self._definition.prune:
            return False
        curve = read_history(self.run_dir(number) / "metrics.jsonl").curve(self._definition.figure)
        values = {int(step): float(value) for step, value in zip(curve.steps, curve.values, strict=True)}
        return self.study.should_prune(number, values)

    def _record_run(self, number: int, code: int | None = None) -> None:
        """Record how a trial ended, from its run's record; without an end the trial stays unfinished."""
        from trainyard.report.facts.history import read_history
        from trainyard.report.facts.run_facts import read_record

        run_dir = self.run_dir(number)
        outcome = read_record(run_dir / "run.json").get("outcome")
        outcome = outcome if isinstance(outcome, dict) else {}
        status = outcome.get("status")
        if status == "succeeded" and not code:
            value = read_history(run_dir / "metrics.jsonl").last.get(self._definition.figure)
            if value is None:
                self._fail(number, f"its metrics have no {self._definition.figure}")
                return
            self._is_worse(number)  # records the values with which later trials are compared
            self.study.record_end(number, "done", value=value)
            output.announce(f"trial {number}", f"{self._definition.figure} {value:.6g}", "ok")
        elif number in self._pruned:
            self.study.record_end(number, "pruned")
            output.announce(
                f"trial {number}", f"stopped at step {outcome.get('steps')}: worse than the median"
            )
        elif self._is_stopping:  # with any exit code: a program may not handle the signal
            output.announce(f"trial {number}", "stopped; it resumes with the sweep")
        elif status == "failed" or (code and code not in (ExitCode.STOPPED, ExitCode.INTERRUPTED)):
            self._fail(
                number, str(outcome.get("reason") or f"exit code {code}; {self._log(number)} has the cause")
            )

    def _fail(self, number: int, reason: str) -> None:
        self.study.record_end(number, "failed", reason=reason)
        output.announce(f"trial {number}", reason, "failed")


def report(args: argparse.Namespace, sweep: Sweep, *, stopped: bool) -> int:
    """Write the reports and print all trials; return the exit code."""
    from trainyard.report.dashboard.dashboard import Format, TrainingDashboard, render_dashboards
    from trainyard.report.dashboard.sweep_report import sweep_table
    from trainyard.run.atomic_files import write_bytes_atomically
    from trainyard.run.suggested_commands import trainyard_command

    trials = sweep.study.ranking(sweep.study.trials())
    best = sweep.study.best()
    rows = [trial.to_json() | {"run_dir": str(sweep.run_dir(trial.number))} for trial in trials]
    facts: dict[str, Any] = {"folder": str(sweep.folder), "trials": rows}
    if best is not None:
        facts |= {"best": best.number, "next": next_command(sweep, best)}
    write_bytes_atomically(sweep.folder / "trials.json", json.dumps(facts, indent=2).encode() + b"\n")
    runs = [sweep.run_dir(trial.number) for trial in trials]
    shown = [run for run in runs if (run / "metrics.jsonl").exists()][:MOST_SHOWN]
    if shown:
        page = render_dashboards([TrainingDashboard(run) for run in shown], Format.HTML)
        write_bytes_atomically(sweep.folder / "report.html", page.encode())
    if args.json:
        output.print_json(facts)
    else:
        output.print_text(sweep_table(trials))
    if shown:
        output.announce("report", str(sweep.folder / "report.html"), copied=True)
    if best is not None:
        output.announce("next", facts["next"], copied=True)
    if sweep.ended_early:
        output.announce("sweep", "every trial failed, so no further one was started", "failed")
    unfinished = any(trial.state == "running" for trial in trials)
    if stopped or unfinished:
        resume = trainyard_command(shlex.join(["sweep", str(sweep.folder)]))
        output.announce("resume", resume, copied=True)
    if stopped or (unfinished and not args.collect):
        return ExitCode.STOPPED
    return ExitCode.DONE if best is not None else ExitCode.NO


def next_command(sweep: Sweep, best: "Trial") -> str:
    """Return the command that trains, stores and proves a run with the best settings."""
    from trainyard.run.suggested_commands import trainyard_command

    config = str(sweep.folder / "config.yaml")
    changes = [word for key, value in best.settings.items() for word in ("--set", f"{key}={value}")]
    return trainyard_command(shlex.join(["run", "--config", config, *changes]))
