"""Compute the length of a run in steps, epochs and tokens from the configuration and the size of the data."""

from dataclasses import asdict, dataclass
from typing import Any

from trainyard.config.schema import DataConfig, TrainingConfig


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


def global_batch(config: TrainingConfig, groups: int) -> int:
    """Sequences per optimizer step, over all accumulated forward passes and all groups with separate data."""
    return config.batch_size * config.gradient_accumulation_steps * groups


def plan_length(
    training: TrainingConfig, data: DataConfig, *, steps_per_epoch: int | None, groups: int
) -> RunLength:
    """Plan the length: the run ends at `max_steps` or after `epochs`, whichever comes first.

    When the number of steps per epoch is not known, only `max_steps` counts.
    """
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
