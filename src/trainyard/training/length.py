"""How long a run is: steps, epochs and tokens, from the configuration and the size of the data."""

from dataclasses import asdict, dataclass
from typing import Any

from trainyard.config.schema import DataConfig, TrainingConfig


@dataclass(frozen=True)
class RunLength:
    """What the run was asked to do."""

    steps: int
    """Optimizer steps."""
    steps_per_epoch: int | None
    """None when the length of the data is not known."""
    epochs: float | None
    """Passes over the training data that `steps` make; None likewise."""
    samples_per_step: int
    """Sequences an optimizer step: the global batch."""
    tokens_per_step: int

    def epoch_of(self, step: int) -> int | None:
        """The epoch of a step, from 1; None when it is not known."""
        return None if self.steps_per_epoch is None else step // self.steps_per_epoch + 1

    def place_of(self, step: int) -> str:
        """Where the batch of a step stands in the data, for people."""
        if self.steps_per_epoch is None:
            return f"batch {step} of the stream"
        return f"batch {step % self.steps_per_epoch} of epoch {self.epoch_of(step)}"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def global_batch(config: TrainingConfig, groups: int) -> int:
    """Sequences an optimizer step, over all accumulated forward passes and groups with data of their own."""
    return config.batch_size * config.gradient_accumulation_steps * groups


def plan_length(
    training: TrainingConfig, data: DataConfig, *, steps_per_epoch: int | None, groups: int
) -> RunLength:
    """The earlier of `max_steps` and `epochs` ends the run; without known epochs, `max_steps` does."""
    limits = [training.max_steps]
    if training.epochs is not None and steps_per_epoch is not None:
        limits.append(training.epochs * steps_per_epoch)
    steps = min(limit for limit in limits if limit is not None)
    samples = global_batch(training, groups)
    return RunLength(
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        epochs=None if steps_per_epoch is None else round(steps / steps_per_epoch, 4),
        samples_per_step=samples,
        tokens_per_step=samples * data.sequence_length,
    )
