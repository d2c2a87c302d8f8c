"""The loss of a language model, in float32 whatever the precision of the logits."""

import torch
from torch import Tensor
from torch.nn import functional

_UNCOUNTED = -1


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the tokens; logits `[batch, seq, vocab]`, targets `[batch, seq]`.

    Targets below zero do not count.
    """
    counted = torch.where(targets < 0, _UNCOUNTED, targets).flatten()
    return functional.cross_entropy(
        logits.float().flatten(0, 1), counted, reduction="sum", ignore_index=_UNCOUNTED
    )
