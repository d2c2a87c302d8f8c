"""Choose the directory that a start trains in: the one that is meant, or a new one beside it.

    run.json, config.yaml ──> inputs on record ──┐
    configuration, git, lock, data ──> inputs now ┴──> run.situation ──> this directory, one beside, refusal

A new run beside runs/a is runs/a-2, then runs/a-3, so that the same command, given again, finds the run that
it began. Only `claim_run_number` writes: the claim of the run's number and of its next attempt, in the store
and in the directory, before the run trains.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.run_numbers import (
    Claim,
    begin_attempt,
    claim_run,
    newest_attempt,
    stored_claim,
)
from trainyard.artifacts.restore.resume_source import newest_step_here
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.config.load import load_config
from trainyard.errors import ConfigError, RunConflictError, TrainyardError
from trainyard.gateways.git import git_facts
from trainyard.gateways.images.image_record import code_facts
from trainyard.program_training import ProgramOrder, differences_of_program
from trainyard.programs.run_checkpoints import taken_points
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import is_complete
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import RunIdentity, begin_identity, identity_in, keep_identity, read_run
from trainyard.run.run_advice import other_inputs
from trainyard.run.situation import Answer, Recorded, Situation, decide, recorded_run
from trainyard.training.data.config_of_run import config_of_run, differences_from_run

_MOST_BESIDE = 1000


@dataclass(frozen=True)
class Choice:
    """The directory that a start trains in."""

    run_dir: Path
    number: int = 1
    """1: the directory that was meant; above: a new run beside it."""
    parent: Path | None = None
    """The checkpoint that a new run beside begins from; None: step 0."""
    differences: tuple[str, ...] = ()
    """How the inputs differ from those of the run in the directory that was meant."""


def differences_of(order: ProgramOrder) -> tuple[str, ...]:
    """Return how the inputs of a start differ from those of the run in its directory, a text each."""
    assert order.run_dir is not None
    config = load_config(order.config, order.changes).config
    if config.is_program:
        return differences_of_program(order)
    from trainyard.training.data.tokenize_corpus import prepared_data_of  # imports numpy

    directory = RunDirectory(order.run_dir)
    run = read_run(directory.run_file)
    with suppress(TrainyardError, OSError):  # values that are open in the configuration are those of the run
        config = config_of_run(order.config, order.changes, order.run_dir)
    recorded = (run.get("data") or {}).get("fingerprint")
    return differences_from_run(
        directory,
        config,
        trainer_facts(),
        data=prepared_data_of(directory.config_file)[0] or recorded,
    )


def trainer_facts() -> dict[str, Any]:
    """Return the commit, the state of the tree and the lock of the trainer of this repository."""
    lock = REPOSITORY_ROOT / "requirements-training.txt"
    return {
        "git": git_facts(REPOSITORY_ROOT) or code_facts(REPOSITORY_ROOT),
        "lock_sha256": sha256_of_file(lock) if lock.is_file() else None,
    }


def choose_directory(
    run_dir: Path,
    order_for: Callable[[Path], ProgramOrder],
    *,
    is_fixed: bool,
    takes_parent: bool,
    starts_anew: bool = False,
    on_found: Callable[[Path], None] = lambda _: None,
) -> Choice:
    """Return where a start trains. Raises ConfigError if a finished run with other inputs is in its way.

    `is_fixed`: the folder or the id was named. `takes_parent`: a new run beside begins from the newest
    checkpoint of the one that is here. `starts_anew`: a new run is wanted. `on_found` is called with each
    directory that holds a run, and may raise.
    """
    choice, parents = Choice(run_dir), set[Path]()
    for number in range(1, _MOST_BESIDE):
        here = run_dir if number == 1 else run_dir.with_name(f"{run_dir.name}-{number}")
        directory = RunDirectory(here)
        choice = replace(choice, run_dir=here, number=number)
        if not directory.run_file.is_file():
            return choice
        on_found(here)
        run = read_run(directory.run_file)
        found = differences_of(order_for(here))
        if starts_anew:
            found = (*found, f"--resume none: a new run is wanted, and {here} holds one")
        answer = decide(Situation(recorded_run(run), found, is_fixed=is_fixed and number == 1))
        if answer is Answer.REFUSE:
            raise other_inputs(directory, found)
        if answer is not Answer.BESIDE:
            recorded = () if directory.checkpoint_steps() else _places_of_parent(run)
            kept = (each for each in recorded if is_complete(each))
            return replace(choice, parent=next(kept, None))
        if number == 1:
            choice = replace(choice, differences=found)
        if number == 1 or parents & _places_of_parent(run):
            if takes_parent and (step := _newest_without_nan(directory)) is not None:
                choice = replace(choice, parent=directory.checkpoint(step))
            parents.add(directory.checkpoints.absolute())
    raise ConfigError(f"{run_dir}: {_MOST_BESIDE} runs are beside it. Name another --run-dir.")


def _newest_without_nan(directory: RunDirectory) -> int | None:
    """Return the newest step whose checkpoint verifies, and has no NaN in a program's tensors; None without.

    Training does not recover from NaN, so a new run begins at step 0 rather than there.
    """
    newest = newest_step_here(directory)
    points = list(taken_points(directory)) if newest is not None else []
    if newest not in {each.step for each in points if each.has_nan}:
        return newest
    good = next((each.step for each in points if not each.has_nan), None)
    place = "at step 0" if good is None else f"from the one of step {good:,}"
    output.print_remarks(
        [f"The checkpoint of step {newest} has NaN in its tensors: the new run begins {place}."]
    )
    return good


def _places_of_parent(run: Mapping[str, Any]) -> set[Path]:
    """Return the path of the parent's checkpoint, which may be a file of it, and all folders above."""
    path = Path(str((run.get("parent") or {}).get("checkpoint", ""))).absolute()
    return {path, *path.parents} if run.get("parent") else set()


def claim_run_number(
    run_dir: Path, *, store: str, run_number: int | None, run_id: str | None, may_adopt: bool
) -> RunIdentity:
    """Claim the run's number and its next attempt in the store, and keep them in the directory.

    A run that has ended with success keeps its attempt. `may_adopt`: this may be a start of the run that the
    store has under this id, though this machine has nothing of it. Raises ConfigError if the id or the number
    belongs to another run, or if another start has taken the attempt.
    """
    directory, place = RunDirectory(run_dir), open_store(store)
    found, named = identity_in(run_dir), run_id or run_dir.name
    stored = stored_claim(place, found.run_id if found else named)
    recorded = recorded_run(read_run(directory.run_file)) if directory.run_file.is_file() else None
    is_known = found is not None and bool(found.key)
    here = recorded or (Recorded(found.run_id, found.key) if found and is_known else None)
    stored_key = None if stored is None else stored.key
    answer = decide(Situation(here, (), stored_key, may_adopt=may_adopt))
    identity = begin_identity(run_dir, named)
    if answer is Answer.ADOPT and stored is not None:
        identity = replace(identity, run_id=stored.run_id, key=stored.key)
    elif answer is Answer.DONE:
        identity = replace(identity, attempt=found.attempt if found else 1)
    try:
        if stored is not None and stored.key == identity.key and answer is not Answer.DONE:
            newest = newest_attempt(place, stored.number)
            if found is not None and newest > found.attempt and not may_adopt:
                raise _continued_elsewhere(run_dir, stored, newest)
            identity = replace(identity, attempt=max(identity.attempt, newest + 1))
        claim = claim_run(
            place,
            run_id=identity.run_id,
            key=identity.key,
            wanted=run_number,
            attempt=identity.attempt,
        )
        if identity.attempt > 1 and answer is not Answer.DONE:
            begin_attempt(place, claim, identity.attempt)
    except RunConflictError as error:
        raise ConfigError(str(error)) from None
    identity = replace(identity, stored_as={**identity.stored_as, place.url: claim.number})
    if answer is not Answer.DONE:
        keep_identity(run_dir, identity)
    attempt = f", attempt {identity.attempt}" if identity.attempt > 1 else ""
    output.announce("claim", f"run {claim.number} of {place.url} is {identity.run_id}{attempt}", "ok")
    return identity


def _continued_elsewhere(run_dir: Path, stored: Claim, newest: int) -> ConfigError:
    return ConfigError(
        f"{run_dir} is run {stored.number} of the store, which was continued elsewhere since: its attempt "
        f"{newest} has started. To continue from what that one stored, give --resume auto; it then stores "
        "nothing more. Nothing was started."
    )


def require_same_inputs(order: ProgramOrder) -> None:
    """Raise ConfigError if the run that was fetched from the store had other inputs than this start."""
    assert order.run_dir is not None
    if found := differences_of(order):
        raise other_inputs(RunDirectory(order.run_dir), found)
