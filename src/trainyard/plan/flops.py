"""Count the floating-point operations of the model, without recomputation.

A token takes 6 N + 12 L d s: N parameters that it is multiplied with (two operations forward, four backward),
L blocks, d the width of all heads together, s tokens of the sequence (PaLM, arXiv:2204.02311, appendix B).
torchtitan and llm-foundry count the same: attention is not halved for being causal. The input table is looked
up, so it is not in N; the output layer is.
"""

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import ArchitectureConfig


def flops_per_token(shape: ArchitectureConfig, sequence_length: int) -> int:
    """Return the operations to train on one token."""
    attention = 12 * shape.num_layers * shape.hidden_size * sequence_length
    return 6 * count_parameters(shape).multiplied + attention
