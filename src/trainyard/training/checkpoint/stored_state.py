"""Compute the digests of the state in a checkpoint, to compare with the outcome's `state_sha256`.

Only one tensor is in memory at a time. `stored_index` locates the tensors in the files.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from trainyard.errors import CheckpointError, DamagedFileError
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.untrusted_files import open_regular
from trainyard.training.checkpoint.stored_index import (
    DAMAGED,
    first_error_line,
    read_checkpoint_index,
    tensors_in,
)
from trainyard.training.checkpoint.training_state import add_to_digest

_PARTS = ("model", "optimizer")


def state_digests(checkpoint: Path, progress: Progress = UNSEEN) -> dict[str, str]:
    """The digest of each part, as `TrainingState.digests` computes it for live tensors.

    Raises CheckpointError when the checkpoint cannot be read.
    """
    index = read_checkpoint_index(checkpoint)
    progress.begin("reading the tensors of the last checkpoint", _bytes_of(index))
    try:
        return {part: _digest(checkpoint, index, part, progress) for part in _PARTS}
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from None
    except DAMAGED as error:
        raise CheckpointError(
            f"{checkpoint}: its tensors cannot be read ({first_error_line(error)})"
        ) from None


def _bytes_of(index: Metadata) -> int:
    prefixes = tuple(f"{part}." for part in _PARTS)
    entries = (entry for key, entry in tensors_in(index).items() if key.startswith(prefixes))
    return sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in entries)


def _digest(checkpoint: Path, index: Metadata, part: str, progress: Progress) -> str:
    total, prefix = hashlib.sha256(), f"{part}."
    entries = tensors_in(index)
    for key in sorted(key for key in entries if key.startswith(prefix)):
        tensor = _tensor(checkpoint, index, key, entries[key])
        add_to_digest(total, key.removeprefix(prefix), tensor)
        progress.advance(tensor.nbytes)
    return total.hexdigest()


def _tensor(checkpoint: Path, index: Metadata, key: str, entry: TensorStorageMetadata) -> Tensor:
    tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
    filled = 0
    for number, chunk in enumerate(entry.chunks):
        place = index.storage_data[MetadataIndex(key, chunk.offsets, number)]
        piece = _piece(checkpoint, place)
        target = tensor
        for axis, (start, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            target = target.narrow(axis, start, length)
        if piece.shape != target.shape or piece.dtype != tensor.dtype:
            raise ValueError(f"{key} is stored in another shape or type than in the index")
        target.copy_(piece)
        filled += piece.numel()
    if filled != tensor.numel():
        raise ValueError(f"{key} is not stored completely")
    return tensor


def _piece(checkpoint: Path, place: Any) -> Tensor:
    """Read the tensor at `place`, which names a file, an offset and a length."""
    with open_regular(checkpoint / place.relative_path, links=False) as file:
        file.seek(place.offset)
        content = file.read(place.length)
    piece = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(piece, Tensor):
        raise TypeError(f"{place.relative_path} holds something else than a tensor")
    return piece
