"""Remove directories of old runs that are proven and stored. Without --apply it only prints the plan.

The newest --keep-last proven runs stay. An older one is removed if it is a workflow's run (`gh-NUMBER`), its
proof is of its present records, nothing uses it, its copy in the store verifies, and the store has each of
its checkpoints. Everything else in the folder stays: runs that failed, stopped or were not proven, other
folders, links, and what cannot be read.

Reads:  --runs-directory: run.json, report/proof.json, the checkpoints' manifests; --store: manifests, names
        and checksums; AWS_*
Writes: with --apply deletes directories; the plan, with reasons, on stdout
Exit codes: 0 planned, or removed; 1 something could not be removed; 2 wrong usage; 4 the store refuses,
        and nothing was removed

Example: trainyard step prune-runs --runs-directory /mnt/storage/runs --store s3://ml-runs --keep-last 3
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.sync_report import size_text
from trainyard.artifacts.retention.run_directories import (
    RunProof,
    plan_removal,
    remove_directories,
)
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode
from trainyard.report.facts.proof_record import read_proof
from trainyard.report.terminal.phase import PhaseDisplay

if TYPE_CHECKING:
    from trainyard.run.directory import RunDirectory


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_store=True)
    folder = "the folder of the run directories"
    parser.add_argument("--runs-directory", type=arguments.path, required=True, metavar="DIR", help=folder)
    newest = "keep the newest N proven runs; default: 3"
    parser.add_argument("--keep-last", type=arguments.positive, default=3, metavar="N", help=newest)
    current = "the run in progress, which stays"
    parser.add_argument("--current", type=arguments.path, metavar="DIR", help=current)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--apply", action="store_true", help="carry out the plan")
    parser.add_argument("--dry-run", action="store_true", help="only plan; this is also the default")
    args = parser.parse_args(argv)
    if args.apply and args.dry_run:
        parser.error("--apply and --dry-run contradict each other: give one")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    return prune_runs(
        args.runs_directory,
        store=args.store,
        keep_last=args.keep_last,
        current=args.current,
        call_seconds=args.call_seconds,
        apply=args.apply,
        as_json=args.json,
    )


def prune_runs(
    folder: Path,
    *,
    store: str,
    keep_last: int = 3,
    current: Path | None = None,
    call_seconds: float = 30.0,
    apply: bool = False,
    as_json: bool = False,
) -> int:
    """Plan which old runs of a folder go, print the plan, with `apply` remove them; return the exit code.

    The run directory `current` stays.
    """
    if not folder.is_dir():
        raise ConfigError(f"--runs-directory {folder}: there is no such folder")
    there = open_store(store, call_seconds=call_seconds)
    with terminal.show_live(PhaseDisplay("old runs", "reading the runs")):
        plan = plan_removal(folder, there, keep_last=keep_last, current=current, proof_of=proof_of)
    if as_json:
        output.print_json({"store": there.url, "directories": [each.to_json() for each in plan]})
    elif plan:
        words = {True: "kept", False: "removed"}
        output.print_text("\n".join(f"{each.path.name}: {words[each.keep]}: {each.reason}" for each in plan))
    removals = [each for each in plan if not each.keep]
    problems = []
    if apply:
        with terminal.show_live(PhaseDisplay("old runs", "removing")):
            problems = [problem for _, problem in remove_directories(plan) if problem]
    output.print_remarks(problems)
    what = (
        f"{len(removals) - len(problems)} of {len(plan)}, {size_text(sum(each.size for each in removals))},"
    )
    ending = "removed" if apply else "would be removed; nothing was changed; --apply removes them"
    output.announce("old runs", f"{what} {ending}", "failed" if problems else "ok")
    return ExitCode.NO if problems else ExitCode.DONE


def proof_of(directory: "RunDirectory", run: Mapping[str, Any]) -> RunProof | None:
    """Return where the proven run is stored; None without a proof of its present records."""
    proof = read_proof(directory, run)
    if proof is None or not proof.proven or proof.run_number is None or proof.store is None:
        return None
    return RunProof(proof.run_number, proof.store)
