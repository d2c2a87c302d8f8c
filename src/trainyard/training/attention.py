"""Causal attention over grouped heads: torch's fused kernel, or products written out where those are faster.

Which of the two is a pure function of device, compilation and length, so that a resumed run takes the same.
"""

import torch
from torch import Tensor
from torch.nn import functional

_LONGEST_WRITTEN_OUT = 512
"""Tokens: beyond, the scores `[batch, heads, seq, seq]`, kept for the backward pass, cost too much."""


def causal_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    """Mix of the values `[batch, heads, seq, head_dim]`; each key and value head serves a group of queries.

    A query sees the keys up to its own, or those that `visible` `[batch, 1, query, key]` names.

    On a CPU the compiler makes one kernel of a written-out softmax and leaves the products to the matrix
    library; the fused kernel is a black box to it (`docs/benchmarks.md` has both).
    """
    short = q.shape[2] <= _LONGEST_WRITTEN_OUT
    if q.device.type == "cpu" and short and torch.compiler.is_compiling():
        return written_out_attention(q, k, v, visible)
    grouped = q.shape[1] != k.shape[1]
    if visible is not None:
        # Of the kernels of GPUs, the memory-efficient one takes a mask, but no groups.
        k, v = _ungrouped(q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def written_out_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    """The same as `causal_attention`, by products and a softmax."""
    k, v = _ungrouped(q, k, v)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if visible is None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    shares = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    mixed: Tensor = shares.to(v.dtype) @ v
    return mixed


def _ungrouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with a head of their own for each of the queries'."""
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return k, v
    return k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
