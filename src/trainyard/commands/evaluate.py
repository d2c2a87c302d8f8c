"""Evaluate a checkpoint of a run by the command of its configuration, and record its figures.

`evaluation.command` prints one JSON object, such as {"accuracy": 0.63}, as its output or its last line;
`evaluation.thresholds` says what each figure needs. With --run-dir the newest checkpoint of the run, or that
of --step, is evaluated; with --store and --run-number a stored one. The newest evaluation of a checkpoint
counts: for the proof (`learned`) and for promotions.

Whoever can write to a store decides the command of its runs. It is printed, and runs only with
--allow-command, or if --public-key verifies the run. A restored directory is yours: read its config.yaml.

Reads:   the run directory or the store: config.yaml, the checkpoint (verified first); what the command reads
Writes:  a line of evaluations.jsonl in the run directory, or evaluations/run-N.jsonl in the store: digest of
         the checkpoint, command, data, figures; nothing with --dry-run; --json prints the same
Exit codes: 0 evaluated, and good enough; 1 below a threshold, the command failed, or no checkpoint verifies;
         2 no such run or step, no evaluation.command, or one that is not allowed; 4 the store refuses
Example: trainyard evaluate --run-dir runs/20261120-214501-7c1f
"""

import argparse
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.evaluations import add_evaluation
from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import parse_selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output
from trainyard.command.parser import add_flag, add_option, add_run, script_parser, take_run_number
from trainyard.config.load import load_config
from trainyard.config.secret_filter import SecretFilter, restore_secrets
from trainyard.errors import CheckFailedError, ConfigError, ExitCode
from trainyard.gateways.github import Level, annotate
from trainyard.gateways.model_signing import KeyVerifier
from trainyard.gateways.process import SignalForwarder, environment_without, withheld_names
from trainyard.programs.checkpoints.taken_checkpoint import restorable_path
from trainyard.programs.inputs import read_data
from trainyard.proof.gates import missed_thresholds, thresholds_of
from trainyard.proof.recorded_facts import is_finite_number
from trainyard.report.facts.quantities import format_loss
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, is_complete, verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.records import RecordWriter
from trainyard.run.run_advice import require_run
from trainyard.run.run_settings import read_settings, setting
from trainyard.run.untrusted_files import parse_json_line, read_bytes


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the command, run nothing", json="the record")
    add_run(parser, text="the run's directory, or its number in --store")
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder")
    add_option(parser, "--run-number", "N", "the stored run to evaluate")
    which = "the checkpoint; newest, the default, is the newest complete one"
    add_option(parser, "--step", "S|newest", which, type=arguments.step_or_newest)
    add_flag(parser, "--allow-command", "run the command that the store names")
    key = "PEM file; a run that is signed with its private key may run its command"
    parser.add_argument("--public-key", type=arguments.path, help=key)
    args = parser.parse_args(argv)
    take_run_number(args)
    if (args.run_dir is None) == (args.store is None) or (args.store is None) != (args.run_number is None):
        parser.error("give RUN, a directory, or --store with the number of a run")
    if args.run_dir and (args.allow_command or args.public_key):
        parser.error("--allow-command and --public-key need --store")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.run_dir:
        return evaluate_run(args.run_dir, step=args.step, dry_run=args.dry_run, as_json=args.json)

    verifier = KeyVerifier(args.public_key) if args.public_key else None
    store, number = open_store(args.store), parse_run_number(args.run_number)
    step = "newest" if args.step is None else str(args.step)
    # A stored command needs permission, or a signature, which `restore` checks.
    may_run = bool(args.allow_command or args.public_key or args.dry_run)
    selection = parse_selection(store, number, step if may_run else "none")
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        directory = RunDirectory(Path(folder) / "run")
        restore(store, selection, directory.path, verifier=verifier)
        if not may_run:
            output.announce("evaluation", shlex.join(command_on_record(directory)[0]), copied=True)
            raise ConfigError(
                f"{args.store} names this command for run {args.run_number}, and nothing was run. Add "
                "--allow-command if you trust it, or --public-key if the run is signed."
            )
        return evaluate(
            directory,
            lambda record: add_evaluation(open_store(args.store), int(args.run_number), record),
            step=args.step,
            environment=dict(os.environ),
            dry_run=args.dry_run,
            as_json=args.json,
        )


def evaluate_run(
    run_dir: Path,
    *,
    config: Path | None = None,
    changes: Sequence[str] = (),
    step: int | None = None,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Evaluate a checkpoint of a run directory; see `evaluate`. Without `step` it is the newest one.

    The command gets the variables that the program got. `config` and `changes` are what the run was started
    with, if its command has secrets, which no record has.
    """
    directory = RunDirectory(run_dir)

    def save(record: Mapping[str, Any]) -> None:
        writer = RecordWriter(directory.evaluations_file)
        writer.write(dict(record))
        writer.close()

    own = load_config(config, changes).given.evaluation.command if config else None
    return evaluate(
        directory,
        save,
        own_command=own,
        step=step,
        environment=environment_without(withheld_names(os.environ)),
        dry_run=dry_run,
        as_json=as_json,
    )


def command_on_record(directory: RunDirectory) -> tuple[list[str], Mapping[str, Any]]:
    """Return the command that evaluates the run, and all its settings. Raises ConfigError without one."""
    try:
        settings = read_settings(read_bytes(directory.config_file))
    except FileNotFoundError:
        require_run(directory.path)
        raise ConfigError(
            f"{directory.config_file}: missing; it names the command that evaluates the run"
        ) from None
    words = setting(settings, "evaluation.command")
    if not words:
        raise ConfigError(
            f"{directory.config_file} has no evaluation.command. docs/evaluation.md shows some for "
            "perplexity, bits per byte and tasks of lm-eval."
        )
    return [str(word) for word in words], settings


def evaluate(
    directory: RunDirectory,
    save: Callable[[Mapping[str, Any]], None],
    *,
    own_command: Sequence[str] | None = None,
    step: int | None,
    environment: Mapping[str, str],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Evaluate a checkpoint of the run, save its figures, and compare them with the thresholds.

    `own_command` replaces the one on record.
    """
    words, settings = command_on_record(directory)
    step, checkpoint, digest = find_checkpoint(directory, step)
    started_with, words = command_of(own_command or words, environment)
    command = fill_command(started_with, directory, checkpoint)
    shown = shlex.join(fill_command(words, directory, checkpoint))
    output.announce("evaluation", f"step {step:,}: {shown}", copied=True)
    if dry_run:
        return ExitCode.DONE
    started = time.time()
    figures, thresholds = run_command(command, shown, environment), thresholds_of(settings)
    record = {
        "time": started,
        "seconds": round(time.time() - started, 3),
        "step": step,
        "checkpoint_sha256": digest,
        "command": words,
        **data_of(setting(settings, "evaluation.data")),
        "figures": figures,
        "thresholds": thresholds,
    }
    save(record)
    for name, value in figures.items():
        needs = f" (needs {thresholds[name]})" if name in thresholds else ""
        output.announce("", f"{name} {format_loss(value)}{needs}")
    missed = missed_thresholds(figures, thresholds)
    if as_json:
        output.print_json(record)
    if not missed:
        output.announce("evaluation", "good enough" if thresholds else "no threshold was set", "ok")
        return ExitCode.DONE
    text = f"trained, but not good enough: {', '.join(missed)}"
    output.announce("evaluation", text, "failed")
    annotate(Level.ERROR, text, title="Below a threshold")
    return ExitCode.NO


def command_of(words: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the command with the secrets of the environment, and without any. Raises ConfigError."""
    recorded = {"evaluation.command": [str(word) for word in words]}
    restored = restore_secrets(recorded, environment)["evaluation.command"]
    return restored, SecretFilter.of({"environment": dict(environment)}, recorded).mask_values(restored)


def find_checkpoint(directory: RunDirectory, step: int | None) -> tuple[int, Path, str]:
    """Verify the checkpoint of `step` (None: the newest); return its step, path and manifest's digest."""
    complete = [each for each in directory.checkpoint_steps() if is_complete(directory.checkpoint(each))]
    if not complete:
        raise ConfigError(f"{directory.checkpoints} has no complete checkpoint to evaluate")
    if step is not None and step not in complete:
        steps = ", ".join(str(each) for each in complete)
        raise ConfigError(f"--step {step}: {directory.checkpoints} has no such checkpoint. Steps: {steps}")
    chosen = complete[-1] if step is None else step
    path = directory.checkpoint(chosen)
    verify_checkpoint(path)
    return chosen, restorable_path(path), sha256_of_file(path / MANIFEST_NAME)


def fill_command(words: Sequence[str], directory: RunDirectory, checkpoint: Path) -> list[str]:
    """Return the command with {checkpoint} and {run_dir} replaced by paths."""
    paths = {"{checkpoint}": str(checkpoint.absolute()), "{run_dir}": str(directory.path.absolute())}
    filled = []
    for word in map(str, words):
        for name, path in paths.items():
            word = word.replace(name, path)
        filled.append(word)
    return filled


def run_command(command: Sequence[str], shown: str, environment: Mapping[str, str]) -> dict[str, float]:
    """Run the command and return its figures; its stderr goes to the stderr of this command.

    Messages have it as `shown`.

    Raises CheckFailedError when it fails or prints no JSON object with a number.
    """
    with tempfile.TemporaryFile() as printed:
        try:
            with SignalForwarder() as signals:
                code = signals.run_process(command, stdout=printed, environment=environment)
        except OSError as error:
            raise ConfigError(
                f"evaluation.command: {command[0]} cannot be started ({error.strerror}). Activate its "
                "environment, or name the path of its interpreter, such as .venv/bin/python."
            ) from None
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    if code:
        output.print_remarks(text.splitlines()[-20:])
        raise CheckFailedError(f"evaluation.command ended with exit code {code}: {shown}")
    found = list(flat_figures(json_object(text)))
    figures = dict(found)
    if not figures or len(figures) < len(found):
        output.print_remarks(text.splitlines()[-20:])
        raise CheckFailedError(
            "evaluation.command printed no JSON object with a number, as its output or as its last line, or "
            "one with a key twice"
        )
    return figures


def json_object(text: str) -> Mapping[str, Any]:
    """Return the JSON object in `text` or in its last line; empty if there is none or a key is twice."""
    parts = (text, *text.strip().splitlines()[-1:])
    return next((found for part in parts if (found := parse_json_line(part.encode())) is not None), {})


def flat_figures(found: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of an object; those of an inner object as `outer.inner`."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from flat_figures(value, f"{outer}{name}.")
        elif is_finite_number(value):
            yield f"{outer}{name}", value


def data_of(patterns: Sequence[str] | None) -> dict[str, Any]:
    """Return the fingerprint and number of the files in evaluation.data; empty if none are named."""
    if not patterns:
        return {}
    try:
        found = read_data(Path.cwd(), patterns)
    except ConfigError as error:
        raise ConfigError(str(error).replace("program.data", "evaluation.data")) from None
    return {"data": {"fingerprint": found["fingerprint"], "files": found["files"]}}
