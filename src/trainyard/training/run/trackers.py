"""Write metrics to TensorBoard, Weights & Biases and Prometheus, from the same rows as `metrics.jsonl`.

A tracker that cannot start or fails is dropped with a warning; it never ends a training run.
"""

import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config.keys import leaf_keys
from trainyard.config.schema import Config
from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.training.run.run_context import RunContext, Tracker

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
# Seconds of a grace period that are left for the end of the process, once the trackers are closed.
_LEAVING_SECONDS = 3.0


class TensorBoardTracker:
    """Event files under `tensorboard/`, without rows of a killed run after the step that it resumed from."""

    def __init__(self, context: RunContext) -> None:
        self._folder, self._resumed_at = context.directory.tensorboard, context.state.step
        self._writer: SummaryWriter | None = None

    def write(self, row: dict[str, Any]) -> None:
        """Write a row. The first one opens the file, so that importing TensorBoard does not delay step 1."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            purged = self._resumed_at + 1 if self._resumed_at else None
            self._writer = SummaryWriter(str(self._folder), purge_step=purged)
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

    def __init__(self, context: RunContext) -> None:
        import wandb

        chosen = context.config.monitoring.wandb
        mode = os.environ.get("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")
        # Without a limit it may wait for an upload forever; `wandb sync` can send the rest later.
        limits = {"init_timeout": 60, "finish_timeout": 60, "finish_timeout_raises": True}
        self._run = wandb.init(
            project=chosen.project,
            entity=chosen.entity,
            dir=str(context.directory.logs),
            id=context.run_id,
            name=context.run_id,
            config=hyperparameters_of(context.config),
            allow_val_change=True,  # a run can resume with another configuration
            resume="allow" if mode == "online" else None,
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(silent=True, console="off", **limits),
        )

    def write(self, row: dict[str, Any]) -> None:
        self._run.log({name: row[name] for name in row.keys() - _NOT_PLOTTED}, step=row["step"])

    def close(self) -> None:
        self._run.finish()


class PrometheusTracker:
    """A text file with the figures of the last row, for node_exporter."""

    def __init__(self, context: RunContext) -> None:
        self._path, self._run_id = Path(str(context.config.monitoring.prometheus_file)), context.run_id

    def write(self, row: dict[str, Any]) -> None:
        write_prometheus_file(self._path, row_samples(row, self._run_id))

    def close(self) -> None:
        """Keep the file: the time of its row shows how old the figures are."""


class GuardedTracker:
    """A tracker that is dropped, with one warning, when it cannot start or fails."""

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        with self._drop_on_failure(ValueError):  # settings that W&B refuses
            self._tracker = start()

    def write(self, row: dict[str, Any]) -> None:
        if self._tracker is not None:
            with self._drop_on_failure():
                self._tracker.write(row)

    def close(self) -> None:
        if self._tracker is not None:
            with self._drop_on_failure():
                self._tracker.close()

    @contextmanager
    def _drop_on_failure(self, *others: type[Exception]) -> Iterator[None]:
        try:
            yield
        except _failures(*others) as error:
            self._tracker = None
            _logger.warning("%s failed (%s); training continues without it", self._name, error)


def _failures(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """The errors after which a tracker is dropped: of the system and of W&B. A bug is raised."""
    failures = (OSError, ImportError, *others)
    if "wandb" not in sys.modules:
        return failures
    import wandb
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return (*failures, wandb.Error, HandleAbandonedError, MailboxClosedError)


def hyperparameters_of(config: Config) -> dict[str, Any]:
    """The hyperparameters of a run: every value of the sections in `_COMPARED`, by dotted key."""
    values = ((key, attrgetter(key)(config)) for key in leaf_keys() if key.startswith(_COMPARED))
    return {key: value for key, value in values if isinstance(value, bool | int | float | str)}


def open_trackers(context: RunContext) -> list[Tracker]:
    """Open the configured trackers."""
    chosen = context.config.monitoring
    kinds = (
        ("TensorBoard", chosen.tensorboard, TensorBoardTracker),
        ("Prometheus", chosen.prometheus_file is not None, PrometheusTracker),
        ("W&B", chosen.wandb.enabled, WandbTracker),
    )
    return [GuardedTracker(name, lambda start=start: start(context)) for name, is_on, start in kinds if is_on]  # type: ignore[misc]


@contextmanager
def use_trackers(context: RunContext) -> Iterator[None]:
    """Open the trackers on the main process, once the step to resume from is known, and close them."""
    if context.world.is_main:
        context.trackers.extend(open_trackers(context))
    try:
        yield
    finally:
        if context.trackers:
            close_trackers(context.trackers, seconds=context.stop.seconds_left() - _LEAVING_SECONDS)


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
    """Return whether a tracker was given up before it was closed; it would delay the interpreter's end."""
    return any(thread.name == _CLOSING for thread in threading.enumerate())
