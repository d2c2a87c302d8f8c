"""Load the weights that a new run starts from: open `model.path`, check it, and read it into the model.

    .gguf | .safetensors | folder | Hub | checkpoint --> WeightSource --tensor by tensor--> parameters

A resumed run does not use this module; it takes its weights from its checkpoint.
"""

from pathlib import Path

import torch
from torch import nn

from trainyard.config.schema import Config, ModelConfig
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.checkpoint_manifest import verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.training.model.shard_assignment import place
from trainyard.training.weights.checkpoint_weights import CheckpointWeights
from trainyard.training.weights.gguf_weights import GgufWeights
from trainyard.training.weights.native_dequantization import DEFAULT_TILE_BYTES
from trainyard.training.weights.pretrained import FORMS, is_checkpoint, missing_error, weights_place
from trainyard.training.weights.safetensors_weights import SafetensorsWeights
from trainyard.training.weights.weight_fit import require_fit
from trainyard.training.weights.weight_source import WeightSource


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
