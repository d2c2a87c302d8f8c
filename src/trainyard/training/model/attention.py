"""Causal attention over grouped heads: torch's fused kernel, or explicit products where these are faster.

The choice is a pure function of device, compilation and length, so that a resumed run makes the same choice.
"""

import torch
from torch import Tensor
from torch.nn import functional

LONGEST_WRITTEN_OUT = 512
"""Tokens; for longer ones the scores `[batch, heads, seq, seq]`, kept for backward, take too much memory."""


def is_written_out(device: torch.device, length: int) -> bool:
    """Return whether explicit products and a softmax are faster than the fused kernel: only compiled, on a
    CPU.

    The compiler makes one kernel of an explicit softmax and leaves the products to the matrix library. It
    cannot optimise the fused kernel.
    """
    return device.type == "cpu" and length <= LONGEST_WRITTEN_OUT and torch.compiler.is_compiling()


def unseen_keys(length: int) -> Tensor:
    """The causal mask to add to the scores `[query, key]`: 0 up to the query's own key, then minus infinity.

    It holds floats because compiled code reads them much faster than booleans.
    """
    return torch.full((length, length), -torch.inf).triu(1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None = None) -> Tensor:
    """Attention output `[batch, heads, seq, head_dim]`; a key and value head serves a group of query heads.

    `unseen` is `unseen_keys` of the length, which only explicit products take.
    """
    if unseen is not None:
        return written_out_attention(q, k, v, unseen)
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )


def written_out_attention(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor) -> Tensor:
    """Compute `causal_attention` with explicit products and a softmax.

    Only the attention weights are kept for the backward pass, in the precision of the values. If they were
    float32, the compiler would recompute the softmax of some layers, which is slower.
    """
    if (group := q.shape[1] // k.shape[1]) > 1:  # so that each query head has its own key and value head
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + unseen
    with torch.autocast(q.device.type, enabled=False):
        shares = scores.to(v.dtype).softmax(-1)
    mixed: Tensor = shares @ v
    return mixed
