"""Prove a run: it trained and learned, its network is known, it is stored, and it can be repeated.

Reads:   --run-dir; --store, else artifacts.store of the run's config.yaml, else the store of its last
         proof; the store itself; AWS_*; the registry of the image that the run was trained in.
Writes:  report/proof.json in the run directory, unless --dry-run; --json prints the same; in GitHub Actions
         the step outputs `proven`, `stored` and `step`, and an annotation for each part that does not hold.
Exit codes: 0 all five parts hold (with --only: those that it names); 1 one does not, named with the next
         step; 2 no such run directory, or no such kind of store; 4 the store could not be read, and all
         else holds.
Example: trainyard prove --run-dir runs/20261120-214501-7c1f --store s3://ml-runs --run-number 812
"""

import argparse
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.promotion import read_promotion
from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.evaluations import read_evaluations
from trainyard.artifacts.record.run_numbers import parse_run_number, used_numbers
from trainyard.artifacts.restore.checkpoint_fetch import checkpoint_at_hand
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import parse_selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.store.store_settings import store_settings
from trainyard.artifacts.verify.inspection import Inspection, inspect_run
from trainyard.artifacts.verify.verify import Depth
from trainyard.command import arguments, output, terminal
from trainyard.command.parser import script_parser
from trainyard.errors import (
    CheckpointError,
    ConfigError,
    ExitCode,
    ServiceError,
    TrainyardError,
    VerificationError,
)
from trainyard.gateways.github import Level, annotate, set_outputs
from trainyard.gateways.images.held_image import find_held_image
from trainyard.programs.inputs import read_data
from trainyard.proof import PARTS
from trainyard.proof.gates import ComparedRun, evaluated_figures
from trainyard.proof.proof import Configuration, ProofPlace, Recomputed, prove
from trainyard.proof.recorded_facts import is_of_any_program, other_program
from trainyard.report.facts.proof_record import proven_store, write_proof
from trainyard.report.facts.resolved_config import config_digests, settings_of_config
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.terminal.closing_lines import is_copied, proof_lines, sample_lines
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import JudgedRecords
from trainyard.run.run_settings import setting
from trainyard.run.suggested_commands import made_by

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.proof.proof import Proof

# Number of the newest runs of the store among which the last green run is searched.
_NEWEST_RUNS = 20


def part_names(text: str) -> tuple[str, ...]:
    """Return the parts of the proof in `trained,stored`."""
    names = tuple(text.split(","))
    if not set(names) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"{arguments.quote(text)}: name one or more of {', '.join(PARTS)}")
    return names


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--run-dir", metavar="DIR", type=arguments.path, required=True, help="the run's directory"
    )
    parser.add_argument("--store", metavar="URL", help="s3://bucket/prefix or file:///folder")
    parser.add_argument("--run-number", default="auto", metavar="N|auto", help="default: auto")
    depth = "how much is read back; default: full up to 10 GB, sample above"
    parser.add_argument("--depth", choices=("listing", "sample", "full"), help=depth)
    only = "the exit code covers only these parts, such as trained,stored; default: all five"
    parser.add_argument("--only", type=part_names, default=PARTS, metavar="PARTS", help=only)
    parser.add_argument("--dry-run", action="store_true", help="report the verdict, write nothing")
    parser.add_argument("--json", action="store_true", help="print the proof as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    return prove_run(
        args.run_dir,
        store=args.store,
        run_number=parse_run_number(args.run_number),
        depth=Depth(args.depth) if args.depth else None,
        only=args.only,
        dry_run=args.dry_run,
        as_json=args.json,
    )


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
    store = store_of(run_dir, store, str(records.run["run_id"]))
    run, rows, events = records.run, records.rows(), list(records.events())
    found = inspect_store(store, str(run["run_id"]), directory=directory, number=run_number, depth=depth)
    settings = settings_of_config(records.config)
    proof = prove(
        run,
        rows,
        events,
        found,
        place=ProofPlace(str(run_dir), store, found.run_number),
        configuration=Configuration(config_digests(directory.config_file), settings),
        recomputed=Recomputed(
            records.digests, *final_state(run, directory, found, store), *data(run, directory), *image(run)
        ),
        evaluations=list(records.evaluations()),
        compared=compared_run(run, store, setting(settings, "proof.learned.compare_with")),
    )
    where = {"run_number": found.run_number, "store": store, "records": records.digests()}
    record = proof.to_json(now=time.time()) | {
        key: value for key, value in where.items() if value is not None
    }
    if not dry_run:
        save(record, directory)
    report(proof, directory)
    if as_json:
        output.print_json(record)
    failing = [name for name in only if name not in proof.holding]
    if found.unreachable and failing == ["stored"]:
        return ExitCode.REFUSED
    return ExitCode.NO if failing else ExitCode.DONE


def store_of(run_dir: Path, url: str | None, run_id: str) -> str | None:
    """Return `url`, else the store of the run's configuration, else of its last proof, else None."""
    try:
        return store_settings(run_dir, url=url, encryption=None).url
    except ConfigError:
        return proven_store(RunDirectory(run_dir), run_id)


def inspect_store(
    url: str | None, run_id: str, *, directory: RunDirectory, number: int | None, depth: Depth | None
) -> Inspection:
    if url is None:
        return Inspection(number)
    with terminal.show_live(PhaseDisplay("proof", "looking up the run")) as display:
        return inspect_run(
            open_store(url), run_id, directory=directory, run_number=number, depth=depth, progress=display
        )


def compared_run(
    run: Mapping[str, Any], url: str | None, wanted: str | None, *, before: int | None = None
) -> ComparedRun | None:
    """Return the stored run that this run is compared with; None if there is none.

    `wanted` is `proof.learned.compare_with`; without it the figures of the last green run are only shown. The
    number of a last green run is below `before`.
    """
    if url is None:
        return None
    kind, _, name = (wanted or "last-green").partition(":")
    try:
        store = open_store(url)
        if kind == "run":
            return stored_run(store, int(name), f"run {name}")
        if kind == "last-green":
            return last_green_run(store, run, before=before)
        if (promotion := read_promotion(store, name)) is None:
            return None
        found = stored_run(store, promotion.run_number, f"{name} (run {promotion.run_number})")
        if not found.problem and promotion.step != found.facts["outcome"].get("steps"):
            return ComparedRun(found.name, problem=f"{name} is step {promotion.step}, not its last")
        return found
    except (TrainyardError, OSError) as error:
        output.print_remarks([f"No run is compared: {error}"])
        return ComparedRun(wanted, problem=str(error)) if wanted else None


def stored_run(store: "Store", number: int, name: str) -> ComparedRun:
    """Return the figures of a stored run, which are in its manifest and in its evaluations."""
    _, manifest, problems = newest_manifest(store, number)
    if manifest is None or problems:
        return ComparedRun(name, problem="; ".join(problems))
    facts = {**manifest.provenance, "outcome": manifest.outcome}
    settings = settings_of_config(store.read_object(f"{manifest.records_prefix}config.yaml"))
    evaluation = evaluated_figures(facts, read_evaluations(store, manifest), settings)
    return ComparedRun(name, facts, evaluation or {})


def last_green_run(
    store: "Store", run: Mapping[str, Any], *, before: int | None = None
) -> ComparedRun | None:
    """Return the newest other proven run of the same data; None if it is not among the newest runs."""
    fingerprint = run.get("data", {}).get("fingerprint")
    numbers = [number for number in used_numbers(store) if before is None or number < before]
    for number in sorted(numbers, reverse=True)[:_NEWEST_RUNS]:
        found = stored_run(store, number, f"last green run {number}")
        is_other = found.facts.get("run_id") != run["run_id"] and fingerprint is not None
        is_same = is_other and found.facts.get("data", {}).get("fingerprint") == fingerprint
        if not is_same or found.facts["outcome"].get("status") != "succeeded":
            continue
        if prove_from_store(store, number, compares=False).proven:  # else it would judge run after run
            return found
    return None


def failing_parts(store: "Store", number: int) -> tuple[str, ...]:
    """Return the parts of its proof that a stored run fails. Raises ServiceError if the store fails."""
    try:
        return tuple(part.name for part in prove_from_store(store, number).failing)
    except ServiceError:
        raise
    except TrainyardError as error:
        output.print_remarks([f"Run {number} cannot be judged: {error}"])
        return ("stored",)


def prove_from_store(store: "Store", number: int, *, compares: bool = True) -> "Proof":
    """Judge a stored run by its records there; no other object is read back."""
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "records")
        restore(store, parse_selection(store, number, "none"), directory.path)
        return prove_stored(directory, store, number, compares=compares)


def prove_stored(
    directory: RunDirectory,
    store: "Store",
    number: int,
    fingerprint: str | None = None,
    *,
    compares: bool = True,
) -> "Proof":
    """Judge a stored run whose records are in `directory`; `fingerprint` is of the data on this machine.

    With `compares` it is also judged against the run that its configuration names.
    """
    records = JudgedRecords(directory)
    run_id = str(records.run["run_id"])
    found = inspect_run(store, run_id, directory=directory, run_number=number, depth=Depth.LISTING)
    settings = settings_of_config(records.config)
    wanted = setting(settings, "proof.learned.compare_with") if compares else None
    return prove(
        records.run,
        records.rows(),
        list(records.events()),
        found,
        place=ProofPlace(str(directory.path), store.url, number),
        configuration=Configuration(config_digests(directory.config_file), settings),
        recomputed=Recomputed(records.digests, data=fingerprint),
        evaluations=list(records.evaluations()),
        compared=compared_run(records.run, store.url, wanted, before=number) if wanted else None,
    )


def image(run: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return why the run's image cannot be pulled again (None if it can), and what its registry has."""
    if "image_digest" not in run:
        return None, ""
    return find_held_image(str(run.get("image_name", "")), str(run["image_digest"]))


def final_state(
    run: Mapping[str, Any], directory: RunDirectory, found: Inspection, store: str | None
) -> tuple[Mapping[str, str] | None, str | None]:
    """Return the digests of the tensors in the last checkpoint, or why they cannot be read.

    Both are None if not every byte of the store was read, if another trainer wrote the checkpoint, or if the
    run was stopped and recorded no digests.
    """
    verified, ended = found.verification, run.get("outcome", {})
    step = -1 if ended.get("status") == "stopped" and "state_sha256" not in ended else ended.get("steps")
    if verified is None or not verified.ok or verified.depth != Depth.FULL or step not in found.checkpoints:
        return None, None
    display = PhaseDisplay("proof")
    try:
        path, number = directory.checkpoint(step), found.run_number or 0
        there = checkpoint_at_hand(path, open_store(str(store)), number, step, progress=display)
        with terminal.show_live(display), there as checkpoint:
            return digests_of_tensors(run, checkpoint, display), None
    except (CheckpointError, VerificationError) as error:
        return None, str(error)
    except (OSError, ServiceError) as error:
        output.print_remarks([f"The tensors of the last checkpoint were not read: {error}"])
        return None, None


def digests_of_tensors(run: Mapping[str, Any], checkpoint: Path, progress: Any) -> dict[str, str] | None:
    """Return the digest of each part of the state.

    None for a checkpoint of another trainer: one that recorded no digests, or has a form of its own.
    """
    claims, index = "state_sha256" in run.get("outcome", {}), checkpoint / ".metadata"
    if (other_program(run) and not claims) or ("version" not in run and not index.exists()):
        return None
    progress.begin("importing torch")
    from trainyard.training.checkpoint.stored_state import state_digests

    return state_digests(checkpoint, progress)


def data(run: Mapping[str, Any], directory: RunDirectory) -> tuple[str | None, str | None]:
    """Return the fingerprint of the run's data, and how they changed; None if they are not here."""
    if is_of_any_program(run):
        return data_of_program(run["program"]), None
    from trainyard.training.data.tokenize_corpus import prepared_data_of

    try:
        return prepared_data_of(directory.config_file)
    except OSError as error:  # the folder may belong to another user
        output.print_remarks([f"The prepared data were not compared: {error}"])
        return None, None


def data_of_program(program: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of the files that a program reads; None if they are not on this machine."""
    directory, patterns = program.get("directory"), program.get("data")
    if not isinstance(directory, str) or not isinstance(patterns, list) or not Path(directory).is_dir():
        return None
    try:
        return read_data(Path(directory), [str(pattern) for pattern in patterns]).fingerprint
    except (OSError, ConfigError):
        return None


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
    for phase, text, status in proof_lines(proof.parts, one_line=not live, closing_follows=bool(made_by())):
        output.announce(phase, text, status, copied=is_copied(phase, text))
    set_outputs({**proof.outputs, "step": str(facts.step or 0)})
    for part in proof.failing:
        annotate(Level.ERROR, f"{part.evidence}\nNext: {part.next_step}", title=f"Not proven: {part.name}")
