"""Train, store and prove a model: the pipeline.

    check ─> prepare ─> fetch ─> train ─> evaluate ─> store ─> prove ─> report ─> notify

`make train` and buildspec.yml call this command; pods and the jobs of a workflow take the same steps, which
are in `trainyard.pipeline`. Only the training, and the command of an evaluation, are processes of their own.
A step that fails ends the pipeline; a run that exists is then still reported on, and one whose training or
storing failed is proven too, so that its report says which parts do not hold. A run that stopped early with a
good checkpoint (75) is stored and reported as stopped. Slack is notified if the configuration enables it.
Without --config, the run in --run-dir resumes with its own configuration.

The same command continues a run that did not end, and trains nothing if it ended with success. With another
command, configuration, commit, lock or data a new run begins beside the one in --run-dir, from its newest
checkpoint; if that one ended with success, nothing is started. A run of another machine is continued from the
store only with --resume. docs/what_a_run_owns.md has the table.

`trainyard run python train.py` trains with any program, without a configuration file and without changes to
the program. The program begins at the first word that is no option; a KEY=VALUE before it is that of --set.
docs/bring_your_own.md says what it reads and what it proves.

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
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.store.store_address import LOCAL_STORE, local_store, require_address
from trainyard.command import arguments, output
from trainyard.command.parser import CommandParser, add_flag, add_option, script_parser
from trainyard.config.load import load_config
from trainyard.config.registries import RECIPES
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ConfigError, ExitCode, TrainyardError
from trainyard.gateways.github import in_actions
from trainyard.jobs.recipes import program_here
from trainyard.pipeline import Pipeline, StepRunner, plan_record, plan_text, run_pipeline
from trainyard.program_training import claim_places, require_idle, take_over
from trainyard.report.facts.proof_record import read_proof
from trainyard.run.atomic_files import make_folder
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import choose_run_id, identity_in, new_run_id, newest_run, read_run
from trainyard.run.run_advice import advice
from trainyard.run.suggested_commands import trainyard_command
from trainyard.run.untrusted_files import read_json_object
from trainyard.run_choice import choose_directory

if TYPE_CHECKING:
    from trainyard.config.schema import Config

NEWEST = "newest"
# A key of the configuration, with a dot except `recipe`, and its value. `NAME=1 python x` is no such word.
_SETTING = re.compile(r"(?:recipe|[a-z_]+(?:\.[\w-]+)+)=")


def make_parser() -> CommandParser:
    parser = script_parser(__doc__, dry_run="print the steps, run nothing", json="the outcome and the proof")
    own = "default: the one in --run-dir"
    add_option(parser, "--config", "FILE", f"the configuration; {own}", type=arguments.path)
    add_option(parser, "--set", "KEY=VALUE", "change one value; may be repeated", action="append", default=[])
    several = "change values: KEY=VALUE words, quoted as in a shell"
    add_option(parser, "--settings", "WORDS", several, default="")
    directory = "the run; newest: the one that was written to last; default: a new one in --runs"
    add_option(parser, "--run-dir", f"DIR|{NEWEST}", directory, type=arguments.path)
    runs = "the folder of the runs; default: runs"
    add_option(parser, "--runs", "DIR", runs, type=arguments.path, default=Path("runs"))
    store = f"s3://bucket/prefix or file:///folder; default: artifacts.store, else the folder {LOCAL_STORE}"
    add_option(parser, "--store", "URL", store, default="")
    add_option(parser, "--run-number", "N|auto", "default: auto", default="auto")
    resume = "default: auto; given, the run may be one of another machine, in the store"
    add_option(parser, "--resume", "none|auto|CHECKPOINT", resume, default="")
    lineage = "the run's name in Slack; with a name, a failure to start is posted too"
    add_option(parser, "--lineage", "NAME", lineage, default="")
    segment = "number of the segment in its lineage, from 1; default: 1"
    add_option(parser, "--segment", "N", segment, type=arguments.positive, default=1)
    begin = "let a later segment start if the earlier ones stored nothing"
    parser.add_argument("--allow-missing-checkpoint", choices=("true", "false"), default="false", help=begin)
    deadline = "when training saves and stops, such as 8h"
    add_option(parser, "--deadline", "DURATION", deadline, type=arguments.duration)
    add_flag(parser, "--takeover", "stop what still trains in --run-dir, on this host, before the start")
    own_words = "the program and all of its words, such as python train.py; -- may stand before it"
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help=own_words)
    parser.usage = f"{parser.prog} [options] [KEY=VALUE ...] [COMMAND ... | RUN]"
    return parser


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    given = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(given)
    while args.words and _SETTING.match(args.words[0]):  # options may follow
        args.set.append(args.words[0])
        args = parser.parse_args(args.words[1:], args)
    args.command = args.words[1:] if args.words[:1] == ["--"] else args.words
    if len(args.words) == 1 and args.run_dir is None and RunDirectory(Path(args.words[0])).run_file.is_file():
        args.run_dir, args.command = Path(args.words[0]), []  # a folder is no program: it is a run to resume
    if args.words == ["--"]:
        parser.error("-- COMMAND: name the program after --, such as -- python train.py")
    if argv is None:  # the options of the program are none of ours: its --json is not
        sys.argv = [sys.argv[0], *given[: len(given) - len(args.words)], "--", *args.command]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    request = request_of(args, args.command)
    if args.dry_run:
        return show_plan(request, as_json=args.json)
    if not args.json:
        return start(request)[1]
    run_dir, code = start(request, prints=False)
    output.print_json(summary_of(run_dir, code))
    return code


def request_of(args: argparse.Namespace, command: Sequence[str] = ()) -> "RunRequest":
    names = ("config", "run_dir", "runs", "store", "resume", "deadline", "lineage", "segment", "takeover")
    return RunRequest(
        **{name: getattr(args, name) for name in names},
        changes=[*args.set, *settings(args.settings)],
        command=command,
        run_number=parse_run_number(args.run_number),
        allow_missing_checkpoint=args.allow_missing_checkpoint == "true",
    )


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a person asks for, who may leave everything but a program or a configuration open."""

    config: Path | None = None
    """None: the configuration in `run_dir`, or none at all for a `command`."""
    changes: Sequence[str] = ()
    command: Sequence[str] = ()
    """A program to train with instead of that of the configuration."""
    run_dir: Path | None = None
    """The run; `newest`: the one that was written to last; None: a new one in `runs`."""
    runs: Path = Path("runs")
    store: str = ""
    run_number: int | None = None
    resume: str = ""
    """Empty: the newest checkpoint of the run on this machine."""
    deadline: float | None = None
    lineage: str = ""
    segment: int = 1
    allow_missing_checkpoint: bool = False
    takeover: bool = False
    """Whether what still trains in `run_dir`, on this host, is stopped first."""
    run_id: str = ""
    """The id of the run, which then is a default and not a choice, as `run_dir` is."""
    is_again: bool = False
    """Whether this is a further attempt of the same job, which may be on another machine."""
    notice: Mapping[str, str] = field(default_factory=dict)
    """Values that every message has; see `Pipeline`."""
    start: Mapping[str, str] = field(default_factory=dict)
    """Values that the first message has."""

    @property
    def names_run(self) -> bool:
        """Whether a person, or a launcher, named the folder or the id, and means no other one."""
        return not self.run_id and (self.run_dir is not None or "TRAINYARD_RUN_ID" in os.environ)


def show_plan(request: RunRequest, *, as_json: bool = False) -> int:
    """Print the steps of the pipeline with their values; nothing is run."""
    pipeline = pipeline_of(request)
    output.print_json(plan_record(pipeline.steps())) if as_json else output.print_text(
        plan_text(pipeline.steps())
    )
    if request.run_dir is None:
        output.announce("dry run", f"nothing was written; the name {pipeline.run_dir} is an example")
    return ExitCode.DONE


def start(request: RunRequest, *, prints: bool = True) -> tuple[Path, int]:
    """Run the pipeline; return the run directory and the exit code.

    Without `prints`, what steps print goes to stderr.
    """
    with pipeline_to_run(request) as pipeline:
        return pipeline.run_dir, run_pipeline(pipeline, StepRunner(prints=prints))


@contextmanager
def pipeline_to_run(request: RunRequest) -> Iterator[Pipeline]:
    """Yield the pipeline of a request that is about to run. Raises ConfigError as `pipeline_of`."""
    first = request.command[0] if request.command else ""
    if first and os.sep not in first and shutil.which(first) is None:
        raise ConfigError(f"{first}: there is no such command. Nothing was started.")
    pipeline = pipeline_of(request, changes_nothing=False)
    # Error messages suggest this command again, because it also stores and proves.
    words = ["--store", request.store] if request.store else []
    os.environ.setdefault("TRAINYARD_COMMAND_LINE", shlex.join(["trainyard", "run", *words]))
    announce_run(pipeline, request.command)
    with hold_places(pipeline):
        place_configuration(pipeline, is_own_command=bool(request.command))
        yield pipeline


def announce_run(pipeline: Pipeline, command: Sequence[str]) -> None:
    """Print the first line of a run: its id, what trains, and how to watch it."""
    known = identity_in(pipeline.run_dir)
    given = {"program": {"command": list(command)}}
    # A secret in an argument is printed nowhere, and neither is one that the environment holds, too.
    secrets = SecretFilter.of({"environment": dict(os.environ)}, given)
    what = shlex.join(secrets.mask_values(given)["program"]["command"]) if command else str(pipeline.config)
    name = known.run_id if known else pipeline.run_dir.name
    watch = trainyard_command(f"watch {shlex.quote(str(pipeline.run_dir))}")
    output.announce("run", f"{name} · {what}  watch it: {watch}", copied=True)


def hold_places(pipeline: Pipeline) -> AbstractContextManager[object]:
    """Hold the places of a program's files; our trainer writes only into its run directory.

    Raises ConfigError if another run uses the same places.
    """
    if pipeline.prepares:
        return nullcontext()
    config = load_given(pipeline.config, pipeline.changes, is_own_command=True)
    run_dir = pipeline.run_dir.absolute()
    return claim_places(program_here(config, run_dir), run_dir)


def place_configuration(pipeline: Pipeline, *, is_own_command: bool) -> None:
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
    if is_own_command and not pipeline.config.is_file():
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


def pipeline_of(request: RunRequest, *, changes_nothing: bool = True) -> Pipeline:
    """Return the pipeline of a request, which may be of a new run beside the one that is here.

    Unless `changes_nothing`, what trains in its directory is stopped if the request says so. Raises
    ConfigError when it names no run and no configuration, when a command trains in the directory, or when a
    finished run with other inputs is in it.
    """
    directory, changes = request.run_dir, [*request.changes]
    if request.command:
        changes += ["recipe=command", f"program.command={json.dumps(list(request.command))}"]
    if directory == Path(NEWEST):
        directory = newest_run(request.runs)
    if request.config is None and directory is None and not request.command:
        raise ConfigError(
            "Name a program (python train.py), a configuration (--config FILE), or a run to resume "
            "(--run-dir DIR)."
        )
    run_dir = directory or request.runs / choose_run_id(None)
    file = request.config or run_dir / "config.yaml"
    if request.config is None and not request.command:
        if not file.is_file():
            raise ConfigError(f"There is no {file}. {advice(run_dir)}")
        output.announce("resume", str(run_dir))
    config = load_given(file, changes, is_own_command=bool(request.command))
    store = request.store or config.artifacts.store
    if store:
        require_address(store)
    wants_slack = config.notifications.slack.enabled
    has_slack = any(os.environ.get(name) for name in ("SLACK_WEBHOOK_URL", "SLACK_BOT_TOKEN"))
    notifies = wants_slack and (bool(request.lineage) or has_slack)
    if wants_slack and not notifies and config.recipe in RECIPES:
        output.announce("slack", "neither SLACK_WEBHOOK_URL nor SLACK_BOT_TOKEN is set: nothing will be sent")
    same = ("run_number", "deadline", "lineage", "segment", "allow_missing_checkpoint", "notice", "start")
    pipeline = Pipeline(
        **{name: getattr(request, name) for name in same},
        run_dir=run_dir,
        config=file,
        changes=tuple(changes),
        store=store or local_store(),
        run_id=request.run_id or id_of(request, run_dir),
        may_adopt=request.resume not in ("", "none") or request.segment > 1 or request.is_again,
        resume=request.resume or "auto",
        notifies=notifies,
        prepares=config.recipe in RECIPES,
        is_retried=request.segment > 1 and in_actions(),
    )

    def check(found: Path) -> None:
        if not changes_nothing and request.takeover:
            take_over(found)
        if not changes_nothing:
            require_idle(found)

    return choose_run(request, pipeline, check)


def id_of(request: RunRequest, run_dir: Path) -> str:
    """Return the id of the run; empty for one that --resume takes from the store by its number alone."""
    is_by_number = request.run_number is not None and request.resume not in ("", "none")
    is_open = identity_in(run_dir) is None and "TRAINYARD_RUN_ID" not in os.environ
    return "" if is_by_number and is_open else choose_run_id(run_dir)


def choose_run(request: RunRequest, pipeline: Pipeline, check: Callable[[Path], None]) -> Pipeline:
    """Return the pipeline for the run that the request continues, or for a new one beside it.

    `check` is called with each directory that holds a run.
    """
    check(pipeline.run_dir)
    choice = choose_directory(
        pipeline.run_dir,
        lambda run_dir: replace(pipeline, run_dir=run_dir).order,
        is_fixed=request.names_run,
        takes_parent=pipeline.resume == "auto"
        and (bool(request.resume) or request.run_dir is not None)
        and not request.run_id,
        starts_anew=pipeline.resume == "none",
        on_found=check,
    )
    resume = pipeline.resume
    if choice.parent is not None and resume == "auto":
        resume = str(choice.parent)
    if choice.number == 1:
        return replace(pipeline, resume=resume)
    begins = f", from {choice.parent}" if choice.parent else ""
    listed = "; ".join(choice.differences)
    output.announce(
        "run", f"{pipeline.run_dir} has other inputs ({listed}): the run is {choice.run_dir}{begins}"
    )
    has_own = (found := identity_in(choice.run_dir)) is not None
    named = request.run_id or os.environ.get("TRAINYARD_RUN_ID")
    own_id = f"{named}-{choice.number}" if named else new_run_id()
    run_id = found.run_id if has_own and found else own_id
    return replace(pipeline, run_dir=choice.run_dir, run_id=run_id, resume=resume)


def load_given(file: Path, changes: Sequence[str], *, is_own_command: bool) -> "Config":
    """Return the configuration; without a file, that of a `-- COMMAND` has only the values of `--set`."""
    if not is_own_command or file.is_file():
        return load_config(file, changes).config
    with tempfile.TemporaryDirectory() as folder:
        (empty := Path(folder) / "command.yaml").write_text("recipe: command\n")
        return load_config(empty, changes).config
