"""The objects that a segment of a run works with: configuration, state, devices, trackers, watchers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trainyard.config.schema import Config
from trainyard.errors import TrainingFailedError
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Row, append_event
from trainyard.training.checkpoint.failure_advice import build_error, not_finite_failure
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import World

if TYPE_CHECKING:
    from trainyard.watch.network_record import NetworkWatch


@dataclass(frozen=True)
class RunLength:
    """The planned length of a run."""

    steps: int
    """Optimizer steps."""
    steps_per_epoch: int | None
    """None when the length of the data is not known."""
    epochs: float | None
    """Passes over the training data in `steps`; None when the length of the data is not known."""
    samples_per_step: int
    """Sequences per optimizer step: the global batch."""
    tokens_per_step: int

    def epoch_of(self, step: int) -> int | None:
        """The epoch of a step, from 1; None when it is not known."""
        return None if self.steps_per_epoch is None else step // self.steps_per_epoch + 1

    def place_of(self, step: int) -> str:
        """The position of the batch after `step` steps in the data, counted from 1, as text for people."""
        if self.steps_per_epoch is None:
            return f"batch {step + 1} of the stream"
        return f"batch {step % self.steps_per_epoch + 1} of epoch {self.epoch_of(step)}"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class Listener(Protocol):
    """Shows the run to people while it trains."""

    def on_row(self, row: Row) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Show a recorded event, or `working`, which is only shown.

        The field `what` of `working` names the current work; it is empty while the run trains steps.
        """


def show_work(listener: Listener, what: str) -> None:
    """Show work other than the steps, such as "loading the model", because it may take long."""
    listener.on_event("working", {"what": what})


@dataclass(frozen=True)
class RunContext:
    """The objects that a segment of a run works with, in every recipe."""

    config: Config
    directory: RunDirectory
    run_id: str
    length: RunLength
    fits: dict[str, Any]
    """The values that a later configuration must have in order to resume."""
    state: TrainingState
    device: torch.device
    world: World
    stop: StopRequest
    listener: Listener
    gpu_facts: Callable[[], dict[str, float]]
    """Utilization and temperature as metrics; empty when unknown."""
    watchdog: Watchdog
    """Receives a beat for every sign of progress."""
    mfu: Callable[[float], float | None] = lambda _tokens_per_second: None
    """Converts tokens per second to MFU, the share of the peak of all devices; None when not known."""
    network: "NetworkWatch | None" = None
    """Reads and judges the logs of NCCL; None leaves the network off the record."""

    def record_event(self, event: str, **fields: Any) -> None:
        """Record an event and show it. Only the main process does this."""
        if not self.world.is_main:
            return
        append_event(self.directory.events_file, event, **fields)
        self.listener.on_event(event, fields)

    def not_finite_error(self, step: int, message: str) -> TrainingFailedError:
        """Return the error for a loss or gradient of `step` that is not finite; it adds what to do."""
        failure = not_finite_failure(step, self.config, self.directory)
        return build_error(TrainingFailedError, message, failure, self.directory)

    @contextmanager
    def show_current_work(self, what: str) -> Iterator[None]:
        """Show `what` as the current work while the body runs."""
        show_work(self.listener, what)
        try:
            yield
        finally:
            show_work(self.listener, "")
