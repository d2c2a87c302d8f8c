"""TensorBoard and Weights & Biases, fed from the same rows as `metrics.jsonl`.

A tracker that cannot start or fails warns and is dropped; it never ends a training run.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trainyard.config.schema import MonitoringConfig, WandbConfig
from trainyard.run.directory import RunDirectory

_logger = logging.getLogger(__name__)
_NOT_PLOTTED = {"step", "time"}


class Tracker(Protocol):
    """Something that shows rows to people."""

    def write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Event files under `tensorboard/`; rows after `resumed_at`, left by a killed run, are hidden."""

    def __init__(self, path: Path, resumed_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = resumed_at + 1 if resumed_at else None
        self._writer = SummaryWriter(str(path), purge_step=purge)

    def write(self, row: dict[str, Any]) -> None:
        for name in row.keys() - _NOT_PLOTTED:
            self._writer.add_scalar(name, row[name], global_step=row["step"], walltime=row["time"])

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A W&B run of the same id; offline, into the run directory, without WANDB_API_KEY."""

    def __init__(self, config: WandbConfig, directory: RunDirectory, run_id: str) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            dir=str(directory.logs),
            id=run_id,
            name=run_id,
            resume="allow" if mode == "online" else None,
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(silent=True, console="off", init_timeout=60),
        )

    def write(self, row: dict[str, Any]) -> None:
        self._run.log({name: row[name] for name in row.keys() - _NOT_PLOTTED}, step=row["step"])

    def close(self) -> None:
        self._run.finish()


def open_trackers(
    config: MonitoringConfig, directory: RunDirectory, *, run_id: str, resumed_at: int
) -> list[Tracker]:
    """The trackers that the configuration asks for and that could be started."""
    trackers: list[Tracker] = []
    if config.tensorboard:
        trackers.append(TensorBoardTracker(directory.tensorboard, resumed_at))
    if config.wandb.enabled and (tracker := _start_wandb(config.wandb, directory, run_id)):
        trackers.append(tracker)
    return trackers


def _start_wandb(config: WandbConfig, directory: RunDirectory, run_id: str) -> Tracker | None:
    import wandb

    try:
        return WandbTracker(config, directory, run_id)
    except (wandb.Error, OSError) as error:
        _logger.warning("W&B could not be started (%s); training goes on without it", error)
        return None


def close_trackers(trackers: Sequence[Tracker]) -> None:
    for tracker in trackers:
        tracker.close()
