"""What a step of GRPO depends on beside weights and moments: the weights it is kept near, a count of tokens.

Between two steps nothing is buffered: every step samples its own answers.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainyard.training.state import Tensors, TrainingState


@dataclass
class PolicyState(TrainingState):
    """The moving parts of a GRPO run between two steps."""

    reference: Tensors = field(default_factory=dict)
    """The weights that the KL divergence is measured from; empty when none is measured."""
    counted: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """Tokens of questions and answers so far."""

    def tensors(self) -> dict[str, Tensors]:
        """Also `reference` and `counters`; a checkpoint's model and optimizer are those of pretraining."""
        return {**super().tensors(), "reference": self.reference, "counters": {"tokens": self.counted}}

    def tokens_seen(self, _per_step: int) -> int:
        """As counted: answers differ in length."""
        return int(self.counted)
