"""Write metrics to TensorBoard, Weights & Biases and Prometheus, from the same rows as `metrics.jsonl`.

A tracker that cannot start or fails is dropped with a warning; it never ends a training run.
"""

import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.training.run.run_context import RunContext

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
_COMPARED = {"model", "training", "data", "compute"}
_CLOSING = "closing trackers"
# Seconds of a grace period that are left for the end of the process, once the trackers are closed.
_LEAVING_SECONDS = 3.0


class Tracker(Protocol):
    """Shows rows of metrics to people, beside `metrics.jsonl`."""

    def write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


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
            config=context.config.model_dump(mode="json", include=_COMPARED),
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


class Trackers:
    """The open trackers of the main process. One that fails is dropped with one warning."""

    def __init__(self, starts: dict[str, Callable[[], Tracker]]) -> None:
        self._open: dict[str, Tracker] = {}
        for name, start in starts.items():
            with self._drop_on_failure(name):
                self._open[name] = start()

    def write(self, row: dict[str, Any]) -> None:
        for name, tracker in list(self._open.items()):
            with self._drop_on_failure(name):
                tracker.write(row)

    def close(self, *, seconds: float = math.inf) -> None:
        """Close the trackers, for at most `seconds`: what is left of a grace period.

        They are then left as they are (`is_still_closing`): W&B keeps the unsent data in its folder.
        """

        def close_all() -> None:
            for name, tracker in list(self._open.items()):
                with self._drop_on_failure(name):
                    tracker.close()

        if math.isinf(seconds):
            close_all()
            return
        closing = threading.Thread(target=close_all, name=_CLOSING, daemon=True)
        closing.start()
        closing.join(max(0.0, seconds))
        if closing.is_alive():
            _logger.warning(
                "the trackers were not closed within the grace period; `wandb sync` sends the rest"
            )

    @contextmanager
    def _drop_on_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except _failures() as error:
            self._open.pop(name, None)
            _logger.warning("%s failed (%s); training continues without it", name, error)


def _failures() -> tuple[type[Exception], ...]:
    """The errors after which a tracker is dropped: of the system, of its settings and of W&B."""
    failures = (OSError, ImportError, ValueError)
    if "wandb" not in sys.modules:
        return failures
    import wandb
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return (*failures, wandb.Error, HandleAbandonedError, MailboxClosedError)


@contextmanager
def use_trackers(context: RunContext) -> Iterator[Trackers]:
    """Open the configured trackers on the main process, once the step to resume from is known; close them."""
    chosen, is_main = context.config.monitoring, context.world.is_main
    kinds: tuple[tuple[str, bool, Callable[[RunContext], Tracker]], ...] = (
        ("TensorBoard", chosen.tensorboard, TensorBoardTracker),
        ("Prometheus", chosen.prometheus_file is not None, PrometheusTracker),
        ("W&B", chosen.wandb.enabled, WandbTracker),
    )
    trackers = Trackers({name: partial(start, context) for name, is_on, start in kinds if is_on and is_main})
    try:
        yield trackers
    finally:
        trackers.close(seconds=context.stop.seconds_left() - _LEAVING_SECONDS)


def is_still_closing() -> bool:
    """Return whether a tracker was given up before it was closed; it would delay the interpreter's end."""
    return any(thread.name == _CLOSING for thread in threading.enumerate())
