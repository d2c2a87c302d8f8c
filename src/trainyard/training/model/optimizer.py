"""Build the configured optimizer, and compute the learning rate as a pure function of the step.

`config.registries` lists the optimizers.
"""

import math
from importlib import import_module

from torch import nn
from torch.optim import Optimizer

from trainyard.config.registries import OPTIMIZERS
from trainyard.config.schema import TrainingConfig

DECAY_SHARE = 0.2
"""The share of a run in which warmup_stable_decay decays, where training.decay_steps is null."""


def build_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
    """Build the optimizer with its complete state, so that the state has the same shape at every step."""
    optimizer: Optimizer = import_module(OPTIMIZERS[config.optimizer].module).build(model, config)
    return optimizer


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """Return the learning rate of the 0-based `step`: linear warm-up, then the schedule until the last step.

    A run that is shorter than the warm-up warms up over its complete length. `warmup_stable_decay` stays at
    the peak until `decay_steps` before the end and then falls linearly (S. Hu et al., "MiniCPM", 2024,
    arXiv:2404.06395, section 4).
    """
    warmup = min(config.warmup_steps, total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.lr_scheduler == "constant":
        return config.learning_rate
    start = warmup
    if config.lr_scheduler == "warmup_stable_decay":
        start = max(warmup, total_steps - (config.decay_steps or math.ceil(total_steps * DECAY_SHARE)))
    # The first step of a decay from the peak still has the peak, the last step of the run has the floor.
    first = start if start == warmup else start - 1
    progress = min(1.0, max(0, step - first) / max(1, total_steps - 1 - first))
    shape = 0.5 * (1 + math.cos(math.pi * progress)) if config.lr_scheduler == "cosine" else 1 - progress
    floor = config.learning_rate * config.min_learning_rate_ratio
    return floor + (config.learning_rate - floor) * shape


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
