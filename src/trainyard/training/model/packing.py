"""Keep several documents in one sample apart: each attends only to itself, and its positions start at 0.

    marked tokens -> tokens, positions, starts -> attention mask, or the blocks of it that are not empty

The first token of a document is marked by its bitwise complement (`batches`); the first token of a sample
always starts a document. Marked targets do not count in the loss, so no token has to predict the first token
of the next document.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

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
