"""Causal attention over grouped heads: torch's fused kernel, or explicit products where these are faster.

The choice is a pure function of device, compilation and length, so that a resumed run makes the same choice.

Several documents in one sample can be kept apart: each attends only to itself, and its positions start at 0.

    marked tokens -> tokens, positions, starts -> attention mask, or the blocks of it that are not empty

The first token of a document is marked by its bitwise complement (`batches`); the first token of a sample
always starts a document. Marked targets do not count in the loss, so no token has to predict the first token
of the next document.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

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


def causal_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | BlockMask | None = None) -> Tensor:
    """Attention output `[batch, heads, seq, head_dim]`; a key and value head serves a group of query heads.

    A query sees the keys up to its own, or those that the mask `visible` `[batch, 1, query, key]` selects.
    The mask holds booleans, or floats that are added to the scores; a `BlockMask` chooses flex attention.
    """
    grouped = q.shape[1] != k.shape[1]
    if isinstance(visible, BlockMask):
        mixed: Tensor = flex_attention(q, k, v, block_mask=visible, enable_gqa=grouped)
        return mixed
    if is_written_out(q.device, q.shape[2]):
        return written_out_attention(q, k, v, visible)
    if visible is not None:
        # On GPUs only the memory-efficient kernel takes a mask, and it does not support grouped heads.
        k, v = _repeat_heads(q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


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


BLOCK = 128
"""Queries and keys per block, as flex attention's kernels take them."""


@dataclass(frozen=True)
class PackedSamples:
    """Samples whose documents are kept apart."""

    tokens: Tensor
    """Ids `[batch, seq]`."""
    positions: Tensor
    """The position of each token in its document, `[batch, seq]`."""
    starts: Tensor
    """The place in the sample where the document of each token starts, `[batch, seq]`."""

    @property
    def visible(self) -> Tensor:
        """`[batch, 1, query, key]`: whether the query sees the key."""
        places = torch.arange(self.starts.shape[1], device=self.starts.device)
        same = self.starts[:, :, None] == self.starts[:, None, :]
        return (same & (places[:, None] >= places))[:, None]

    @property
    def blocks(self) -> BlockMask:
        """The same for flex attention: the key blocks that a query block sees partly or completely.

        No array of queries by keys is made, and the host reads no value.
        """
        return _blocks_of(self.starts)


def unpack(marked: Tensor) -> PackedSamples:
    """Convert marked token ids `[batch, seq]` to ids, positions and starts of documents."""
    begins = marked < 0
    places = torch.arange(marked.shape[1], device=marked.device)
    first = torch.where(begins, places, 0).cummax(dim=1).values
    return PackedSamples(torch.where(begins, ~marked, marked), places - first, first)


def _blocks_of(starts: Tensor) -> BlockMask:
    length = starts.shape[1]
    count = -(-length // BLOCK)
    numbers = torch.arange(count, device=starts.device)
    ends = numbers * BLOCK + BLOCK
    # Starts only rise along a sample: the first query of a block sees the furthest back, the last the least.
    furthest, nearest = starts[:, ::BLOCK], starts[:, ends.clamp(max=length) - 1]
    queries, keys = numbers[:, None], numbers[None, :]
    seen = (keys <= queries) & (keys >= (furthest // BLOCK)[:, :, None])
    is_seen = (keys < queries) & (ends <= length)[:, None]
    is_full = is_seen & (nearest[:, :, None] <= keys * BLOCK)
    partial_count, partial_keys = _order_blocks(seen & ~is_full)
    full_count, full_keys = _order_blocks(seen & is_full)

    def is_visible(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (starts[batch, query] == starts[batch, key]) & (query >= key)

    return BlockMask.from_kv_blocks(
        *(partial_count, partial_keys, full_count, full_keys),
        BLOCK_SIZE=BLOCK,
        mask_mod=is_visible,
        seq_lengths=(length, length),
    )


def _order_blocks(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys per query of booleans `[batch, query block, key block]`, and these keys first."""
    count = chosen.sum(dim=-1, dtype=torch.int32)
    keys = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return count[:, None].contiguous(), keys[:, None].contiguous()
