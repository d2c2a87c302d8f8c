"""Load the weights that a new run starts from: open `model.path`, check it, and read it into the model.

    .gguf | .safetensors | folder | Hub | checkpoint --> WeightSource --tensor by tensor--> parameters

From one of our own checkpoints only the model is read, without optimizer state and data position. A resumed
run does not use this module; it takes its weights from its checkpoint.
"""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from trainyard.config.schema import Config, ModelConfig
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.training.checkpoint.stored_index import (
    load_tensors,
    read_checkpoint_index,
    read_state,
    tensors_in,
)
from trainyard.training.model.shard_assignment import place
from trainyard.training.weights.gguf_weights import GgufWeights
from trainyard.training.weights.native_dequantization import DEFAULT_TILE_BYTES
from trainyard.training.weights.pretrained import FORMS, is_checkpoint, missing_error, weights_place
from trainyard.training.weights.safetensors_weights import SafetensorsWeights
from trainyard.training.weights.weight_fit import OUTPUT, WeightSource, layers_in, require_fit


def open_starting_weights(model: ModelConfig, *, tile_bytes: int = DEFAULT_TILE_BYTES) -> WeightSource | None:
    """Open the weights of `model.path`; None for random weights. Reads headers only, no tensors.

    Quantised weights are dequantised `tile_bytes` at a time.

    Raises ConfigError when the file is missing, has an unknown format or does not fit `model.architecture`,
    and CheckpointError when it is a checkpoint that does not verify.
    """
    if model.path is None:
        return None
    source = open_weights(weights_place(model.path), tile_bytes=tile_bytes)
    require_fit(source, model.architecture)
    return source


def require_weights(config: Config, directory: RunDirectory, resume: str) -> None:
    """Refuse unusable starting weights before the data is prepared, because preparing may take hours.

    Raises what `open_starting_weights` raises. A checkpoint is verified later, because that reads all of it.
    """
    path = config.model.path
    fresh = resume == "none" or (resume == "auto" and not directory.run_file.exists())
    if fresh and path is not None and not is_checkpoint(Path(path).expanduser()):
        open_starting_weights(config.model)


def open_weights(path: Path, *, tile_bytes: int = DEFAULT_TILE_BYTES) -> WeightSource:
    """Return the reader for the format of `path`."""
    if not path.exists():
        raise missing_error(path)
    if is_checkpoint(path):
        try:
            verify_checkpoint(path)
            return CheckpointWeights(path)
        except CheckpointError as error:
            raise CheckpointError(
                f"model.path: {path} does not verify ({error}). Nothing was loaded; name another checkpoint."
            ) from error
    if path.suffix == ".gguf" and path.is_file():
        return GgufWeights(path, tile_bytes=tile_bytes)
    is_safetensors = any(path.glob("*.safetensors*")) if path.is_dir() else path.suffix == ".safetensors"
    if is_safetensors:
        return SafetensorsWeights(path)
    raise ConfigError(
        f"model.path: {path} is of no known form. Name {FORMS}, or start from random weights with "
        "--set model.path=null. Nothing was started."
    )


def load_weights(model: nn.Module, source: WeightSource) -> None:
    """Read every parameter of `model` from `source`, one at a time; a sharded parameter keeps its own shard.

    Raises ConfigError when a weight is not finite. Otherwise the first loss would not be finite either, and
    the training would be blamed for it.
    """
    for name, parameter in model.named_parameters():
        values = source.read(name)
        if not torch.isfinite(values).all():
            raise ConfigError(
                f"model.path: {source.path}: {source.stored_name(name)} holds values that are not finite; "
                "fetch or convert the file again"
            )
        place(parameter, values)


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
        fits = read_state(path)["fits"]
        shown = {key: fits[name] for key in _SHOWN if (name := f"model.architecture.{key}") in fits}
        tied = {"tie_word_embeddings": OUTPUT not in self._tensors}
        self.declared = tied | shown | {"num_layers": layers_in(self._tensors)}

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
