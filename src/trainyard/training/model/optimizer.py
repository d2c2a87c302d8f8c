"""AdamW with weight decay on matrices only, and the learning rate as a pure function of the step."""

import math

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from trainyard.config.schema import TrainingConfig


def build_optimizer(model: nn.Module, config: TrainingConfig) -> AdamW:
    """Build AdamW (arXiv:1711.05101) with its moments, so that its state has the same shape at every step."""
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
        optimizer.state[parameter] = _fresh_moments(parameter)
    return optimizer


def _fresh_moments(parameter: Tensor) -> dict[str, Tensor]:
    values = parameter.detach()
    step = torch.zeros((), dtype=torch.float32, device=values.device)
    return {"step": step, "exp_avg": torch.zeros_like(values), "exp_avg_sq": torch.zeros_like(values)}


def learning_rate(step: int, total_steps: int, config: TrainingConfig) -> float:
    """The learning rate of the 0-based `step`: linear warm-up, then cosine decay until the last step.

    A run that is shorter than the warm-up warms up over its whole length.
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
