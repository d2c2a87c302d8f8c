"""Causal attention over grouped heads: torch's fused kernel, or explicit products where these are faster.

The choice is a pure function of device, compilation and length, so that a resumed run makes the same choice.

Several documents in one sample can be kept apart: each attends only to itself, and its positions start at 0.

    marked tokens -> tokens, positions, attention mask

The first token of a document is marked by its bitwise complement (`batches`); the first token of a sample
always starts a document. Marked targets do not count in the loss, so no token has to predict the first token
of the next document.
"""

import torch
from torch import Tensor
from torch.nn import functional

# Tokens; for longer ones the scores `[batch, heads, seq, seq]`, kept for backward, take too much memory.
LONGEST_WRITTEN_OUT = 512


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


def causal_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    """Attention output `[batch, heads, seq, head_dim]`; a key and value head serves a group of query heads.

    A query sees the keys up to its own, or those that the mask `visible` `[batch, 1, query, key]` selects.
    The mask holds booleans, or floats that are added to the scores.
    """
    if is_written_out(q.device, q.shape[2]):
        return written_out_attention(q, k, v, visible)
    if visible is not None:
        # On GPUs only the memory-efficient kernel takes a mask, and it does not support grouped heads.
        k, v = _repeat_heads(q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )


def written_out_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
    """Compute `causal_attention` with explicit products and a softmax.

    Only the attention weights are kept for the backward pass, in the precision of the values. If they were
    float32, the compiler would recompute the softmax of some layers, which is slower.
    """
    k, v = _repeat_heads(q, k, v)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if visible is None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    is_truth = visible.dtype == torch.bool
    scores = scores.masked_fill(~visible, -torch.inf) if is_truth else scores + visible
    with torch.autocast(q.device.type, enabled=False):
        shares = scores.to(v.dtype).softmax(-1)
    mixed: Tensor = shares @ v
    return mixed


def _repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat the key and value heads so that each query head has its own."""
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return k, v
    return k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)


def unpack(marked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert marked token ids `[batch, seq]` to ids, positions in their documents, and an attention mask.

    The mask `[batch, 1, query, key]` says whether the query sees the key.
    """
    begins = marked < 0
    places = torch.arange(marked.shape[1], device=marked.device)
    starts = torch.where(begins, places, 0).cummax(dim=1).values
    same_document = starts[:, :, None] == starts[:, None, :]
    visible = (same_document & (places[:, None] >= places))[:, None]
    return torch.where(begins, ~marked, marked), places - starts, visible
