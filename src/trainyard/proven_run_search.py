"""Find a proven run of the same commit, configuration and data in the store.

The newest runs of the store are read. A run counts only if it succeeded, was trained by the commit that is
checked out here, without changes, with this configuration and with the data that are prepared here, and if
the proof of its stored records and objects holds now. Whatever cannot be compared does not count: a dirty
tree, weights (`model.path`), streamed data, a run that started from a checkpoint, a store that refuses.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.run_numbers import used_numbers
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import output, terminal
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.config.load import config_sha256
from trainyard.config.registries import is_program_run
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import ServiceError, TrainyardError
from trainyard.gateways.git import git_facts, repository_facts
from trainyard.gateways.github import Level, annotate, append_summary, in_actions, workflow_file
from trainyard.programs.inputs import fingerprint_of_data
from trainyard.proof.stored_runs import prove_stored, restored_records
from trainyard.report.dashboard.markdown import fence_code
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.training.data.config_of_run import with_values_of_run
from trainyard.training.weights.pretrained import load_with_weights

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.config.schema import Config

# The newest runs of the store whose manifests are read.
RUNS = 50


def find_proven_run(
    file: Path, changes: Sequence[str] = (), *, store: str
) -> tuple[int | None, str, tuple[str, ...]]:
    """Find a proven run that is the same, report it, and return its number, or why not, and its evidence.

    In a step of GitHub there is a notice and a part of the job summary for such a run.
    """
    config = load_with_weights(file, changes).config
    git = repository_facts(Path.cwd()) if config.is_program else git_facts(REPOSITORY_ROOT)
    there, number, evidence = open_store(store), None, tuple[str, ...]()
    why_not = incomparable(config, git)
    if not why_not:
        why_not = f"the store has no proven run of commit {str(git['commit'])[:12]}, this config and data"
        try:
            with terminal.show_live(PhaseDisplay("proven before", "reading the newest manifests")):
                number, evidence = find_run(config, str(git["commit"]), there)
        except (TrainyardError, OSError) as error:
            why_not = f"the store could not be searched: {error}"
    if number is None:
        output.announce("proven before", f"no: {why_not}")
    else:
        report(number, evidence, store=store, config=file, changes=changes)
    return number, "" if number else why_not, evidence


def incomparable(config: "Config", git: Mapping[str, Any]) -> str:
    """Return why no earlier run can be shown to be the same; empty if one can."""
    if git.get("dirty") is not False or not git.get("commit"):
        return "the working tree has changes, or no commit"
    if config.model.path is not None:
        return "it starts from weights, which are not compared"
    return ""


def find_run(config: "Config", commit: str, store: "Store") -> tuple[int | None, tuple[str, ...]]:
    """Return the newest run of the last `RUNS` that is the same and proven, and its evidence; else None.

    Raises ServiceError when the store cannot be reached.
    """
    for number in sorted(used_numbers(store), reverse=True)[:RUNS]:
        _, manifest, problems = newest_manifest(store, number)
        if manifest is None or problems or manifest.outcome.get("status") != "succeeded":
            continue
        git = manifest.provenance.get("git")
        if not isinstance(git, Mapping) or (git.get("commit"), git.get("dirty")) != (commit, False):
            continue
        try:
            with restored_records(store, number) as directory:
                evidence = judge(directory, store, number, config)
        except ServiceError:
            raise
        except TrainyardError as error:
            output.print_remarks([f"Run {number} is not counted: {error}"])
            continue
        if evidence:
            return number, evidence
    return None, ()


def judge(directory: RunDirectory, store: "Store", number: int, config: "Config") -> tuple[str, ...]:
    """Return the evidence of each part of a run's proof if the run is the same and proven; else nothing.

    `directory` has the records of the run.
    """
    from trainyard.training.data.tokenize_corpus import prepared_data_of

    run = read_run(directory.run_file)
    if is_program_run(run):
        fingerprint, problem = fingerprint_of_data(run.get("program", {})), None
    else:
        fingerprint, problem = prepared_data_of(directory.config_file)
    # A run records values that its configuration left open, such as how validation data is held out.
    digests = {config_sha256(config), config_sha256(with_values_of_run(config, directory.path))}
    is_same = (
        run.get("config_sha256") in digests
        and fingerprint is not None
        and problem is None
        and fingerprint == run.get("data", {}).get("fingerprint")
        and "parent" not in run
        and "image_digest" not in run
    )
    if not is_same:
        return ()
    proof = prove_stored(directory, store, number, fingerprint)
    if not proof.proven:
        output.print_remarks([f"Run {number} is not proven: {each.evidence}" for each in proof.failing])
        return ()
    return tuple(f"{part.name}: {part.evidence}" for part in proof.parts)


def report(number: int, evidence: Sequence[str], *, store: str, config: Path, changes: Sequence[str]) -> None:
    """Show the proven run, and the command that trains anyway."""
    again = f"gh workflow run {workflow_file()} -f config={shlex.quote(str(config))}"
    overrides = SecretFilter().mask_under("", " ".join(changes))
    again += f" -f set={shlex.quote(overrides)}" if changes else ""
    text = f"run {number} in {store} is proven, of the same commit, configuration and data"
    output.announce("proven before", text, "ok")
    for line in evidence:
        output.announce("proven before", line)
    if in_actions():
        annotate(Level.NOTICE, f"Nothing was trained: {text}. To train anyway: {again}")
    parts = [f"### Not trained again: {text}", "\n".join(f"- {line}" for line in evidence)]
    append_summary("\n\n".join([*parts, "To train anyway:", fence_code(again)]) + "\n")
