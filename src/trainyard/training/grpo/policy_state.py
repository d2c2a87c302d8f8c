"""The state of GRPO beside weights and moments: the reference weights and the number of tokens.

Nothing is buffered between two steps, because every step samples its own answers.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainyard.training.checkpoint.training_state import Tensors, TrainingState


@dataclass
class PolicyState(TrainingState):
    """The state of a GRPO run between two steps."""

    reference: Tensors = field(default_factory=dict)
    """The reference weights of the KL divergence; empty without a KL term."""
    counted: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """The number of tokens in questions and answers so far."""

    def tensors(self) -> dict[str, Tensors]:
        """All tensors: `reference` and `counters` in addition to the model and optimizer of pretraining."""
        return {**super().tensors(), "reference": self.reference, "counters": {"tokens": self.counted}}

    def tokens_seen(self, _per_step: int) -> int:
        """The counted tokens, because answers differ in length."""
        return int(self.counted)
