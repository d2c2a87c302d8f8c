"""Build the configured optimizer, and compute the learning rate as a pure function of the step.

`config.registries` lists the optimizers.
"""

import math
from importlib import import_module

from torch import nn
from torch.optim import Optimizer

from trainyard.config.registries import OPTIMIZERS
from trainyard.config.schema import TrainingConfig


def build_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
    """Build the optimizer with its complete state, so that the state has the same shape at every step."""
    optimizer: Optimizer = import_module(OPTIMIZERS[config.optimizer].module).build(model, config)
    return optimizer


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """The learning rate of the 0-based `step`: linear warm-up, then cosine decay until the last step.

    A run that is shorter than the warm-up warms up over its complete length.
    """
    warmup = min(config.warmup_steps, total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.lr_scheduler == "constant":
        return config.learning_rate
    progress = (step - warmup) / max(1, total_steps - 1 - warmup)
    floor = config.learning_rate * config.min_learning_rate_ratio
    return floor + (config.learning_rate - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
