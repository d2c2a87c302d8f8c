"""Write metrics to TensorBoard and Weights & Biases, from the same rows as `metrics.jsonl`.

A tracker that cannot start or fails is dropped with a warning; it never ends a training run.
"""

import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainyard.config.keys import leaf_keys
from trainyard.config.schema import Config, MonitoringConfig
from trainyard.run.directory import RunDirectory
from trainyard.run.prometheus_text import row_samples, write_prometheus_file

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_logger = logging.getLogger(__name__)
_NOT_PLOTTED = {"step", "time", "skipped"}
# Patterns of figures, and their tags in TensorBoard; the others are in the group `train/`.
_GROUPS = (
    (re.compile(r"val_(.*)"), r"validation/\1"),
    (re.compile(r"(.*_seconds)"), r"time/\1"),
    (re.compile(r"(.*_per_second|mfu|.*memory.*_bytes|gpu_.*)"), r"perf/\1"),
)
# The sections of the configuration that affect the result, by which W&B compares runs.
_COMPARED = ("model.", "training.", "data.", "compute.")
_CLOSING = "closing trackers"
Scalar = bool | int | float | str


class Tracker(Protocol):
    """Shows rows of metrics to people."""

    def write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker shows."""

    config: MonitoringConfig
    directory: RunDirectory
    run_id: str
    resumed_at: int
    """The last step before this segment, 0 at the start of the run."""
    hyperparameters: Mapping[str, Scalar]


class TensorBoardTracker:
    """Event files under `tensorboard/`, without rows of a killed run after the step that it resumed from."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._writer: SummaryWriter | None = None

    def write(self, row: dict[str, Any]) -> None:
        """Write a row. The first one opens the file, so that importing TensorBoard does not delay step 1."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            folder, resumed_at = self._run.directory.tensorboard, self._run.resumed_at
            self._writer = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None)
        for name in row.keys() - _NOT_PLOTTED:
            self._writer.add_scalar(tag_of(name), row[name], global_step=row["step"], walltime=row["time"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def tag_of(name: str) -> str:
    """The tag of a figure in TensorBoard, which shows the tags with the same first word together."""
    found = (group.sub(tag, name) for group, tag in _GROUPS if group.fullmatch(name))
    return next(found, f"train/{name}")


class WandbTracker:
    """A W&B run with the same id; without WANDB_API_KEY it is written offline into the run directory."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=run.config.wandb.project,
            entity=run.config.wandb.entity,
            dir=str(run.directory.logs),
            id=run.run_id,
            name=run.run_id,
            config=dict(run.hyperparameters),
            allow_val_change=True,  # a run can resume with another configuration
            resume="allow" if mode == "online" else None,
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=60,
                # Without a limit it may wait for an upload forever; `wandb sync` can send the rest later.
                finish_timeout=60,
                finish_timeout_raises=True,
            ),
        )

    def write(self, row: dict[str, Any]) -> None:
        self._run.log({name: row[name] for name in row.keys() - _NOT_PLOTTED}, step=row["step"])

    def close(self) -> None:
        self._run.finish()


class PrometheusTracker:
    """A text file with the figures of the last row, for node_exporter."""

    def __init__(self, run: TrackedRun) -> None:
        self._path, self._run_id = Path(str(run.config.prometheus_file)), run.run_id

    def write(self, row: dict[str, Any]) -> None:
        write_prometheus_file(self._path, row_samples(row, self._run_id))

    def close(self) -> None:
        """Keep the file: the time of its row shows how old the figures are."""


class GuardedTracker:
    """A tracker that is dropped, with one warning, when it cannot start or fails."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Tracker],
        failures: Callable[[], tuple[type[Exception], ...]] = tuple,
    ) -> None:
        """`failures` returns the errors of the tracker's own library; system errors are always caught."""
        self._name, self._failures = name, failures
        self._tracker: Tracker | None = None
        with self._drop_on_failure(ValueError):  # settings that W&B refuses
            self._tracker = start()

    def write(self, row: dict[str, Any]) -> None:
        with self._drop_on_failure():
            if self._tracker is not None:
                self._tracker.write(row)

    def close(self) -> None:
        with self._drop_on_failure():
            if self._tracker is not None:
                self._tracker.close()

    def _expected_errors(self, *others: type[Exception]) -> tuple[type[Exception], ...]:
        return (OSError, ImportError, *self._failures(), *others)

    @contextmanager
    def _drop_on_failure(self, *others: type[Exception]) -> Iterator[None]:
        try:
            yield
        except self._expected_errors(*others) as error:
            self._tracker = None
            _logger.warning("%s failed (%s); training continues without it", self._name, error)


def _wandb_failures() -> tuple[type[Exception], ...]:
    if "wandb" not in sys.modules:
        return ()
    import wandb
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return wandb.Error, HandleAbandonedError, MailboxClosedError


def open_trackers(run: TrackedRun) -> list[Tracker]:
    """Open the configured trackers."""
    opened: list[Tracker] = []
    if run.config.tensorboard:
        opened.append(GuardedTracker("TensorBoard", lambda: TensorBoardTracker(run)))
    if run.config.prometheus_file is not None:
        opened.append(GuardedTracker("Prometheus", lambda: PrometheusTracker(run)))
    if run.config.wandb.enabled:
        opened.append(GuardedTracker("W&B", lambda: WandbTracker(run), _wandb_failures))
    return opened


def hyperparameters_of(config: Config) -> dict[str, Scalar]:
    """The hyperparameters of a run: every value of the sections in `_COMPARED`, by dotted key."""
    values = ((key, attrgetter(key)(config)) for key in leaf_keys() if key.startswith(_COMPARED))
    return {key: value for key, value in values if isinstance(value, bool | int | float | str)}


def close_trackers(trackers: Sequence[Tracker], *, seconds: float = math.inf) -> None:
    """Close the trackers, for at most `seconds`: what is left of a grace period.

    They are then left as they are (`is_still_closing`): W&B keeps the unsent data in its folder.
    """

    def close() -> None:
        for tracker in trackers:
            tracker.close()

    if math.isinf(seconds):
        close()
        return
    closing = threading.Thread(target=close, name=_CLOSING, daemon=True)
    closing.start()
    closing.join(max(0.0, seconds))
    if closing.is_alive():
        _logger.warning("the trackers were not closed within the grace period; `wandb sync` sends the rest")


def is_still_closing() -> bool:
    """Return whether a tracker was given up before it was closed.

    It would delay the end of the interpreter.
    """
    return any(thread.name == _CLOSING for thread in threading.enumerate())
