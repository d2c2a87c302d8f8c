"""The loss of a language model, computed in float32 for logits of any precision.

It processes a few rows of the logits at a time, forward and backward. So no other array is as large as the
logits and their gradient, which keep their own precision. With a large vocabulary, float32 logits would take
most of a step's memory, and each pass over them would go to main memory. A compiler makes one kernel of each
pass over all rows, which holds no float32 array either: on a GPU that replaces some hundred small kernels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# The largest size of the float32 copy of rows: on a CPU it fits a cache, on a GPU it keeps the GPU busy.
ROWS_BYTES = 1 << 21, 1 << 26


@dataclass(frozen=True)
class LossKernels:
    """The two passes over the logits `[row, vocab]` and targets `[row]`."""

    forward: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """Returns the logarithm of each row's sum of exponentials, and the logit of its target, in float32."""
    backward: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """Returns the gradient of the logits from logits, targets, these logarithms and a factor per row."""


def compiled_kernels() -> LossKernels:
    """Let the compiler make one kernel of each pass, over all rows at once; for GPUs."""
    return LossKernels(torch.compile(_row_sums, dynamic=False), torch.compile(_row_gradients, dynamic=False))


def summed_loss(logits: Tensor, targets: Tensor, kernels: LossKernels | None = None) -> Tensor:
    """Cross-entropy in nats, summed over tokens; logits `[batch, seq, vocab]`, targets `[batch, seq]`.

    Targets below zero do not count. Without `kernels` it takes a few rows at a time, uncompiled.
    """
    result: Tensor = _SummedLoss.apply(logits.flatten(0, 1), targets.flatten(), kernels or _BY_ROWS)
    return result


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, kernels: LossKernels) -> Tensor:
        logarithms, chosen = kernels.forward(logits, targets)
        ctx.save_for_backward(logits, targets, logarithms)
        ctx.kernels = kernels
        return torch.where(targets < 0, 0.0, logarithms - chosen).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient: the softmax, less one at the target; zero for rows without a target."""
        logits, targets, logarithms = ctx.saved_tensors
        counted = torch.where(targets < 0, 0.0, gradients[0])
        return ctx.kernels.backward(logits, targets, logarithms, counted), None, None


def _row_sums(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.float()
    return wide.logsumexp(-1), wide.gather(1, targets.clamp(min=0)[:, None])[:, 0]


def _row_gradients(logits: Tensor, targets: Tensor, logarithms: Tensor, counted: Tensor) -> Tensor:
    """The gradient with a comparison instead of an index, so that it stays one pass."""
    shares = (logits.float() - logarithms[:, None]).exp()
    words = torch.arange(logits.shape[1], device=logits.device)
    is_target = words[None, :] == targets.clamp(min=0)[:, None]
    return ((shares - is_target.float()) * counted[:, None]).to(logits.dtype)


def _row_sums_in_parts(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logarithms = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    chosen = torch.empty_like(logarithms)
    for rows in _rows(logits):
        logarithms[rows], chosen[rows] = _row_sums(logits[rows], targets[rows])
    return logarithms, chosen


def _row_gradients_in_parts(logits: Tensor, targets: Tensor, logarithms: Tensor, counted: Tensor) -> Tensor:
    result = torch.empty_like(logits)
    for rows in _rows(logits):
        shares = (logits[rows].float() - logarithms[rows, None]).exp_()
        target = targets[rows].clamp(min=0)[:, None]
        shares.scatter_(1, target, shares.gather(1, target) - 1)
        result[rows] = shares.mul_(counted[rows, None])
    return result


_BY_ROWS = LossKernels(_row_sums_in_parts, _row_gradients_in_parts)


def _rows(logits: Tensor) -> Iterator[slice]:
    """Yield slices of as many rows as `ROWS_BYTES` allows."""
    count, width = logits.shape
    at_once = max(1, ROWS_BYTES[logits.device.type != "cpu"] // (4 * width))
    for start in range(0, count, at_once):
        yield slice(start, start + at_once)
