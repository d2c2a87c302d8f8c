"""AdamW with weight decay on matrices only."""

import torch
from torch import nn
from torch.optim import AdamW

from trainyard.config.schema import TrainingConfig


def build(model: nn.Module, config: TrainingConfig) -> AdamW:
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
        values = parameter.detach()
        step = torch.zeros((), dtype=torch.float32, device=values.device)
        moments = {"exp_avg": torch.zeros_like(values), "exp_avg_sq": torch.zeros_like(values)}
        optimizer.state[parameter] = {"step": step, **moments}
    return optimizer
