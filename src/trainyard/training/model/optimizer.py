"""Build the optimizer, and compute the learning rate as a pure function of the step."""

import math

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from trainyard.config.schema import TrainingConfig

# The share of a run in which warmup_stable_decay decays, where training.decay_steps is null.
DECAY_SHARE = 0.2


def build_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
    """Build AdamW (arXiv:1711.05101), with weight decay of matrices only.

    Its moments are made here, so that its state has the same shape at every step.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )
    for parameter in (*matrices, *vectors):
        values = parameter.detach()
        step = torch.zeros((), dtype=torch.float32, device=values.device)
        moments = {"exp_avg": torch.zeros_like(values), "exp_avg_sq": torch.zeros_like(values)}
        optimizer.state[parameter] = {"step": step, **moments}
    return optimizer


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """Return the learning rate of the 0-based `step`: linear warm-up, then the schedule until the last step.

    A run that is shorter than the warm-up warms up over its complete length; a step after the last one has
    the rate of the last. `warmup_stable_decay` stays at the peak until `decay_steps` before the end and then
    falls linearly (S. Hu et al., "MiniCPM", 2024, arXiv:2404.06395, section 4).
    """
    step, warmup = min(step, total_steps - 1), min(config.warmup_steps, total_steps)
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
