"""Prove a run: it trained and learned, its network is known, it is stored, and it can be repeated.

Reads:   --run-dir; --store, else artifacts.store of the run's config.yaml, else the store of its last
         proof or of its number; the store itself; AWS_*; the registry of the image that the run used.
Writes:  report/proof.json in the run directory, unless --dry-run; --json prints the same; in GitHub Actions
         the step outputs `proven`, `stored` and `step`, and an annotation for each part that does not hold.
Exit codes: 0 all five parts hold (with --only: those that it names); 1 one does not, named with the next
         step; 2 no such run directory, or no such kind of store; 4 the store could not be read, and all
         else holds.
Example: trainyard prove --run-dir runs/20261120-214501-7c1f --store s3://ml-runs --run-number 812
"""

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.store.store_address import open_store, store_settings
from trainyard.artifacts.verify.inspection import Inspection, inspect_run
from trainyard.artifacts.verify.verify import Depth
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import add_option, add_run, script_parser
from trainyard.config.registries import is_program_run
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.github import Level, annotate, set_outputs
from trainyard.gateways.images.held_image import find_held_image
from trainyard.programs.inputs import fingerprint_of_data
from trainyard.proof import PARTS
from trainyard.proof.proof import ProofPlace, Recomputed
from trainyard.proof.stored_runs import compared_run, final_state, judge_records
from trainyard.report.facts.proof_record import proven_store, write_proof
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.terminal.closing_lines import is_copied, proof_lines, sample_lines
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import JudgedRecords
from trainyard.run.progress import Progress
from trainyard.run.run_settings import setting, settings_of_config
from trainyard.run.suggested_commands import made_by

if TYPE_CHECKING:
    from trainyard.proof.proof import Proof


def part_names(text: str) -> tuple[str, ...]:
    """Return the parts of the proof in `trained,stored`."""
    names = tuple(text.split(","))
    if not set(names) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"{arguments.quote(text)}: name one or more of {', '.join(PARTS)}")
    return names


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="report the verdict, write nothing", json="the proof")
    add_run(parser, required=True)
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder")
    add_option(parser, "--run-number", "N|auto", "default: auto", default="auto")
    depth = "how much is read back; default: full up to 10 GB, sample above"
    parser.add_argument("--depth", choices=("listing", "sample", "full"), help=depth)
    only = "the exit code covers only these parts, such as trained,stored; default: all five"
    add_option(parser, "--only", "PARTS", only, type=part_names, default=PARTS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    number, depth = parse_run_number(args.run_number), Depth(args.depth) if args.depth else None
    known = {"store": args.store, "only": args.only, "dry_run": args.dry_run, "as_json": args.json}
    return prove_run(args.run_dir, run_number=number, depth=depth, **known)


def prove_run(
    run_dir: Path,
    *,
    store: str | None = None,
    run_number: int | None = None,
    depth: Depth | None = None,
    only: Collection[str] = PARTS,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Prove a run, report and save the proof, and return the exit code.

    Without `run_number` the store is searched for the run. `only` are the parts that the exit code covers.
    """
    directory = RunDirectory(run_dir)
    records = JudgedRecords(directory)
    run, store = records.run, store_of(directory, store, records.run)
    found, display = Inspection(run_number), PhaseDisplay("proof", "looking up the run")
    with terminal.show_live(display):
        if store is not None:
            how: dict[str, Any] = {"run_number": run_number, "depth": depth, "progress": display}
            found = inspect_run(open_store(store), str(run["run_id"]), directory=directory, **how)
        state = final_state(run, directory, found, store, read_digests=read_digests, progress=display)
    settings = settings_of_config(records.config)
    proof = judge_records(
        records,
        found,
        place=ProofPlace(str(run_dir), store, found.run_number),
        recomputed=Recomputed(records.digests, *state, *data(run, directory), *image(run)),
        compared=compared_run(run, store, setting(settings, "proof.learned.compare_with")),
    )
    where = {"run_number": found.run_number, "store": store, "records": records.digests()}
    known = {key: value for key, value in where.items() if value is not None}
    record = proof.to_json(now=time.time()) | known
    if not dry_run:
        save(record, directory)
    report(proof, directory)
    if as_json:
        output.print_json(record)
    failing = [name for name in only if name not in proof.holding]
    if found.unreachable and failing == ["stored"]:
        return ExitCode.REFUSED
    return ExitCode.NO if failing else ExitCode.DONE


def store_of(directory: RunDirectory, url: str | None, run: Mapping[str, Any]) -> str | None:
    """Return `url`, else the store of the run's configuration, its last proof or its number, else None."""
    try:
        return store_settings(directory.path, url=url, encryption=None)[0]
    except ConfigError:
        return proven_store(directory, run["run_id"]) or next(reversed(run.get("stored_as", {})), None)


def read_digests(checkpoint: Path, progress: Progress) -> dict[str, str]:
    """Return the digest of each part of the state in a checkpoint of our trainer."""
    progress.begin("importing torch")
    from trainyard.training.checkpoint.stored_index import state_digests

    return state_digests(checkpoint, progress)


def image(run: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return why the run's image cannot be pulled again (None if it can), and what its registry has."""
    if "image_digest" not in run:
        return None, ""
    return find_held_image(str(run.get("image_name", "")), str(run["image_digest"]))


def data(run: Mapping[str, Any], directory: RunDirectory) -> tuple[str | None, str | None]:
    """Return the fingerprint of the run's data, and how they changed; None if they are not here."""
    if is_program_run(run):
        return fingerprint_of_data(run.get("program") or {}), None
    from trainyard.training.data.tokenize_corpus import prepared_data_of

    try:
        return prepared_data_of(directory.config_file)
    except OSError as error:  # the folder may belong to another user
        output.print_remarks([f"The prepared data were not compared: {error}"])
        return None, None


def save(record: Mapping[str, Any], directory: RunDirectory) -> None:
    """Write `report/proof.json`. A failure is reported and does not change the verdict."""
    path = directory.report / "proof.json"
    try:
        write_proof(path, record)
    except (OSError, ConfigError) as error:
        output.print_remarks([f"{path} was not written, so no report shows this proof: {error}"])


def report(proof: "Proof", directory: RunDirectory) -> None:
    """Show the sample and the proof; in GitHub Actions write the outputs and annotations."""
    live = terminal.on_terminal()
    facts = read_facts(directory.path)
    for phase, text in sample_lines(facts, one_line=not live, width=terminal.text_width() if live else None):
        output.announce(phase, text)
    is_inside, has_failed = bool(made_by()), facts.outcome.get("status") == "failed"
    parts = () if is_inside and has_failed else proof.parts  # the last lines say why it failed
    lines = proof_lines(parts, one_line=not live, closing_follows=is_inside)
    for phase, text, status in lines:
        output.announce(phase, text, status, copied=is_copied(phase, text))
    set_outputs({**proof.outputs, "step": str(facts.step or 0)})
    for part in proof.failing[: 1 if has_failed else None]:
        annotate(Level.ERROR, f"{part.evidence}\nNext: {part.next_step}", title=f"Not proven: {part.name}")
