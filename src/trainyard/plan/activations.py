"""Count the activation memory of a forward pass: bytes per token, by operation of the model.

The terms are the tensors that autograd saves for the model in torch 2.13, found with saved-tensor hooks on
the CPU. On a GPU, RMSNorm is one kernel that saves one tensor less (derivatives.yaml). Compiled code
recomputes cheap element-wise results. `benchmarks/memory_fit.py` compares the sums with measurements.
"""

from dataclasses import dataclass

from trainyard.plan.workload import Recomputation, TrainingWorkload

_FLOAT = 4
"""Bytes of float32: the residual stream under autocast, and roots and sums always."""

LONGEST_WRITTEN_OUT = 512
"""Tokens; longer sequences use the fused kernel on a CPU when compiled, too."""


@dataclass(frozen=True)
class Widths:
    """Elements per token of the tensors of one block."""

    residual: int
    query: int
    """All query heads of this device; the attention output has the same width."""
    key_value: int
    """Keys; values have the same width."""
    inner: int
    heads: int

    @classmethod
    def of(cls, work: TrainingWorkload) -> "Widths":
        """Return the widths on one device; tensor parallelism divides heads and inner width."""
        shape, cut = work.architecture, work.layout.tensor
        head = shape.hidden_size // shape.num_attention_heads
        return cls(
            residual=shape.hidden_size,
            query=shape.hidden_size // cut,
            key_value=head * shape.num_key_value_heads // cut,
            inner=shape.intermediate_size // cut,
            heads=shape.num_attention_heads // cut,
        )


def attention_bytes(work: TrainingWorkload) -> int:
    """Bytes per token that attention of one block keeps: norm, input of the projections, q, k, v, o."""
    width, wide = Widths.of(work), work.compute_bytes
    if scores_are_kept(work):
        # Scaled queries, keys and values repeated per query head, the result, and the scores.
        mixing = 4 * width.query * wide + width.heads * work.sequence_length * wide
    else:
        # With a mask no kernel takes grouped heads, so keys and values are repeated per query head.
        keys = width.query if work.separate else width.key_value
        mixing = 2 * (width.query + keys) * wide + width.heads * _FLOAT + _own_mask(work)
    return norm_bytes(work) + _input_bytes(work, projections=3) + mixing


def _own_mask(work: TrainingWorkload) -> int:
    """Bytes per token of the mask; each block makes its own unless the model is compiled."""
    return work.sequence_length * work.compute_bytes if work.separate and not work.compiled else 0


def shared_bytes(work: TrainingWorkload) -> int:
    """Bytes per token that all blocks share with packing `separate`: rotary tables and the mask."""
    if not work.separate or (work.compiled and scores_are_kept(work)):
        return 0
    if work.compiled:
        return work.sequence_length * work.compute_bytes
    shape = work.architecture
    turns = 2 * _FLOAT * shape.hidden_size // shape.num_attention_heads
    again = work.recomputation is not Recomputation.NONE
    return turns + (work.sequence_length if again else 0)


def feed_forward_bytes(work: TrainingWorkload) -> int:
    """Bytes per token that SwiGLU of one block keeps: norm, gate, activated gate, up, product."""
    inner = 3 if work.compiled else 4
    width = Widths.of(work)
    return norm_bytes(work) + _input_bytes(work, projections=2) + inner * width.inner * work.compute_bytes


def norm_bytes(work: TrainingWorkload) -> int:
    """Bytes per token that an RMSNorm keeps: input and root; as separate operations also the quotient."""
    width = work.architecture.hidden_size
    if work.compiled or work.on_gpu:
        return width * work.residual_bytes + _FLOAT
    return 2 * width * _FLOAT + _FLOAT


def _input_bytes(work: TrainingWorkload, *, projections: int) -> int:
    """Bytes per token of the projections' input; under eager autocast each projection keeps its own cast."""
    autocast = work.bfloat16 and not work.layout.sharded
    copies = projections if autocast and not work.compiled else 1
    return copies * work.architecture.hidden_size * work.compute_bytes


def block_bytes(work: TrainingWorkload) -> int:
    """Bytes per token that one block keeps from its forward to its backward pass."""
    if work.recomputation is Recomputation.NONE:
        return block_backward_bytes(work)
    kept = work.architecture.hidden_size * work.residual_bytes
    if work.recomputation is Recomputation.SELECTIVE:
        width = Widths.of(work)
        products = 2 * (width.residual + width.query) + 2 * width.key_value + 2 * width.inner
        kept += products * work.compute_bytes + width.heads * _FLOAT
    return kept


def block_backward_bytes(work: TrainingWorkload) -> int:
    """Bytes per token that the backward pass of one block needs, kept or recomputed."""
    return attention_bytes(work) + feed_forward_bytes(work)


def final_norm_bytes(work: TrainingWorkload) -> int:
    """Bytes per token kept between the last block and the logits."""
    return norm_bytes(work) + _input_bytes(work, projections=1)


def scores_are_kept(work: TrainingWorkload) -> bool:
    """Return whether attention runs without a fused kernel, so that scores of all pairs of tokens exist.

    On a CPU, compiled attention of short sequences is written out. On a GPU, flash attention does not support
    float32 and, in torch 2.13, the memory-efficient kernel does not support grouped queries (sdp_utils.cpp,
    supports_gqa).
    """
    if not work.on_gpu:
        return work.compiled and work.sequence_length <= LONGEST_WRITTEN_OUT
    shape = work.architecture
    grouped = shape.num_attention_heads != shape.num_key_value_heads
    return not work.bfloat16 and grouped and not work.separate
