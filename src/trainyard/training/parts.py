"""What a segment of a run works with, put together once: configuration, state, devices, data, watchers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Row, append_event
from trainyard.training.length import RunLength
from trainyard.training.parallel import Parallel
from trainyard.training.profiling import StepProfile
from trainyard.training.state import TrainingState
from trainyard.training.stop import StopRequest
from trainyard.training.trackers import Tracker
from trainyard.training.training_data import Batches
from trainyard.training.validation import Validation
from trainyard.training.watchdog import Watchdog
from trainyard.training.world import World


class Listener(Protocol):
    """Whoever shows the run to people while it goes on."""

    def on_row(self, row: Row) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """An event that is on record, or `working`, which is only shown: `what` is done, empty for steps."""
        ...


def show_work(listener: Listener, what: str, *, quiet_seconds: float | None = None) -> None:
    """Tell people what is done now beside the steps ("loading the model"): it may take long.

    A log hears of it after `quiet_seconds`, if these are given.
    """
    patience = {} if quiet_seconds is None else {"quiet_seconds": quiet_seconds}
    listener.on_event("working", {"what": what, **patience})


@dataclass(frozen=True)
class Segment:
    """What the saves and the records of a segment share, whatever is trained in it."""

    config: Config
    directory: RunDirectory
    run_id: str
    length: RunLength
    fits: dict[str, Any]
    """What a later configuration must agree with to resume."""
    state: TrainingState
    device: torch.device
    world: World
    trackers: Sequence[Tracker]
    stop: StopRequest
    listener: Listener
    gpu_facts: Callable[[], dict[str, float]]
    """Utilization and temperature as metrics; empty when unknown."""
    watchdog: Watchdog
    """Is told of every sign of life."""

    def event(self, event: str, **fields: Any) -> None:
        """Put an event on record and show it, once for all processes."""
        if not self.world.is_main:
            return
        append_event(self.directory.events_file, event, **fields)
        self.listener.on_event(event, fields)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show that `what` is done inside, in place of the steps."""
        show_work(self.listener, what)
        try:
            yield
        finally:
            show_work(self.listener, "")


@dataclass(frozen=True)
class Parts(Segment):
    """A segment of pretraining: what its steps work with, too."""

    parallel: Parallel
    """The state's model on the devices of the world."""
    batches: Batches
    validation: Validation | None
    mfu: Callable[[float], float | None]
    """The share of the peak of all devices that a speed in tokens per second is; None when not known."""
    profile: StepProfile
    """Records the steps that a trace was asked of."""
