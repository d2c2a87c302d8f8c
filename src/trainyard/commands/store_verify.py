"""Check that the store holds what the trainer wrote: compare store, manifest and, if it still exists, disk.

The store's own checksums are compared, or bytes are read back; metadata that we wrote is never trusted. Of a
run that started from another run's checkpoint, only this run is verified.

Reads:  --store and --run-number: the run's objects and manifests, to the given --depth (listing: names, sizes
        and the store's checksums; sample: a tenth of the objects' bytes too; full: every byte);
        --run-dir: the run's directory; without --store its checkpoints and their own manifests;
        --public-key: whose signature the manifest must have, checked offline;
        AWS_* (credentials, AWS_REGION, AWS_ENDPOINT_URL, AWS_MAX_ATTEMPTS)
Writes: nothing; with --json the result on stdout
Exit codes: 0 all equal; 1 something differs, all of which is listed; 2 wrong usage; 4 the store cannot be
        reached

Example: trainyard store verify --store s3://ml-runs --run-number 812 --depth full
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.run_numbers import find_run_number
from trainyard.artifacts.record.signature import check_signature
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.verify.verify import Depth, verify_directory, verify_run
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import add_option, add_run, script_parser, take_run_number
from trainyard.errors import ExitCode
from trainyard.gateways.model_signing import KeyVerifier
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory
from trainyard.run.run_advice import require_run

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, reads_store=True, needs_store=False, json="the result")
    add_option(parser, "--run-number", "N|auto", "the run's number, or auto to look up the run in --run-dir")
    add_run(parser, text="the run's directory, or its number in --store")
    depths = ("listing", "sample", "full")
    parser.add_argument("--depth", choices=depths, default="sample", help="how much to read back")
    public_key = "PEM file; the run must be signed with its private key"
    parser.add_argument("--public-key", type=arguments.path, help=public_key)
    args = parser.parse_args(argv)
    take_run_number(args)
    if args.store is None and args.run_dir is None:
        parser.error("nothing to verify: give RUN, a directory, or --store with the number of a run")
    if (args.run_number is not None or args.public_key) and args.store is None:
        parser.error("--run-number and --public-key need --store")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    result: dict[str, Any] = {}
    if args.run_dir is not None:
        result["local"] = _verify_directory(args.run_dir)
    if args.store is not None:
        store = open_store(args.store)
        result |= _verify_store(args, store)
    if args.json:
        output.print_json(result)
    return ExitCode.DONE if all(part["ok"] for part in result.values()) else ExitCode.NO


def _verify_directory(run_dir: Path) -> dict[str, Any]:
    directory = RunDirectory(run_dir)
    require_run(run_dir)
    with terminal.show_live(PhaseDisplay("local", "searching for checkpoints")) as display:
        found = verify_directory(directory, display)
    steps = ", ".join(str(step) for step in found.steps) or "none"
    what = "checkpoints, this machine's part of each" if found.parts else "complete checkpoints"
    _announce("local", f"{len(found.steps)} {what} (steps {steps}) in {run_dir}", found.problems)
    return found.to_json()


def _verify_store(args: argparse.Namespace, store: "Store") -> dict[str, Any]:
    with terminal.show_live(PhaseDisplay("stored", "looking up the run")) as display:
        directory = RunDirectory(args.run_dir) if args.run_dir is not None else None
        number = find_run_number(store, args.run_number, args.run_dir)
        found = verify_run(store, number, depth=Depth(args.depth), run_directory=directory, progress=display)
    how = f" ({found.depth})" if found.depth else ""
    verdict = f"{found.objects_verified} of {found.objects_total} objects of run {number}{how}"
    words = found.compared if found.ok else "not equal"
    verifier = None if args.public_key is None else KeyVerifier(args.public_key)
    signature = check_signature(store, number, verifier)
    _announce("signature", signature.text(), signature.problems, "ok" if signature.checked else "")
    _announce("stored", f"{verdict}: {words}", found.problems, notes=found.notes)
    return {"stored": found.to_json(), "signature": signature.to_json()}


def _announce(
    phase: str, text: str, problems: Sequence[str], good: str = "ok", *, notes: Sequence[str] = ()
) -> None:
    output.print_remarks((*notes, *problems))
    output.announce(phase, text, "failed" if problems else good)
