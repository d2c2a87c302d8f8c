"""Train, store and prove a model: the pipeline.

    check ─> prepare ─> fetch ─> train ─> evaluate ─> store ─> prove ─> report ─> notify

`make train` and buildspec.yml call this command; pods (pod.py) take the same steps. Each step is a
process of its own. A step that fails ends the pipeline; a run that exists is then still reported on, and one
whose training or storing failed is proven too, so that its report says which parts do not hold. A run that
stopped early with a good checkpoint (75) is stored and reported as stopped. A checkpoint is restored from the
store only for a run with a number there, or if --resume names a manifest. Slack is notified if the
configuration enables it. Without --config, the run in --run-dir resumes with its own configuration.

`trainyard run -- python train.py` trains with any program, without a configuration file and without changes
to the program. docs/bring_your_own.md says what it reads and what it proves.

Reads:      the configuration, the data, a checkpoint, the store; the variables that the steps read
Writes:     the run directory, with the proof and the reports; the store; a Slack message; --json prints the
            outcome and the proof, and everything else goes to stderr
Exit codes: 0 trained, stored and proven; else that of the step that failed: 1 failed, or not proven; 2 wrong
            configuration or usage; 4 a service refused; 5 timed out; 75 stopped, run it again;
            130 interrupted by Ctrl-C, with a checkpoint or without
Example:    trainyard run --config configs/smoke.yaml --set training.max_steps=50
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.store.store_address import require_address
from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.config.load import load_config
from trainyard.config.registries import RECIPES
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ConfigError, ExitCode, TrainyardError
from trainyard.gateways.process import SignalForwarder, run_passing_signals
from trainyard.jobs.recipes.wrapped_program import PROVEN_OF_PROGRAMS
from trainyard.program_training import require_idle, take_over
from trainyard.proof import PARTS
from trainyard.report.facts.proof_record import read_proof
from trainyard.report.facts.run_facts import read_record
from trainyard.run.atomic_files import make_folder
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import choose_run_id, read_run
from trainyard.run.run_advice import advice
from trainyard.run.untrusted_files import read_json_object

if TYPE_CHECKING:
    from trainyard.config.schema import Config

NEWEST = "newest"
LOCAL_STORE = "trainyard-store"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    own = "default: the one in --run-dir"
    parser.add_argument("--config", type=arguments.path, metavar="FILE", help=f"the configuration; {own}")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one value; may be repeated"
    )
    several = "change values: KEY=VALUE words, quoted as in a shell"
    parser.add_argument("--settings", default="", metavar="WORDS", help=several)
    directory = "the run; newest: the one that was written to last; default: a new one in --runs"
    parser.add_argument("--run-dir", type=arguments.path, metavar=f"DIR|{NEWEST}", help=directory)
    runs = "the folder of the runs; default: runs"
    parser.add_argument("--runs", type=arguments.path, default=Path("runs"), metavar="DIR", help=runs)
    store = f"s3://bucket/prefix or file:///folder; default: artifacts.store, else the folder {LOCAL_STORE}"
    parser.add_argument("--store", default="", metavar="URL", help=store)
    parser.add_argument("--run-number", default="auto", metavar="N|auto", help="default: auto")
    parser.add_argument("--resume", default="auto", metavar="none|auto|CHECKPOINT", help="default: auto")
    lineage = "the run's name in Slack; with a name, a failure to start is posted too"
    parser.add_argument("--lineage", default="", metavar="NAME", help=lineage)
    segment = "number of the segment in its lineage, from 1; default: 1"
    parser.add_argument("--segment", type=arguments.positive, default=1, metavar="N", help=segment)
    begin = "let a later segment start if the earlier ones stored nothing"
    parser.add_argument("--may-begin", choices=("true", "false"), default="false", help=begin)
    deadline = "when training saves and stops, such as 8h"
    parser.add_argument("--deadline", type=arguments.duration, metavar="DURATION", help=deadline)
    takeover = "stop what still trains in --run-dir, on this host, before the start"
    parser.add_argument("--takeover", action="store_true", help=takeover)
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--json", action="store_true", help="print the outcome and the proof as JSON")
    parser.usage = f"{parser.prog} [options] [-- COMMAND ...]"
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])
    args.command = words[at + 1 :]
    if at < len(words) and not args.command:
        parser.error("-- COMMAND: name the program after --, such as -- python train.py")
    args.set += settings(args.settings)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    pipeline = pipeline_of(args)
    if args.dry_run:
        fetch = [pipeline.fetch()] if pipeline.has_fetch else []
        steps = (*pipeline.before(), *fetch, pipeline.train(), *pipeline.after())
        lines = "\n".join(shlex.join(step) for step in steps)
        output.print_text(SecretFilter.of({"environment": dict(os.environ)}).mask_under("", lines))
        if args.run_dir is None:
            output.announce("dry run", f"nothing was written; the name {pipeline.run_dir} is an example")
        return ExitCode.DONE
    if args.takeover:
        take_over(pipeline.run_dir)
    require_idle(pipeline.run_dir)
    # Error messages suggest this command again, because it also stores and proves.
    words = ["--store", args.store] if args.store else []
    os.environ.setdefault("TRAINYARD_STARTED_WITH", shlex.join(["trainyard", "run", *words]))
    place_configuration(args, pipeline)
    if not args.json:
        return run_pipeline(pipeline)
    code = run_pipeline(replace(pipeline, prints=False))
    output.print_json(summary_of(pipeline.run_dir, code))
    return code


def place_configuration(args: argparse.Namespace, pipeline: "Pipeline") -> None:
    """Write the configuration of a `-- COMMAND` into its run directory, where the steps read it.

    Folders that are created for runs and for the store get a .gitignore of their own.
    """
    if pipeline.prepares:  # the trainer of this repository, whose .gitignore has these folders
        return
    stores = [Path(LOCAL_STORE)] if pipeline.store == local_store() else []
    for folder in (pipeline.run_dir.parent, *stores):
        if not folder.exists():
            make_folder(folder)
            (folder / ".gitignore").write_text("*\n")
    if args.command and not pipeline.config.is_file():
        make_folder(pipeline.run_dir)
        pipeline.config.write_text("recipe: command\n")


def summary_of(run_dir: Path, code: int) -> dict[str, Any]:
    """Return what --json prints: the run's directory, its outcome, and its proof if there is one."""
    found: dict[str, Any] = {"run_dir": str(run_dir), "exit_code": int(code)}
    with suppress(OSError, TrainyardError):
        run = read_run(run_dir / "run.json")
        found |= {"run_id": run["run_id"], "outcome": run.get("outcome", {})}
        proof = read_proof(RunDirectory(run_dir), run)
        if proof is not None:
            found["proof"] = read_json_object(run_dir / "report" / "proof.json")
    return found


def settings(text: str) -> list[str]:
    """Return the KEY=VALUE words of a text quoted as in a shell. Raises ConfigError for any other text."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f'--settings {text!r}: {error}. Write an apostrophe as "it\'s".') from None
    if wrong := [word for word in words if "=" not in word]:
        hint = ", without spaces around =" if "=" in words else ""
        raise ConfigError(f"--settings {text!r}: {wrong[0]!r} is not KEY=VALUE{hint}")
    return words


def pipeline_of(args: argparse.Namespace) -> "Pipeline":
    """Return the pipeline of a command line. Raises ConfigError when it names no run and no configuration."""
    directory: Path | None = args.run_dir
    if args.command:
        args.set += ["recipe=command", f"program.command={json.dumps(args.command)}"]
    if directory == Path(NEWEST):
        records = sorted(args.runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        if not records:
            raise ConfigError(f"There is no run in {args.runs} yet. `make train` starts a run.")
        directory = records[-1].parent
    if args.config is None and args.command:
        directory = directory or args.runs / choose_run_id(None)
        args.config = directory / "config.yaml"
    elif args.config is None:
        if directory is None:
            raise ConfigError(
                "Name a program (-- python train.py), a configuration (--config FILE), or a run to resume "
                "(--run-dir DIR)."
            )
        args.config = directory / "config.yaml"
        if not args.config.is_file():
            raise ConfigError(f"There is no {args.config}. {advice(directory)}")
        output.announce("resume", str(directory))
    config = load_given(args)
    store = args.store or config.artifacts.store
    if store:
        require_address(store)
    parse_run_number(args.run_number)
    wants_slack = config.notifications.slack.enabled
    notifies = wants_slack and (bool(args.lineage) or has_slack())
    if wants_slack and not notifies and config.recipe in RECIPES:
        output.announce("slack", "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set: nothing will be sent")
    return Pipeline(
        run_dir=directory or args.runs / choose_run_id(None),
        config=args.config,
        changes=tuple(args.set),
        store=store or local_store(),
        run_number=args.run_number,
        resume=args.resume,
        deadline=args.deadline,
        lineage=args.lineage,
        segment=args.segment,
        may_begin=args.may_begin,
        notifies=notifies,
        prepares=config.recipe in RECIPES,
    )


def load_given(args: argparse.Namespace) -> "Config":
    """Return the configuration; without a file, that of a `-- COMMAND` has only the values of `--set`."""
    if not args.command or args.config.is_file():
        return load_config(args.config, args.set).config
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "command.yaml").write_text("recipe: command\n")
        return load_config(file, args.set).config


def has_slack() -> bool:
    """Return whether there is a webhook or a token to post with."""
    return any(os.environ.get(name) for name in ("SLACK_WEBHOOK_URL", "SLACK_BOT_TOKEN"))


def local_store() -> str:
    return Path(LOCAL_STORE).absolute().as_uri()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The commands of the steps for one run."""

    run_dir: Path
    config: Path
    changes: Sequence[str] = ()
    """The values of `--set`."""
    store: str
    """Address of the store; empty only in a pod, which then does not store the run."""
    run_number: str = "auto"
    resume: str = "auto"
    deadline: float | None = None
    """Seconds after which training saves and stops."""
    grace: float | None = None
    """Seconds from a signal until the process is killed."""
    processes: int | None = None
    program: Path | None = None
    """The description of another program than the trainer."""
    lineage: str = ""
    segment: int = 1
    searches: str = "true"
    """`true` searches the store for a checkpoint to resume from."""
    may_begin: str = "false"
    """`true` lets a later segment start if the earlier ones stored nothing."""
    notifies: bool = False
    """Whether messages are posted to Slack."""
    prepares: bool = True
    """Whether there is data to prepare; another program prepares its own."""
    prints: bool = True
    """Whether steps print to stdout; else to stderr."""

    @property
    def configuration(self) -> list[str]:
        return ["--config", str(self.config), *(word for each in self.changes for word in ("--set", each))]

    @property
    def store_options(self) -> list[str]:
        return ["--run-dir", str(self.run_dir), "--store", self.store, "--run-number", self.run_number]

    def before(self) -> list[list[str]]:
        """Return the steps before the training: check the machine and the store, prepare the data."""
        where = ["--run-dir", str(self.run_dir), "--store", self.store]
        prepare = [step("prepare", *self.configuration)] if self.prepares else []
        return [
            step("step environment", *self.configuration, *where),
            step("doctor", *self.configuration, *where, "--run-number", self.run_number),
            *prepare,
        ]

    @property
    def has_fetch(self) -> bool:
        """Return whether the store may have a checkpoint that is not on this machine."""
        return self.run_number != "auto" or "://" in self.resume

    def fetch(self) -> list[str]:
        """Return the step that restores the checkpoint to resume from, and prints the value for --resume."""
        words = ["--resume", self.resume, "--fetch", self.searches, "--segment", str(self.segment)]
        return step("step fetch", *self.store_options, *words, "--may-begin", self.may_begin)

    def train(self) -> list[str]:
        words = [*self.configuration, "--run-dir", str(self.run_dir)]
        words += [] if self.grace is None else ["--grace", f"{self.grace:.3f}s"]
        words += ["--nproc-per-node", str(self.processes)] if self.processes else []
        if self.program:
            return step("step program", "--program", str(self.program), *words)
        words += [] if self.deadline is None else ["--deadline", f"{self.deadline:.3f}s"]
        return step("train", *words, "--resume", self.resume)

    def evaluate(self) -> list[list[str]]:
        """Return the step that evaluates the last checkpoint; nothing without `evaluation.command`."""
        if not self.config.is_file():
            return []
        loaded = load_config(self.config, self.changes)
        if not loaded.config.evaluation.command:
            return []
        has_secrets = loaded.config.evaluation != loaded.given.evaluation
        return [
            step("evaluate", "--run-dir", str(self.run_dir), *(self.configuration if has_secrets else ()))
        ]

    def store_run(self) -> list[str]:
        return step("store sync", *self.store_options, "--once")

    @property
    def required_parts(self) -> tuple[str, ...]:
        """The parts of the proof that must hold."""
        return PROVEN_OF_PROGRAMS if self.program else PARTS

    def prove(self) -> list[str]:
        only = ["--only", ",".join(self.required_parts)] if self.program else []
        return step("prove", *self.store_options, *only)

    def report(self) -> list[str]:
        summary = ["--github-summary"] if os.environ.get("GITHUB_STEP_SUMMARY") else []
        return step("report", str(self.run_dir), "--write", *summary)

    def after(self) -> list[list[str]]:
        """Return the steps after a training that is done: evaluate, store, prove, report."""
        return [*self.evaluate(), self.store_run(), self.prove(), self.report()]

    def notify(self, event: str, *words: str) -> list[list[str]]:
        """Return the step that posts an event to Slack; nothing where Slack is not enabled."""
        lineage = ["--lineage", self.lineage] if self.lineage else []
        line = step("notify", event, "--run-dir", str(self.run_dir), *lineage, *words)
        return [line] if self.notifies else []

    def run(self, commands: Sequence[list[str]]) -> int:
        """Run steps in order until one fails; return its exit code, else 0."""
        return run_steps(commands, stdout=None if self.prints else sys.stderr)


def step(name: str, *words: str) -> list[str]:
    """Return the command line of a step."""
    return [sys.executable, "-P", "-m", "trainyard", *name.split(), *words]


def run_pipeline(pipeline: Pipeline) -> int:
    """Run the steps in order; return the exit code of the first that fails. Report on a run that exists."""
    # A signal between two steps must not end the pipeline without a report.
    with SignalForwarder() as between:
        if code := pipeline.run(pipeline.before()):
            return finish_unstarted(pipeline, code)
        code, resume = fetch_checkpoint(pipeline) if pipeline.has_fetch else (ExitCode.DONE, pipeline.resume)
        if code:
            return finish_unstarted(pipeline, code)
        if between.passed:
            return ExitCode.INTERRUPTED
        pipeline.run(pipeline.notify("resumed" if pipeline.segment > 1 else "started"))
        code = pipeline.run([replace(pipeline, resume=resume).train()])
        if code != ExitCode.DONE and not has_stopped(pipeline.run_dir, code):
            return finish(pipeline, code, prove=True)
        # A run that misses a threshold is stored too; its proof shows the miss.
        evaluated = pipeline.run(pipeline.evaluate()) if code == ExitCode.DONE else ExitCode.DONE
        if failure := pipeline.run([pipeline.store_run()]):
            return finish(pipeline, code or failure, prove=code == ExitCode.DONE)
        return finish(pipeline, code or pipeline.run([pipeline.prove()]) or evaluated)


def fetch_checkpoint(pipeline: Pipeline) -> tuple[int, str]:
    """Restore the checkpoint to resume from; return the exit code and the trainer's value of --resume."""
    with tempfile.TemporaryFile() as printed:
        code = run_steps([pipeline.fetch()], stdout=printed)
        printed.seek(0)
        return code, printed.read().decode(errors="surrogateescape").strip()


def finish_unstarted(pipeline: Pipeline, code: int) -> int:
    """Report that the training was not started, and return `code`."""
    if pipeline.lineage and not (pipeline.run_dir / "run.json").exists():
        reason = f"it could not start (exit code {code}); the log has the cause"
        pipeline.run(pipeline.notify("failed", "--reason", reason))
    return finish(pipeline, code)


def finish(pipeline: Pipeline, code: int, *, prove: bool = False) -> int:
    """Report on the run, if it exists; return `code`, or for 0 the exit code of the reports."""
    if code == ExitCode.DONE:
        return pipeline.run([pipeline.report(), *pipeline.notify("degraded"), *pipeline.notify("succeeded")])
    if (pipeline.run_dir / "run.json").exists():
        event = "stopped" if has_stopped(pipeline.run_dir, code) else "failed"
        proof = [pipeline.prove()] if prove else []
        for each in (*proof, pipeline.report(), *pipeline.notify("degraded"), *pipeline.notify(event)):
            pipeline.run([each])
    return code


def has_stopped(run_dir: Path, code: int) -> bool:
    """Return whether the trainer's exit code says that it ended early with a good checkpoint.

    At limits.cost_usd the code is 1, and after Ctrl-C 130, so that nothing continues the run; the record says
    that it stopped.
    """
    outcome = read_record(RunDirectory(run_dir).run_file).get("outcome")
    recorded = outcome if isinstance(outcome, dict) else {}
    is_on_record = recorded.get("status") == "stopped" and recorded.get("exit_code") == code
    return code == ExitCode.STOPPED or is_on_record


def run_steps(commands: Sequence[list[str]], *, stdout: IO[Any] | None = None) -> int:
    """Run commands in order until one fails; return its exit code, else 0. Signals are passed on to them."""
    for command in commands:
        if code := run_passing_signals(command, stdout=stdout):
            return code
    return ExitCode.DONE
