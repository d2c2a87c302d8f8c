"""Select checkpoints of a run: all, none, one step, the newest that verifies, or a promoted one."""

from dataclasses import dataclass

from trainyard.artifacts.promotion import read_promotion
from trainyard.artifacts.record.checkpoints import Checkpoint, checkpoints_of
from trainyard.artifacts.record.manifest import RunManifest
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import ConfigError, VerificationError

NEWEST, NONE = "newest", "none"


@dataclass(frozen=True)
class Selection:
    """The requested checkpoints."""

    run_number: int
    step: int | None = None
    newest: bool = False
    none: bool = False
    """The run's records alone."""
    digest: str | None = None
    """The digest that the checkpoint must have, when it was selected by a promoted name."""


def parse_selection(store: Store, run_number: int | None, step: str | None) -> Selection:
    """Parse `--run-number` and `--step`; None means not given. Raises ConfigError for invalid ones."""
    if step is not None and not _is_number(step) and step not in (NEWEST, NONE):
        return _promoted_selection(store, run_number, step)
    if run_number is None:
        raise ConfigError("--run-number is missing. Give a number, or --step with a promoted name.")
    if step in (None, NEWEST, NONE):
        return Selection(run_number, newest=step == NEWEST, none=step == NONE)
    return Selection(run_number, int(step))


def select_checkpoints(manifest: RunManifest, selection: Selection) -> list[Checkpoint]:
    """Return the selected checkpoints, newest first. Raises VerificationError for a step without one."""
    if selection.none:
        return []
    found = checkpoints_of(manifest)
    if selection.newest:
        return [checkpoint for checkpoint in found if checkpoint.step is not None]
    if selection.step is None:
        return found
    match = [checkpoint for checkpoint in found if checkpoint.step == selection.step]
    if not match:
        steps = ", ".join(str(each.step) for each in reversed(found) if each.step is not None) or "none"
        pruned = any(each.step == selection.step for each in manifest.pruned)
        gone = "retention has removed it" if pruned else "the manifest lists no such checkpoint"
        raise VerificationError(
            f"run {manifest.run_number} has no checkpoint of step {selection.step}: {gone}. Steps: {steps}."
        )
    if selection.digest not in (None, match[0].digest):
        raise VerificationError(
            f"{match[0].prefix}: stored again since its promotion: its digest is {match[0].digest[:12]}…, "
            f"{str(selection.digest)[:12]}… was promoted. Promote it again, or give its run number and step"
        )
    return match


def _promoted_selection(store: Store, run_number: int | None, name: str) -> Selection:
    promotion = read_promotion(store, name)
    if promotion is None:
        raise ConfigError(f"--step {name}: neither a step, nor newest, nor a name that was promoted")
    if run_number not in (None, promotion.run_number):
        raise ConfigError(
            f"--step {name}: the name belongs to step {promotion.step} of run {promotion.run_number}, "
            f"not to a checkpoint of run {run_number}. Omit --run-number to restore that step."
        )
    return Selection(promotion.run_number, promotion.step, digest=promotion.digest)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
