"""TensorBoard and Weights & Biases, fed from the same rows as `metrics.jsonl`.

A tracker that cannot start or fails warns and is dropped; it never ends a training run.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainyard.config.schema import MonitoringConfig, WandbConfig
from trainyard.run.directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_logger = logging.getLogger(__name__)
_NOT_PLOTTED = {"step", "time"}


class Tracker(Protocol):
    """Something that shows rows to people."""

    def write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Event files under `tensorboard/`; rows after `resumed_at`, left by a killed run, are hidden."""

    def __init__(self, path: Path, resumed_at: int) -> None:
        self._path, self._purge = path, resumed_at + 1 if resumed_at else None
        self._writer: SummaryWriter | None = None

    def write(self, row: dict[str, Any]) -> None:
        """The first row opens the file: importing TensorBoard would hold up the first step."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._path), purge_step=self._purge)
        for name in row.keys() - _NOT_PLOTTED:
            self._writer.add_scalar(name, row[name], global_step=row["step"], walltime=row["time"])

    def close(self) -> None:
        if self._writer is not None:
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
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=60,
                # Without a limit it waits for an upload for ever; what is left can be sent with `wandb sync`.
                finish_timeout=60,
                finish_timeout_raises=True,
            ),
        )

    def write(self, row: dict[str, Any]) -> None:
        self._run.log({name: row[name] for name in row.keys() - _NOT_PLOTTED}, step=row["step"])

    def close(self) -> None:
        self._run.finish()


class GuardedTracker:
    """A tracker that is dropped, with one warning, when it cannot start or fails."""

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        with self._dropped_by(ImportError, ValueError):  # ValueError: settings that W&B refuses
            self._tracker = start()

    def write(self, row: dict[str, Any]) -> None:
        with self._dropped_by(ImportError):
            if self._tracker is not None:
                self._tracker.write(row)

    def close(self) -> None:
        with self._dropped_by():
            if self._tracker is not None:
                self._tracker.close()

    @contextmanager
    def _dropped_by(self, *others: type[Exception]) -> Iterator[None]:
        try:
            yield
        except (*_failures(), *others) as error:
            self._tracker = None
            _logger.warning("%s failed (%s); training goes on without it", self._name, error)


def open_trackers(
    config: MonitoringConfig, directory: RunDirectory, *, run_id: str, resumed_at: int
) -> list[Tracker]:
    """The trackers that the configuration asks for."""
    trackers: list[Tracker] = []
    if config.tensorboard:
        start = partial(TensorBoardTracker, directory.tensorboard, resumed_at)
        trackers.append(GuardedTracker("TensorBoard", start))
    if config.wandb.enabled:
        trackers.append(GuardedTracker("W&B", partial(WandbTracker, config.wandb, directory, run_id)))
    return trackers


def close_trackers(trackers: Sequence[Tracker]) -> None:
    for tracker in trackers:
        tracker.close()


def _failures() -> tuple[type[Exception], ...]:
    """What a tracker may fail with: the system's errors, and W&B's own where it is in use."""
    if "wandb" not in sys.modules:
        return (OSError,)
    import wandb
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return OSError, wandb.Error, HandleAbandonedError, MailboxClosedError
