"""Give a stored checkpoint a name (best, production) that restore takes and retention keeps.

The checkpoint is verified first, and judged by the stored records of its run: those that the manifest lists,
and the evaluations in the store. A name means one checkpoint in the whole store. It moves atomically: a
reader sees the old checkpoint or the new one, and if two people move it at once, one of them gets an error.
After --withdraw no checkpoint has the name; to give it to the previous checkpoint again, promote that one.

Reads:  --store: the run's manifests and the checkpoint's objects, to --depth; AWS_* (credentials, …);
        GITHUB_ACTOR, else the user's name, unless --by is given
Writes: promoted/NAME.json in the store; with --json the pointer on stdout
Exit codes: 0 promoted; 1 the checkpoint does not verify or was removed, its run did not learn, its evaluation
        misses a threshold or is missing, or somebody else moved the name; 2 wrong usage; 4 the store cannot
        be reached or refuses

Example: trainyard store promote --store s3://ml-runs --run-number 812 --step 4500 --name production
"""

import argparse
import getpass
import hashlib
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.promotion import find_promotable, promote, read_promotion, require_name, withdraw
from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.evaluations import read_evaluations
from trainyard.artifacts.record.required_records import is_loose
from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.store.layout import evaluations_key
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.verify.comparison import Depth
from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.commands.prove import compared_run, prove_from_store
from trainyard.errors import ConfigError, ExitCode, VerificationError
from trainyard.proof.gates import evaluated_figures, judge_learning, thresholds_of
from trainyard.proof.learning import Curves
from trainyard.proof.recorded_events import course_of
from trainyard.report.facts.resolved_config import settings_of_config
from trainyard.run.run_settings import setting
from trainyard.run.suggested_commands import trainyard_command
from trainyard.run.untrusted_files import parse_json_line

if TYPE_CHECKING:
    from trainyard.artifacts.record.checkpoints import Checkpoint
    from trainyard.artifacts.record.manifest import RunManifest
    from trainyard.artifacts.store.object_store import Store

DEPTHS = ("listing", "sample", "full")
REQUIREMENTS = ("evaluation", "proof")


def requirements(text: str) -> tuple[str, ...]:
    """Return the names in `evaluation,proof`."""
    names = tuple(text.split(","))
    if not set(names) <= set(REQUIREMENTS):
        raise argparse.ArgumentTypeError(f"{arguments.quote(text)}: name one of {', '.join(REQUIREMENTS)}")
    return names


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--store", required=True, metavar="URL", help="s3://bucket/prefix or file:///folder")
    parser.add_argument("--run-number", metavar="N", help="the run's number")
    parser.add_argument("--step", metavar="S|newest", help="a step, or newest")
    parser.add_argument(
        "--withdraw", action="store_true", help="take the name from the checkpoint that has it"
    )
    parser.add_argument("--name", required=True, help="a to z, 0 to 9 and dashes: best, production, …")
    parser.add_argument(
        "--depth", choices=DEPTHS, default="full", help="depth of the verification; default: full"
    )
    more = "further gates: evaluation (one that meets its thresholds), proof (all parts)"
    parser.add_argument("--require", type=requirements, default=(), metavar="NAMES", help=more)
    parser.add_argument(
        "--by", help="the person to record; default: the actor of the workflow, else the user"
    )
    limit = "time limit of one call; default: 20 for a cluster, 30 for a store"
    parser.add_argument("--call-seconds", metavar="SECONDS", type=arguments.seconds, default=30, help=limit)
    parser.add_argument("--json", action="store_true", help="print the pointer as JSON")
    parser.add_argument("--dry-run", action="store_true", help="verify, change nothing")
    args = parser.parse_args(argv)
    if args.withdraw == bool(args.run_number or args.step) or bool(args.run_number) != bool(args.step):
        parser.error("give --run-number and --step of the checkpoint that gets the name, or --withdraw alone")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    if args.withdraw:
        return _withdraw(args)
    number, step = parse_run_number(args.run_number), None
    if number is None:
        raise ConfigError("--run-number auto: there is no run directory to read it from; give the number")
    if args.step != "newest":
        step = arguments.step(args.step)
        if step is None:
            raise ConfigError(f"--step {args.step[:80]}: neither a step nor newest")
    require_name(args.name)
    store, depth = open_store(args.store, call_seconds=args.call_seconds), Depth(args.depth)
    run_id, checkpoint = find_promotable(store, number, step, depth=depth)
    require_learned(store, checkpoint, args.require)
    what = f"{args.name} → {checkpoint.name} of run {number} ({checkpoint.digest[:12]}…), verified: {depth}"
    if args.dry_run:
        output.announce("promoted", f"{what}; nothing was changed", "ok")
        return ExitCode.DONE
    pointer = promote(store, args.name, checkpoint, run_id=run_id, by=_promoter(args), depth=depth)
    was = pointer.previous
    before = f", before: step {was['step']} of run {was['run_number']}" if was else ""
    output.announce("promoted", what + before, "ok")
    if args.json:
        output.print_json(pointer.to_json())
    return ExitCode.DONE


def require_learned(store: "Store", checkpoint: "Checkpoint", required: Collection[str] = ()) -> None:
    """Raise VerificationError if the checkpoint fails a gate of its run, by the stored records alone.

    Its run is judged up to the checkpoint's step, without later rows. `required` are names of `REQUIREMENTS`.
    A checkpoint that was stored without the records of a run is not judged.
    """
    _, manifest, problems = newest_manifest(store, checkpoint.run_number)
    if manifest is None or problems:
        raise VerificationError("\n".join(problems))
    if is_loose(manifest):
        if required:
            raise VerificationError(
                f"{checkpoint.prefix} was not promoted: it was stored without a run to judge. Omit --require."
            )
        return
    settings = settings_of_config(read_record(store, manifest, "config.yaml"))
    rows, events = (read_lines(store, manifest, name) for name in ("metrics.jsonl", "events.jsonl"))
    saved = {"step": checkpoint.step, "manifest_sha256": checkpoint.digest}
    run = {**manifest.provenance, "outcome": {**manifest.outcome, "checkpoint": saved}}
    is_last = checkpoint.step == manifest.outcome.get("steps")
    if not is_last:  # the figures of the outcome belong to a later checkpoint
        run["outcome"] = {"checkpoint": saved}
    begins_after, curves = course_of(run, events).begins_after, Curves()
    sum(1 for _ in curves.collect(row for row in rows if _is_until(row, checkpoint.step)))
    curves.start_with(events, begins_after)
    evaluations = verified_evaluations(store, manifest)
    wanted = setting(settings, "proof.learned.compare_with")
    compared = compared_run(run, store.url, wanted, before=checkpoint.run_number) if wanted else None
    learned = judge_learning(
        run, curves, begins_after=begins_after, settings=settings, evaluations=evaluations, compared=compared
    )
    evidence, step = (learned.evidence, learned.next_step) if learned.is_red else ("", "")
    if not evidence and "evaluation" in required:
        has_passed = thresholds_of(settings) and evaluated_figures(run, evaluations, settings)
        evidence = (
            "" if has_passed else "its run sets no evaluation.thresholds, so no evaluation can judge it"
        )
        step = "train with evaluation.thresholds"
    if not evidence and "proof" in required:
        evidence, step = unproven_parts(store, checkpoint.run_number), "{again}"
    if evidence:
        where = f"--store {shlex.quote(store.url)} --run-number {checkpoint.run_number}"
        evaluate = f"{trainyard_command('evaluate')} {where} --step {checkpoint.step}"
        step = step.format(again="train again", evaluate=evaluate)
        raise VerificationError(
            f"{checkpoint.prefix} was not promoted: {evidence}. Next: {step}, or promote another one."
        )


def read_record(store: "Store", manifest: "RunManifest", name: str) -> bytes:
    """Return a record of the run, empty if the run has none.

    Raises VerificationError if it is not the record that the manifest lists.
    """
    key = manifest.records_prefix + name
    listed, content = manifest.by_key().get(key), store.read_object(key)
    is_due = name == "config.yaml" and "config_sha256" in manifest.provenance
    if listed is None and content is None and not is_due:
        return b""
    if listed is None or content is None or hashlib.sha256(content).hexdigest() != listed.sha256:
        what = "is not in the manifest" if listed is None else "is missing" if content is None else "differs"
        raise VerificationError(
            f"{key} {what}: the run cannot be judged by it. trainyard store verify "
            f"--store {shlex.quote(store.url)} --run-number {manifest.run_number} lists what is damaged."
        )
    return content


def read_lines(store: "Store", manifest: "RunManifest", name: str) -> list[dict[str, Any] | None]:
    return [parse_json_line(line) for line in read_record(store, manifest, name).splitlines()]


def verified_evaluations(store: "Store", manifest: "RunManifest") -> list[dict[str, Any] | None]:
    """Return the evaluations, oldest first. Raises VerificationError if one cannot be read."""
    read_record(store, manifest, "evaluations.jsonl")
    found = read_evaluations(store, manifest)
    if None in found:
        raise VerificationError(
            f"{evaluations_key(manifest.run_number)} or evaluations.jsonl of the run has a line that cannot "
            "be read, which may be the newest evaluation"
        )
    return found


def unproven_parts(store: "Store", number: int) -> str:
    """Return in words the parts of the proof that a stored run fails; empty if it is proven."""
    failing = prove_from_store(store, number).failing
    return "; ".join(f"its run is not proven: {part.name}: {part.evidence}" for part in failing)


def _is_until(row: Mapping[str, Any] | None, step: int | None) -> bool:
    found = None if row is None else row.get("step")
    return isinstance(found, int) and (step is None or found <= step)


def _withdraw(args: argparse.Namespace) -> int:
    store = open_store(args.store, call_seconds=args.call_seconds)
    had = read_promotion(store, args.name)
    pointer = had if args.dry_run and had else withdraw(store, args.name, by=_promoter(args))
    end = "would be taken back; nothing was changed" if args.dry_run else "taken back"
    output.announce(
        "promoted", f"{args.name} of step {pointer.step} of run {pointer.run_number}: {end}", "ok"
    )
    if args.json:
        output.print_json(pointer.to_json())
    return ExitCode.DONE


def _promoter(args: argparse.Namespace) -> str:
    return str(args.by or os.environ.get("GITHUB_ACTOR") or getpass.getuser())
