"""Causal attention over grouped heads: torch's fused kernel, or products written out where those are faster.

Which of the two is a pure function of device, compilation and length, so that a resumed run takes the same.
"""

import torch
from torch import Tensor
from torch.nn import functional

LONGEST_WRITTEN_OUT = 512
"""Tokens: beyond, the scores `[batch, heads, seq, seq]`, kept for the backward pass, cost too much."""


def is_written_out(device: torch.device, length: int) -> bool:
    """Whether products and a softmax are faster than the fused kernel: for the compiler, on a CPU.

    The compiler makes one kernel of a written-out softmax and leaves the products to the matrix library; the
    fused kernel is a black box to it (`docs/benchmarks.md` has both).
    """
    return device.type == "cpu" and length <= LONGEST_WRITTEN_OUT and torch.compiler.is_compiling()


def unseen_keys(length: int) -> Tensor:
    """What is added to the scores `[query, key]`: 0 up to the query's own key, minus infinity beyond.

    As a table, because the compiler reads numbers much faster than truth values.
    """
    return torch.full((length, length), -torch.inf).triu(1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    """Mix of the values `[batch, heads, seq, head_dim]`; each key and value head serves a group of queries.

    A query sees the keys up to its own, or those that `visible` `[batch, 1, query, key]` names; instead of
    truth values it may hold what is added to the scores.
    """
    if is_written_out(q.device, q.shape[2]):
        return written_out_attention(q, k, v, visible)
    grouped = q.shape[1] != k.shape[1]
    if visible is not None:
        # Of the kernels of GPUs, the memory-efficient one takes a mask, but no groups.
        k, v = _ungrouped(q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def written_out_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    """The same as `causal_attention`, by products and a softmax.

    The shares are kept for the backward pass in the precision of the values, and nothing else of their size:
    from float32 shares the compiler would rather compute the softmax of some layers again, which is slower.
    """
    k, v = _ungrouped(q, k, v)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if visible is None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    is_truth = visible.dtype == torch.bool
    scores = scores.masked_fill(~visible, -torch.inf) if is_truth else scores + visible
    with torch.autocast(q.device.type, enabled=False):
        shares = scores.to(v.dtype).softmax(-1)
    mixed: Tensor = shares @ v
    return mixed


def _ungrouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with a head of their own for each of the queries'."""
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return k, v
    return k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
