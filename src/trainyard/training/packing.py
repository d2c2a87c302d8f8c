"""Several documents in one sample, kept apart: each attends to itself alone, from position 0 on.

    marked tokens -> tokens, positions, which token sees which

A token that begins a document is marked by its complement (`batches`); a sample's first token begins one in
any case. No token of a document is asked to foretell the first of the next: marked targets do not count.
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
    """Of each token in its document `[batch, seq]`."""
    visible: Tensor
    """`[batch, 1, seq, seq]`: whether the query of the third axis sees the key of the last."""


def unpacked(marked: Tensor) -> Packed:
    """What the marks of `[batch, seq]` token ids say."""
    begins = marked < 0
    places = torch.arange(marked.shape[1], device=marked.device)
    first = torch.where(begins, places, 0).cummax(dim=1).values
    same = first[:, :, None] == first[:, None, :]
    causal = places[:, None] >= places
    return Packed(plain(marked), places - first, (same & causal)[:, None])


def plain(marked: Tensor) -> Tensor:
    """The ids without the marks."""
    return torch.where(marked < 0, ~marked, marked)
