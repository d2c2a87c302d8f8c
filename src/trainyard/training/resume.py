"""What a run goes on from: nothing, the newest checkpoint that verifies, or the one that was named."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.checkpoints import MANIFEST_NAME, verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.files import sha256_of_file
from trainyard.run.records import append_event
from trainyard.training.checkpoint import check_fit, newest_good_checkpoint, read_state

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResumePoint:
    """A verified checkpoint that fits the run."""

    path: Path
    step: int
    manifest_sha256: str


def find_resume_point(directory: RunDirectory, resume: str, fits: Mapping[str, Any]) -> ResumePoint | None:
    """The checkpoint that `resume` (`none`, `auto` or a checkpoint's directory) asks for; None starts at 0.

    Nothing is written but the events of checkpoints that `auto` passes over. Raises ConfigError when the
    directory holds a run and `none` was asked for, CheckpointError when the named checkpoint does not verify,
    and IncompatibleCheckpointError when the one found does not fit.
    """
    if resume == "none":
        _require_unused(directory)
        return None
    path = _newest(directory) if resume == "auto" else _named(Path(resume))
    if path is None:
        return None
    check_fit(path, fits)
    return ResumePoint(path, int(read_state(path)["step"]), sha256_of_file(path / MANIFEST_NAME))


def _require_unused(directory: RunDirectory) -> None:
    if directory.run_file.exists() or directory.checkpoint_steps():
        raise ConfigError(
            f"{directory.path} holds a run already, and --resume none would mix a second one into it.\n"
            "Go on with it by --resume auto, or choose another --run-dir. Nothing was started."
        )


def _newest(directory: RunDirectory) -> Path | None:
    def reject(step: int, reason: str) -> None:
        _logger.warning("checkpoint of step %d passed over: %s", step, reason)
        append_event(directory.events_file, "checkpoint_rejected", step=step, reason=reason)

    return newest_good_checkpoint(directory, reject)


def _named(path: Path) -> Path:
    if not path.is_dir():
        raise ConfigError(
            f"--resume {path}: there is no such directory; name a checkpoint (…/checkpoints/step-00000500), "
            "auto or none. Nothing was started."
        )
    try:
        verify_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"--resume {path}: does not verify ({error}). Nothing was loaded; --resume auto takes the newest "
            "checkpoint that does."
        ) from error
    return path


def what_must_fit(config: Config, fingerprint: str, samples_per_step: int) -> dict[str, Any]:
    """What decides the meaning of a checkpoint: the model's shape, the data and its order."""
    shape = {f"model.architecture.{k}": v for k, v in config.model.architecture.model_dump().items()}
    return shape | {
        "data fingerprint": fingerprint,
        "data.sequence_length": config.data.sequence_length,
        "global batch (batch_size × gradient_accumulation_steps × processes)": samples_per_step,
        "training.seed": config.training.seed,
    }
