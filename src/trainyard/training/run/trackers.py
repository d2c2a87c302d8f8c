"""Write metrics to TensorBoard, Weights & Biases and Prometheus, from the same rows as `metrics.jsonl`.

A tracker that cannot start or fails is dropped with a warning; it never ends a training run.
"""

import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainyard.run.prometheus_text import row_samples, write_prometheus_file
from trainyard.run.records import Row
from trainyard.training.run.run_context import RunContext

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_logger = logging.getLogger(__name__)
_NOT_PLOTTED = {"step", "time", "skipped"}
# The sections of the configuration that affect the result, by which W&B compares runs.
_COMPARED = {"model", "training", "data", "compute"}
_CLOSING = "closing trackers"
# Seconds of a grace period that are left for the end of the process, once the trackers are closed.
_LEAVING_SECONDS = 3.0


class Tracker(NamedTuple):
    """Shows rows of metrics to people, beside `metrics.jsonl`."""

    write: Callable[[Row], None]
    close: Callable[[], None] = lambda: None


def open_tensorboard(context: RunContext) -> Tracker:
    """Event files under `tensorboard/`, without rows of a killed run after the step that it resumed from."""
    folder, resumed_at = context.directory.tensorboard, context.state.step

    @cache  # opened with the first row, so that importing TensorBoard does not delay step 1
    def writer() -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None)

    def write(row: Row) -> None:
        for name in row.keys() - _NOT_PLOTTED:
            writer().add_scalar(tag_of(name), row[name], global_step=row["step"], walltime=row["time"])

    def close() -> None:
        if writer.cache_info().currsize:
            writer().close()

    return Tracker(write, close)


def tag_of(name: str) -> str:
    """The tag of a figure in TensorBoard, which shows the tags with the same first word together."""
    if name.startswith("val_"):
        return f"validation/{name.removeprefix('val_')}"
    if name.endswith("_seconds"):
        return f"time/{name}"
    is_memory = "memory" in name and name.endswith("_bytes")
    is_speed = name == "mfu" or name.endswith("_per_second") or name.startswith("gpu_")
    return f"perf/{name}" if is_memory or is_speed else f"train/{name}"


def open_wandb(context: RunContext) -> Tracker:
    """A W&B run with the same id; without WANDB_API_KEY it is written offline into the run directory."""
    import wandb

    chosen = context.config.monitoring.wandb
    mode = os.environ.get("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")
    # Without a limit it may wait for an upload forever; `wandb sync` can send the rest later.
    limits = {"init_timeout": 60, "finish_timeout": 60, "finish_timeout_raises": True}
    run = wandb.init(
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
    return Tracker(
        lambda row: run.log({name: row[name] for name in row.keys() - _NOT_PLOTTED}, step=row["step"]),
        run.finish,
    )


def open_prometheus(context: RunContext) -> Tracker:
    """A text file for node_exporter with the figures of the last row; their time shows how old they are."""
    path = Path(str(context.config.monitoring.prometheus_file))
    return Tracker(lambda row: write_prometheus_file(path, row_samples(row, context.run_id)))


class Trackers:
    """The open trackers of the main process. One that fails is dropped with one warning."""

    def __init__(self, starts: dict[str, Callable[[], Tracker]]) -> None:
        self._open: dict[str, Tracker] = {}
        for name, start in starts.items():
            with self._drop_on_failure(name):
                self._open[name] = start()

    def write(self, row: Row) -> None:
        for name, tracker in list(self._open.items()):
            with self._drop_on_failure(name):
                tracker.write(row)

    def close(self) -> None:
        for name, tracker in list(self._open.items()):
            with self._drop_on_failure(name):
                tracker.close()

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
    chosen = context.config.monitoring
    starts = {
        "TensorBoard": open_tensorboard if chosen.tensorboard else None,
        "Prometheus": open_prometheus if chosen.prometheus_file is not None else None,
        "W&B": open_wandb if chosen.wandb.enabled else None,
    }
    is_main = context.world.is_main
    trackers = Trackers(
        {name: partial(start, context) for name, start in starts.items() if start and is_main}
    )
    try:
        yield trackers
    finally:
        close_in_time(trackers, context.stop.seconds_left() - _LEAVING_SECONDS)


def close_in_time(trackers: Trackers, seconds: float) -> None:
    """Close the trackers, for at most `seconds`: what is left of a grace period.

    After that they are left as they are (`is_still_closing`): W&B keeps the unsent data in its folder.
    """
    if math.isinf(seconds):
        trackers.close()
        return
    closing = threading.Thread(target=trackers.close, name=_CLOSING, daemon=True)
    closing.start()
    closing.join(max(0.0, seconds))
    if closing.is_alive():
        _logger.warning("the trackers were not closed within the grace period; `wandb sync` sends the rest")


def is_still_closing() -> bool:
    """Return whether a tracker was given up before it was closed; it would delay the interpreter's end."""
    return any(thread.name == _CLOSING for thread in threading.enumerate())
