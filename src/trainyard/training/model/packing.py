"""Keep several documents in one sample apart: each attends only to itself, and its positions start at 0.

    marked tokens -> tokens, positions, attention mask

The first token of a document is marked by its bitwise complement (`batches`); the first token of a sample
always starts a document. Marked targets do not count in the loss, so no token has to predict the first token
of the next document.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Samples whose documents are kept apart."""

    tokens: Tensor
    """Ids `[batch, seq]`."""
    positions: Tensor
    """The position of each token in its document, `[batch, seq]`."""
    visible: Tensor
    """`[batch, 1, query, key]`: whether the query sees the key."""


def unpacked(marked: Tensor) -> Packed:
    """Convert marked token ids `[batch, seq]` to ids, positions and a mask."""
    begins = marked < 0
    places = torch.arange(marked.shape[1], device=marked.device)
    first = torch.where(begins, places, 0).cummax(dim=1).values
    same = first[:, :, None] == first[:, None, :]
    causal = places[:, None] >= places
    return Packed(plain(marked), places - first, (same & causal)[:, None])


def plain(marked: Tensor) -> Tensor:
    """The ids without the marks."""
    return torch.where(marked < 0, ~marked, marked)
