"""Compute the digests of the state in a checkpoint, to compare with the outcome's `state_sha256`.

Only one tensor is in memory at a time. `stored_index` locates the tensors in the files.
"""

import hashlib
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import Metadata

from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.checkpoint.stored_index import load_tensors, read_checkpoint_index, tensors_in
from trainyard.training.checkpoint.training_state import add_to_digest

_PARTS = ("model", "optimizer")


def state_digests(checkpoint: Path, progress: Progress = UNSEEN) -> dict[str, str]:
    """The digest of each part, as `TrainingState.digests` computes it for live tensors.

    Raises CheckpointError when the checkpoint cannot be read.
    """
    index = read_checkpoint_index(checkpoint)
    sizes = {
        key: entry.size.numel() * entry.properties.dtype.itemsize for key, entry in tensors_in(index).items()
    }
    own = sum(size for key, size in sizes.items() if key.partition(".")[0] in _PARTS)
    progress.begin("reading the tensors of the last checkpoint", own)
    return {part: _digest(checkpoint, index, part, progress) for part in _PARTS}


def _digest(checkpoint: Path, index: Metadata, part: str, progress: Progress) -> str:
    total, prefix, entries = hashlib.sha256(), f"{part}.", tensors_in(index)
    for key in sorted(key for key in entries if key.startswith(prefix)):
        # Values that the files lack stay 0, so the digest differs.
        tensor = torch.zeros(entries[key].size, dtype=entries[key].properties.dtype)
        load_tensors(checkpoint, index, {key: tensor})
        add_to_digest(total, key.removeprefix(prefix), tensor)
        progress.advance(tensor.nbytes)
    return total.hexdigest()
