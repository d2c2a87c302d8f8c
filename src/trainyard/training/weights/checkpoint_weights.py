"""Read the model's weights from one of our own checkpoints, without optimizer state and data position.

The caller verifies the files of the checkpoint first.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.training.checkpoint.checkpoint import read_state
from trainyard.training.checkpoint.stored_index import load_tensors, read_checkpoint_index, tensors_in
from trainyard.training.weights.weight_fit import OUTPUT, layers_in
from trainyard.training.weights.weight_source import WeightSource

_PART = "model."
_SHOWN = (
    "num_attention_heads",
    "num_key_value_heads",
    "rope_theta",
    "rope_scaling",
    "rms_norm_eps",
    "tie_word_embeddings",
)


class CheckpointWeights(WeightSource):
    """A checkpoint's directory (`…/checkpoints/step-00000500`)."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when its index cannot be read."""
        self.path = path
        self._index = read_checkpoint_index(path)
        self._tensors = {
            name.removeprefix(_PART): entry
            for name, entry in tensors_in(self._index).items()
            if name.startswith(_PART)
        }
        self.declared = self._declared_keys()

    def _declared_keys(self) -> dict[str, Any]:
        fits = read_state(self.path)["fits"]
        shown = {key: fits[name] for key in _SHOWN if (name := f"model.architecture.{key}") in fits}
        tied = {"tie_word_embeddings": OUTPUT not in self._tensors}
        return tied | shown | {"num_layers": layers_in(self._tensors)}

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].size)

    def read(self, name: str) -> Tensor:
        entry = self._tensors[name]
        tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
        load_tensors(self.path, self._index, {_PART + name: tensor})
        return tensor.to(torch.float32)

    def digest(self) -> str:
        """The SHA-256 of the manifest, which holds the digest of every file."""
        return sha256_of_file(self.path / MANIFEST_NAME)
