"""The loss of a language model, computed in float32 for logits of any precision.

It processes a few rows of the logits at a time, forward and backward. So no other array is as large as the
logits and their gradient, which keep their own precision. With a large vocabulary, float32 logits would take
most of a step's memory, and each pass over them would go to main memory.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS_BYTES = 1 << 21, 1 << 26
"""The largest size of the float32 copy of rows: on a CPU it fits a cache, on a GPU it keeps the GPU busy."""


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over tokens; logits `[batch, seq, vocab]`, targets `[batch, seq]`.

    Targets below zero do not count.
    """
    result: Tensor = _SummedLoss.apply(logits.flatten(0, 1), targets.flatten())  # type: ignore[no-untyped-call]
    return result


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logarithms = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
        chosen = torch.empty_like(logarithms)
        for rows in _rows(logits):
            wide = logits[rows].float()
            logarithms[rows] = wide.logsumexp(-1)
            chosen[rows] = wide.gather(1, targets[rows].clamp(min=0)[:, None])[:, 0]
        ctx.save_for_backward(logits, targets, logarithms)
        return torch.where(targets < 0, 0.0, logarithms - chosen).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient: the softmax, less one at the target; zero for rows without a target."""
        logits, targets, logarithms = ctx.saved_tensors
        counted = torch.where(targets < 0, 0.0, gradients[0])[:, None]
        result = torch.empty_like(logits)
        for rows in _rows(logits):
            shares = (logits[rows].float() - logarithms[rows, None]).exp_()
            target = targets[rows].clamp(min=0)[:, None]
            shares.scatter_(1, target, shares.gather(1, target) - 1)
            result[rows] = shares.mul_(counted[rows])
        return result, None


def _rows(logits: Tensor) -> Iterator[slice]:
    """Yield slices of as many rows as `ROWS_BYTES` allows."""
    count, width = logits.shape
    at_once = max(1, ROWS_BYTES[logits.device.type != "cpu"] // (4 * width))
    for start in range(0, count, at_once):
        yield slice(start, start + at_once)
