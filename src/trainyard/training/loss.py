"""The loss of a language model, in float32 whatever the precision of the logits."""

from torch import Tensor
from torch.nn import functional


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the tokens; logits `[batch, seq, vocab]`, targets `[batch, seq]`."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
