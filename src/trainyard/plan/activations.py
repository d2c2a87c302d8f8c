"""What a forward pass keeps for the backward pass: bytes a token, by the operations of the model.

The terms are the tensors that autograd saves for `training.model` in torch 2.13, read off with its
saved-tensor hooks on the CPU. On a GPU RMSNorm is one kernel, which keeps one tensor less (derivatives.yaml);
compiled, cheap element-wise results are computed again. `benchmarks/memory_fit.py` compares the sums with
what is measured.
"""

from dataclasses import dataclass

from trainyard.plan.workload import Recomputation, Workload

_FLOAT = 4
"""Bytes: under autocast the residual stream is float32; roots and sums always are."""

LONGEST_WRITTEN_OUT = 512
"""Tokens: beyond, compiled attention on a CPU is the fused kernel too."""


@dataclass(frozen=True)
class Widths:
    """Numbers a token, by the tensors of one block."""

    residual: int
    query: int
    """All query heads of this device, and what is mixed for them."""
    key_value: int
    """Keys; as many again for the values."""
    inner: int
    heads: int

    @classmethod
    def of(cls, work: Workload) -> "Widths":
        """Tensor parallelism leaves a device its share of the heads and of the inner width."""
        shape, cut = work.architecture, work.layout.tensor
        head = shape.hidden_size // shape.num_attention_heads
        return cls(
            residual=shape.hidden_size,
            query=shape.hidden_size // cut,
            key_value=head * shape.num_key_value_heads // cut,
            inner=shape.intermediate_size // cut,
            heads=shape.num_attention_heads // cut,
        )


def attention_kept(work: Workload) -> int:
    """Bytes a token that the attention half of a block keeps: norm, input of the projections, q, k, v, o."""
    width, wide = Widths.of(work), work.compute_bytes
    if scores_are_kept(work):
        # Scaled queries, and keys and values repeated for every query head, beside the result and the scores.
        mixing = 4 * width.query * wide + width.heads * work.sequence_length * wide
    else:
        # A mask leaves no kernel for grouped heads: keys and values are repeated for every query head.
        keys = width.query if work.separate else width.key_value
        mixing = 2 * (width.query + keys) * wide + width.heads * _FLOAT + _own_mask(work)
    return norm_kept(work) + _inputs_kept(work, projections=3) + mixing


def _own_mask(work: Workload) -> int:
    """Bytes a token of the mask as numbers; each block makes its own unless the compiler sees all of them."""
    return work.sequence_length * work.compute_bytes if work.separate and not work.compiled else 0


def shared_kept(work: Workload) -> int:
    """Bytes a token that all blocks share where documents are kept apart: turns by position, and the mask."""
    if not work.separate or (work.compiled and scores_are_kept(work)):
        return 0
    if work.compiled:
        return work.sequence_length * work.compute_bytes
    shape = work.architecture
    turns = 2 * _FLOAT * shape.hidden_size // shape.num_attention_heads
    again = work.recomputation is not Recomputation.NONE
    return turns + (work.sequence_length if again else 0)


def feed_forward_kept(work: Workload) -> int:
    """Bytes a token that the SwiGLU half keeps: its norm, gate, activated gate, up, product."""
    inner = 3 if work.compiled else 4
    width = Widths.of(work)
    return norm_kept(work) + _inputs_kept(work, projections=2) + inner * width.inner * work.compute_bytes


def norm_kept(work: Workload) -> int:
    """Bytes a token: an RMSNorm's input and root; as separate operations also the quotient."""
    width = work.architecture.hidden_size
    if work.compiled or work.on_gpu:
        return width * work.residual_bytes + _FLOAT
    return 2 * width * _FLOAT + _FLOAT


def _inputs_kept(work: Workload, *, projections: int) -> int:
    """A norm's result as the projections keep it: one tensor, but under eager autocast each casts its own."""
    autocast = work.bfloat16 and not work.layout.sharded
    copies = projections if autocast and not work.compiled else 1
    return copies * work.architecture.hidden_size * work.compute_bytes


def block_kept(work: Workload) -> int:
    """Bytes a token that one block keeps from its forward to its backward pass."""
    if work.recomputation is Recomputation.NONE:
        return block_needed(work)
    kept = work.architecture.hidden_size * work.residual_bytes
    if work.recomputation is Recomputation.SELECTIVE:
        width = Widths.of(work)
        products = 2 * (width.residual + width.query) + 2 * width.key_value + 2 * width.inner
        kept += products * work.compute_bytes + width.heads * _FLOAT
    return kept


def block_needed(work: Workload) -> int:
    """Bytes a token that the backward pass of one block needs, kept or computed again."""
    return attention_kept(work) + feed_forward_kept(work)


def final_norm_kept(work: Workload) -> int:
    """Bytes a token between the last block and the logits."""
    return norm_kept(work) + _inputs_kept(work, projections=1)


def scores_are_kept(work: Workload) -> bool:
    """Whether attention runs without a fused kernel, so that the scores of all pairs of tokens exist.

    On a CPU short ones are written out for the compiler (`training.attention`). On a GPU flash attention
    takes no float32 and, in torch 2.13, the memory-efficient kernel no grouped queries (sdp_utils.cpp,
    supports_gqa).
    """
    if not work.on_gpu:
        return work.compiled and work.sequence_length <= LONGEST_WRITTEN_OUT
    shape = work.architecture
    grouped = shape.num_attention_heads != shape.num_key_value_heads
    return not work.bfloat16 and grouped and not work.separate
