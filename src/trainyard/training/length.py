"""How long a run is: steps, epochs and tokens, from the configuration and the size of the data."""

from dataclasses import asdict, dataclass
from typing import Any

from trainyard.config.schema import DataConfig, TrainingConfig


@dataclass(frozen=True)
class RunLength:
    """What the run was asked to do."""

    steps: int
    """Optimizer steps."""
    steps_per_epoch: int
    epochs: float
    """Passes over the training data that `steps` make."""
    samples_per_step: int
    """Sequences an optimizer step: the global batch."""
    tokens_per_step: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def global_batch(config: TrainingConfig, world_size: int) -> int:
    """Sequences an optimizer step, over all processes and accumulated forward passes."""
    return config.batch_size * config.gradient_accumulation_steps * world_size


def plan_length(
    training: TrainingConfig, data: DataConfig, *, steps_per_epoch: int, world_size: int
) -> RunLength:
    """The earlier of `max_steps` and `epochs` ends the run."""
    limits = [training.max_steps, training.epochs and training.epochs * steps_per_epoch]
    steps = min(limit for limit in limits if limit is not None)
    samples = global_batch(training, world_size)
    return RunLength(
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        epochs=round(steps / steps_per_epoch, 4),
        samples_per_step=samples,
        tokens_per_step=samples * data.sequence_length,
    )
