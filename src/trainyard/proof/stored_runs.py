"""Read the records of a run, here or in a store, and judge them: for its proof and that of an earlier run.

    directory, store ──> JudgedRecords, Inspection, ComparedRun ──> proof.prove

The run that `proof.learned.compare_with` names, else the last green run, is found here. This module reads
directories and stores; all others of the room are pure.
"""

import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.promotion import read_promotion
from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.evaluations import read_evaluations
from trainyard.artifacts.record.run_numbers import used_numbers
from trainyard.artifacts.restore.restore import checkpoint_at_hand, restore
from trainyard.artifacts.restore.selection import parse_selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.verify.inspection import Inspection, inspect_run
from trainyard.artifacts.verify.verify import Depth
from trainyard.config.load import values_sha256
from trainyard.config.registries import is_program_run
from trainyard.errors import CheckpointError, ServiceError, TrainyardError, VerificationError
from trainyard.proof.gates import ComparedRun, evaluated_figures
from trainyard.proof.proof import Configuration, Proof, ProofPlace, Recomputed, prove
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import JudgedRecords
from trainyard.run.progress import Progress
from trainyard.run.run_settings import setting, settings_of_config

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store

# Number of the newest runs of the store among which the last green run is searched.
_NEWEST_RUNS = 20
_logger = logging.getLogger(__name__)


def judge_records(
    records: JudgedRecords,
    found: Inspection,
    *,
    place: ProofPlace,
    recomputed: Recomputed,
    compared: ComparedRun | None,
) -> Proof:
    """Judge a run by its records and by what was found in the store."""
    return prove(
        records.run,
        records.rows(),
        list(records.events()),
        found,
        place=place,
        configuration=Configuration(config_digests(records.config), settings_of_config(records.config)),
        recomputed=recomputed,
        evaluations=list(records.evaluations()),
        compared=compared,
    )


def config_digests(content: bytes | None) -> frozenset[str]:
    """Return the SHA-256 of a `config.yaml`'s values and of its bytes; a record may hold either."""
    if content is None:
        return frozenset()
    digests = {hashlib.sha256(content).hexdigest()}
    with suppress(TypeError, ValueError):
        digests.add(values_sha256(settings_of_config(content)))
    return frozenset(digests)


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
            return read_stored_run(store, int(name), f"run {name}")
        if kind == "last-green":
            return _last_green_run(store, run, before=before)
        if (promotion := read_promotion(store, name)) is None:
            return None
        found = read_stored_run(store, promotion.run_number, f"{name} (run {promotion.run_number})")
        if not found.problem and promotion.step != found.facts["outcome"].get("steps"):
            return ComparedRun(found.name, problem=f"{name} is step {promotion.step}, not its last")
        return found
    except (TrainyardError, OSError) as error:
        _logger.warning("No run is compared: %s", error)
        return ComparedRun(wanted, problem=str(error)) if wanted else None


def read_stored_run(store: "Store", number: int, name: str) -> ComparedRun:
    """Return the figures of a stored run, which are in its manifest and in its evaluations."""
    _, manifest, problems = newest_manifest(store, number)
    if manifest is None or problems:
        return ComparedRun(name, problem="; ".join(problems))
    facts = {**manifest.provenance, "outcome": manifest.outcome}
    settings = settings_of_config(store.read_object(f"{manifest.records_prefix}config.yaml"))
    evaluation = evaluated_figures(facts, read_evaluations(store, manifest), settings)
    return ComparedRun(name, facts, evaluation or {})


def _last_green_run(store: "Store", run: Mapping[str, Any], *, before: int | None) -> ComparedRun | None:
    """Return the newest other proven run of the same data; None if it is not among the newest runs."""
    inputs = compared_inputs(run)
    numbers = [number for number in used_numbers(store) if before is None or number < before]
    for number in sorted(numbers, reverse=True)[:_NEWEST_RUNS]:
        found = read_stored_run(store, number, f"last green run {number}")
        is_same = found.facts.get("run_id") != run["run_id"] and compared_inputs(found.facts) == inputs
        if None in inputs or not is_same or found.facts["outcome"].get("status") != "succeeded":
            continue
        if prove_from_store(store, number, compares=False).proven:  # else it would judge run after run
            return found
    return None


def compared_inputs(run: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what compared runs have in common: the data; without any file of it, the command."""
    data = run.get("data", {})
    return data.get("fingerprint"), run.get("program_sha256") if data.get("files") == 0 else ""


def failing_parts(store: "Store", number: int) -> tuple[str, ...]:
    """Return the parts of its proof that a stored run fails. Raises ServiceError if the store fails."""
    try:
        return tuple(part.name for part in prove_from_store(store, number).failing)
    except ServiceError:
        raise
    except TrainyardError as error:
        _logger.warning("Run %d cannot be judged: %s", number, error)
        return ("stored",)


def prove_from_store(store: "Store", number: int, *, compares: bool = True) -> Proof:
    """Judge a stored run by its records there; no other object is read back."""
    with restored_records(store, number) as directory:
        return prove_stored(directory, store, number, compares=compares)


@contextmanager
def restored_records(store: "Store", number: int) -> Iterator[RunDirectory]:
    """Yield a directory with the records of a stored run, without its checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "records")
        restore(store, parse_selection(store, number, "none"), directory.path)
        yield directory


def prove_stored(
    directory: RunDirectory,
    store: "Store",
    number: int,
    fingerprint: str | None = None,
    *,
    compares: bool = True,
) -> Proof:
    """Judge a stored run whose records are in `directory`; `fingerprint` is of the data on this machine.

    With `compares` it is also judged against the run that its configuration names.
    """
    records = JudgedRecords(directory)
    run_id = str(records.run["run_id"])
    found = inspect_run(store, run_id, directory=directory, run_number=number, depth=Depth.LISTING)
    settings = settings_of_config(records.config)
    wanted = setting(settings, "proof.learned.compare_with") if compares else None
    return judge_records(
        records,
        found,
        place=ProofPlace(str(directory.path), store.url, number),
        recomputed=Recomputed(records.digests, data=fingerprint),
        compared=compared_run(records.run, store.url, wanted, before=number) if wanted else None,
    )


def final_state(
    run: Mapping[str, Any],
    directory: RunDirectory,
    found: Inspection,
    store: str | None,
    *,
    read_digests: Callable[[Path, Progress], dict[str, str]],
    progress: Progress,
) -> tuple[Mapping[str, str] | None, str | None]:
    """Return the digests of the tensors in the last checkpoint, or why they cannot be read.

    Both are None if not every byte of the store was read, if another trainer wrote the checkpoint, or if the
    run was stopped and recorded no digests. `read_digests` is the trainer's, which imports torch.
    """
    verified, ended = found.verification, run.get("outcome", {})
    step = -1 if ended.get("status") == "stopped" and "state_sha256" not in ended else ended.get("steps")
    if verified is None or not verified.ok or verified.depth != Depth.FULL or step not in found.checkpoints:
        return None, None
    path, number = directory.checkpoint(step), found.run_number or 0
    try:
        with checkpoint_at_hand(path, open_store(str(store)), number, step, progress=progress) as checkpoint:
            is_other = is_program_run(run) and "state_sha256" not in ended
            has_own_form = "version" not in run and not (checkpoint / ".metadata").exists()
            return None if is_other or has_own_form else read_digests(checkpoint, progress), None
    except (CheckpointError, VerificationError) as error:
        return None, str(error)
    except (OSError, TrainyardError) as error:  # no answer of the store, or no room on the disk
        _logger.warning("The tensors of the last checkpoint were not read: %s", error)
        return None, None
